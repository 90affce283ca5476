"""Forked workers, several at a time, that read and change what they inherited; the parent must not see their changes."""

import hashlib
import multiprocessing
import sys

SIZE = int(sys.argv[1]) << 20
PIECE = 1 << 20


def content(piece, version):
    return hashlib.shake_128(b"%d/%d" % (piece, version)).digest(PIECE // 2) + bytes([piece % 256, version]) * (PIECE // 4)


def work(number):
    inherited = hashlib.sha256(DATA).hexdigest()
    for piece in range(number, SIZE // PIECE, 5):
        DATA[piece * PIECE : (piece + 1) * PIECE] = content(piece, 100 + number)
    return inherited, hashlib.sha256(DATA).hexdigest()


DATA = bytearray(SIZE)
for piece in range(SIZE // PIECE):
    DATA[piece * PIECE : (piece + 1) * PIECE] = content(piece, 0)
with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
    for number, (inherited, changed) in enumerate(pool.map(work, range(3), chunksize=1)):
        print(number, inherited, changed)
for piece in range(0, SIZE // PIECE, 2):
    DATA[piece * PIECE : (piece + 1) * PIECE] = content(piece, 1)
print(hashlib.sha256(DATA).hexdigest())
