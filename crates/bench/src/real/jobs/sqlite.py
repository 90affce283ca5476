# A database in memory with an index, looked up here and there.
import random
import sqlite3

random.seed(2)
c = sqlite3.connect(":memory:")
c.execute("create table t(k integer primary key, a text, b integer)")
c.executemany("insert into t values(?, ?, ?)", ((i, f"value {i * 7919 % 1000003}", i * 31 % 977) for i in range(900_000)))
c.execute("create index x on t(a)")
s = 0
for _ in range(90_000):
    r = c.execute("select k, b from t where a = ?", (f"value {random.randrange(900_000) * 7919 % 1000003}",)).fetchone()
    s += sum(r) if r else 0
print(s, c.execute("select sum(b) from t").fetchone())
