import hashlib
import numpy as np
rng = np.random.default_rng(7)
a = rng.integers(0, 1 << 40, 16_000_000)
b = np.sort(a)
print(a.sum(), b[::1_000_000].tolist(), np.unique(a >> 24).size)
f = rng.random((2200, 2200))
print(hashlib.sha256((f @ f.T).round(6).tobytes()).hexdigest(), np.fft.rfft(f[0] * 1000).round(6)[:3].tolist())
a[::3] ^= b[::-1][: a[::3].size]
print(hashlib.sha256(a.tobytes()).hexdigest())
