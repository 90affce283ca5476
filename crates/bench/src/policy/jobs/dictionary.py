# A dictionary of strings, look-ups at random, and half of it deleted.
import sys
n = int(sys.argv[1])
table = {}
for i in range(n):
    table["key %d" % (i * 7919 % n)] = "value %d" % i
at, found = 1, 0
for _ in range(n):
    at = (at * 1103515245 + 12345) % 2147483648
    found += len(table["key %d" % (at % n)])
for i in range(0, n, 2):
    del table["key %d" % i]
print(len(table), found)
