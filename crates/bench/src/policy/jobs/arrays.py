# Arrays: sorting, gathering at random, sums along both axes.
import numpy as np
rng = np.random.default_rng(1)
a = rng.random(1_000_000)
order = np.argsort(a)
b = a[order]
m = a.reshape(1000, 1000)
print(b[::1000].sum(), m.sum(axis=0)[3], m.sum(axis=1)[3], (m @ m[:, :8]).sum(), np.unique((a * 1e5).astype(int)).size)
