"""Processes at the same time, each with memory of its own, which must stay right while their limits change."""

import hashlib
import os
import sys
import time

COUNT, MIB, SECONDS = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
PIECE = 1 << 20


def content(number, piece, version):
    return hashlib.shake_128(b"%d/%d/%d" % (number, piece, version)).digest(PIECE // 2) + bytes([piece % 256, version % 256]) * (PIECE // 4)


def work(number):
    data = bytearray(MIB << 20)
    versions = [0] * MIB
    for piece in range(MIB):
        data[piece * PIECE : (piece + 1) * PIECE] = content(number, piece, 0)
    end, step = time.monotonic() + SECONDS, number + 1
    while time.monotonic() < end:
        # One process does nothing for a while, the others go through all of it or a part.
        if number == 0 and end - time.monotonic() > SECONDS / 2:
            time.sleep(0.1)
            continue
        for piece in range(0, MIB, step):
            if data[piece * PIECE : (piece + 1) * PIECE] != content(number, piece, versions[piece]):
                return 1
            versions[piece] += 1
            data[piece * PIECE : (piece + 1) * PIECE] = content(number, piece, versions[piece])
    return any(data[piece * PIECE : (piece + 1) * PIECE] != content(number, piece, versions[piece]) for piece in range(MIB))


children = []
for number in range(COUNT):
    child = os.fork()
    if child == 0:
        os._exit(work(number))
    children.append(child)
wrong = sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)
print("wrong" if wrong else "right", wrong)
sys.exit(wrong != 0)
