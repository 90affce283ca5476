import hashlib, sqlite3
base = sqlite3.connect(":memory:")
base.execute("pragma temp_store = memory")
base.execute("create table t (id integer primary key, k integer, name text, body blob)")
base.executemany("insert into t values (?, ?, ?, ?)", ((i, i * 7919 % 100003, f"name {i * 31 % 5003}", (b"%d" % i) * 20) for i in range(400_000)))
base.execute("create index byk on t (k)")
for query in ["select count(*), sum(k), sum(length(body)) from t", "select name, count(*), sum(k) from t group by name order by 3 desc, 1 limit 20",
              "select a.id, b.id from t a join t b on b.k = a.k + 1 where a.id % 5000 = 0 order by 1, 2 limit 50", "pragma integrity_check"]:
    print(base.execute(query).fetchall())
base.execute("update t set body = cast(body || 'x' as blob) where id % 10 = 0")
print(hashlib.sha256(b"".join(row[0] for row in base.execute("select body from t order by id"))).hexdigest())
