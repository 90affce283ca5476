# Records as objects: parsed from JSON, sorted, grouped, written again.
import json, sys
n = int(sys.argv[1])
text = json.dumps([{"id": i * 7919 % n, "name": "item %d" % (i * 31 % 5003), "tags": ["t%d" % (i % 7), "u%d" % (i % 11)], "x": i / 3} for i in range(n)])
items = json.loads(text)
items.sort(key=lambda item: item["id"])
groups = {}
for item in items:
    groups.setdefault(item["name"], []).append(item)
print(sum(len(json.dumps(group)) for group in groups.values()))
