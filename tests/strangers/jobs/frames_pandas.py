import hashlib
import numpy as np
import pandas as pd
n = 700_000
t = pd.DataFrame({"i": np.arange(n)})
t["k"] = t.i * 7919 % 1000003
t["g"] = (t.i * 31 % 5003).astype(str)
print(t.groupby("g").k.agg(["sum", "count"]).sort_values(["sum", "count"]).tail(10).to_string())
print(t.sort_values(["k", "i"]).iloc[500_000:500_005].to_string())
print(t.merge(t.assign(k=t.k + 1), on="k").agg({"i_x": "sum", "i_y": "sum"}).to_string())
print(hashlib.sha256(pd.util.hash_pandas_object(t.drop(columns="g")).values.tobytes()).hexdigest())
