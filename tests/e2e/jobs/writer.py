"""Changes its memory and writes it to a file, piece by piece, for some seconds; then verifies all of it."""
import mmap
import os
import sys
import time

PIECE, PIECES = 4 << 20, 60
path, seconds = sys.argv[1], float(sys.argv[2])
memory = mmap.mmap(-1, PIECE * PIECES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pages = memoryview(memory)


def fill(piece, version):
    for at in range(piece * PIECE, (piece + 1) * PIECE, 4096):
        pages[at : at + 16] = b"%07d %07d\n" % (at >> 12, version)


for piece in range(PIECES):
    fill(piece, 0)
print("writes", flush=True)
versions = [0] * PIECES
file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
end, count = time.monotonic() + seconds, 0
while time.monotonic() < end:
    count += 1
    # What was used longest ago is far.
    piece = (count + PIECES // 2) % PIECES
    os.pwrite(file, pages[piece * PIECE : (piece + 1) * PIECE], 0)
    versions[count % PIECES] = count
    fill(count % PIECES, count)
for piece, version in enumerate(versions):
    for at in range(piece * PIECE, (piece + 1) * PIECE, 4096):
        if pages[at : at + 16] != b"%07d %07d\n" % (at >> 12, version):
            sys.exit(f"WRONG at {at}: {bytes(pages[at : at + 16])}")
print("right", flush=True)
