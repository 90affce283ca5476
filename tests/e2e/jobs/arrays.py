"""NumPy on arrays larger than local memory: deterministic work whose result is printed as checksums."""

import hashlib
import sys

import numpy

LENGTH = int(sys.argv[1]) * (1 << 20) // 8 // 4


def show(name, array):
    print(name, array.dtype, array.shape, hashlib.sha256(numpy.ascontiguousarray(array)).hexdigest())


# Integers first: exact on every machine. Four arrays of LENGTH words are alive at a time.
words = numpy.arange(LENGTH, dtype=numpy.uint64)
words *= numpy.uint64(6364136223846793005)
words += numpy.uint64(1442695040888963407)
words ^= words >> numpy.uint64(29)
show("words", words)

order = numpy.argsort(words[: LENGTH // 4], kind="stable")
show("order", order)
gathered = words[order]
assert (gathered[1:] >= gathered[:-1]).all()
show("gathered", gathered)

sums = numpy.cumsum(words, dtype=numpy.uint64)
assert (numpy.diff(sums) == words[1:]).all()
show("sums", sums)

side = int(LENGTH**0.5) // 64 * 64
square = words[: side * side].reshape(side, side)
turned = numpy.ascontiguousarray(square.T)
assert (turned.T == square).all()
show("turned", turned)

# Floats in a fixed order: the same library on the same machine gives the same bits.
floats = (square[:512] >> numpy.uint64(40)).astype(numpy.float64) / 4096.0
show("product", floats @ floats.T)
words[::3] = 0
show("holes", words)
print("total", int(words.sum(dtype=numpy.uint64)), int(sums[-1]))
