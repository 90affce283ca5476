import sqlite3
base = sqlite3.connect("base.sqlite")
for line in ["pragma cache_size = -300000", "pragma mmap_size = 1000000000", "pragma journal_mode = wal", "pragma synchronous = off",
             "create table t (id integer primary key, body text)"]:
    base.execute(line)
base.executemany("insert into t values (?, ?)", ((i, str(i) * 80) for i in range(300_000)))
base.commit()
base.execute("delete from t where id % 3 = 0")
base.commit()
base.execute("vacuum")
print(base.execute("select count(*), sum(length(body)), max(body) from t").fetchall(), base.execute("pragma integrity_check").fetchall())
