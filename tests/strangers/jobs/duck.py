import sys
import duckdb
base = duckdb.connect(":memory:", config={"threads": int(sys.argv[1]), "memory_limit": "2GB"})
base.execute("create table t as select i, (i * 7919) % 1000003 k, 'name ' || ((i * 31) % 50021) n from range(2000000) r(i)")
for query in ["select count(*), sum(k), min(n), max(n) from t", "select n, count(*), sum(k) from t group by n order by 3 desc, 1 limit 20",
              "select count(*), sum(a.i), sum(b.i) from t a join t b on b.k = a.k + 1 where a.i % 7 = 0",
              "select i, k from (select * from t order by k, i) limit 10 offset 1500000"]:
    print(base.execute(query).fetchall())
