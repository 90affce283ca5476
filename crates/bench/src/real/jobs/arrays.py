# Sorting, permuting, a Fourier transform and a product of matrices.
import numpy as np

r = np.random.default_rng(1)
a = r.random(12_000_000)
b = np.sort(a)
print(b[r.permutation(12_000_000)][::1_000_000], np.abs(np.fft.rfft(a[:4_000_000])).sum().round(3))
m = r.random((1500, 1500))
print((m @ m).sum().round(3))
