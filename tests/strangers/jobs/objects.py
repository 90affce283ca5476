"""Many small objects, dictionaries and strings; collected in between."""
import gc, hashlib
table = {}
for i in range(200_000):
    table[f"key {i * 7919 % 1000003}"] = [i, str(i), (i, i + 1)]
print(len(table), sum(v[0] for v in table.values()))
for key in list(table)[::3]:
    del table[key]
gc.collect()
print(hashlib.sha256("".join(sorted(table)).encode()).hexdigest(), hashlib.sha256(repr([v for v in table.values()][:1000]).encode()).hexdigest())
