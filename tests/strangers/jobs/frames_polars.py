import polars as pl
n = 1_000_000
t = pl.DataFrame({"i": pl.int_range(n, eager=True)}).with_columns(k=pl.col("i") * 7919 % 1000003, g=(pl.col("i") * 31 % 5003).cast(pl.Utf8))
print(t.group_by("g").agg(pl.col("k").sum().alias("s"), pl.len().alias("n")).sort("s", "g").tail(10).rows())
print(t.sort("k", "i").slice(600_000, 5).rows())
print(t.join(t.select(k=pl.col("k") + 1, j="i"), on="k").select(pl.len(), pl.col("j").sum()).rows())
print(t.write_csv()[-60:])
