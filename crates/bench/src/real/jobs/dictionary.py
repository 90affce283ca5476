# A dictionary of strings that is filled, looked up here and there, and changed.
import random

random.seed(1)
n = 1_500_000
d = {f"key{i}": i for i in range(n)}
s = sum(d[f"key{random.randrange(n)}"] for _ in range(300_000))
for k in list(d)[::7]:
    d[k] += 1
print(s, sum(d.values()))
