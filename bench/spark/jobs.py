#!/usr/bin/env python3
"""Jobs that know nothing of the plugin, with and without it, in interleaved pairs.

    jobs.py --plugin JAR [--jobs join,scan] [--policies off,part] [--pairs 3] [--json FILE]

Each job runs in a stock PySpark with two executors of 3 GB, caches its data once and goes through it
several times. Told are the median of the iterations in seconds, what the whole job took, the memory of
the executors (Rss at the end and at its peak, MiB), and what of it is on huge pages. `entire` is the JVM's
own option, without the plugin; `off2` is off once more, whose ratio to off shows what chance does.
Ratios are of the runs of one pair: their geometric mean, with a 95 % interval of Student's t. A goal is met
or missed only if the whole interval says so. Results of a job must be the same with every policy.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time

ITERATIONS = 8
WARM = 2
PLUGIN = "io.hiroma.spark.HiromaPlugin"
# Student's t, two sides of 2.5 %, by degrees of freedom from 1 on.
STUDENT = (
    "12.71 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179 2.160 2.145 2.131 "
    "2.120 2.110 2.101 2.093 2.086 2.080 2.074 2.069 2.064 2.060 2.056 2.052 2.048 2.045 2.042"
).split()
GOALS = {"iteration": 1.01, "rss": 1.05, "peak": 1.05}


def table(spark, rows, partitions=4):
    """Rows of a sale: customer, item, day, amount, and a text."""
    return spark.range(0, rows, 1, partitions).selectExpr(
        "id",
        "id * 7919 % 50021 as customer",
        "hash(id) % 1000 as item",
        "id % 365 as day",
        "(id * 31 % 10007) / 100.0 as amount",
        "concat('item-', id % 977) as name",
    )


def join(spark):
    sales = table(spark, 2_500_000).cache()
    customers = spark.range(0, 50021).selectExpr("id as customer", "id % 50 as region").cache()
    sales.count(), customers.count()
    return lambda: [
        tuple(row)
        for row in sales.join(customers, "customer")
        .groupBy("region")
        .agg({"amount": "sum", "id": "max"})
        .orderBy("region")
        .collect()
    ]


def scan(spark):
    sales = table(spark, 3_000_000).cache()
    sales.count()
    return lambda: [
        tuple(row) for row in sales.selectExpr("sum(amount)", "sum(item)", "max(name)").collect()
    ]


def scan_off_heap(spark):
    from pyspark import StorageLevel

    sales = table(spark, 3_000_000).persist(StorageLevel(True, True, True, False, 1))
    sales.count()
    return lambda: [
        tuple(row) for row in sales.selectExpr("sum(amount)", "sum(item)", "max(name)").collect()
    ]


def serialised(spark):
    from pyspark import StorageLevel

    words = (
        spark.sparkContext.parallelize(range(400), 8)
        .flatMap(lambda part: [f"word-{(part * 1000 + n) % 65537:08d}" * 4 for n in range(4000)])
        .persist(StorageLevel.MEMORY_ONLY)
    )
    words.count()
    return lambda: [words.map(len).sum(), words.filter(lambda word: word.endswith("7")).count()]


def kmeans(spark):
    from pyspark.ml.clustering import KMeans
    from pyspark.ml.feature import VectorAssembler

    columns = [f"x{n}" for n in range(16)]
    rows = spark.range(0, 700_000, 1, 4).selectExpr(
        *[f"(hash(id, {n}) % 1000) / 10.0 + id % 8 * 10 as {c}" for n, c in enumerate(columns)]
    )
    points = (
        VectorAssembler(inputCols=columns, outputCol="features")
        .transform(rows)
        .select("features")
        .cache()
    )
    points.count()
    return lambda: [round(KMeans(k=8, seed=1, maxIter=3).fit(points).summary.trainingCost, 3)]


def python_objects(spark):
    pairs = (
        spark.sparkContext.parallelize(range(8), 8)
        .flatMap(
            lambda part: [(n % 1009, {"value": n * part, "name": str(n)}) for n in range(60_000)]
        )
        .cache()
    )
    pairs.count()
    return lambda: [pairs.map(lambda pair: pair[1]["value"]).sum()]


def arrow(spark):
    from pyspark.sql.functions import pandas_udf
    import pandas

    sales = table(spark, 1_500_000).cache()
    sales.count()

    @pandas_udf("double")
    def squeezed(amount: pandas.Series) -> pandas.Series:
        import numpy

        return pandas.Series(numpy.sqrt(amount.to_numpy(dtype=float)) + numpy.ones(len(amount)))

    return lambda: [
        round(row[0], 3)
        for row in sales.select(squeezed("amount").alias("s")).selectExpr("sum(s)").collect()
    ]


def als(spark):
    from pyspark.ml.recommendation import ALS

    ratings = (
        spark.range(0, 300_000, 1, 4)
        .selectExpr(
            "cast(id % 5003 as int) user",
            "cast(hash(id) % 1000 + 1000 as int) item",
            "cast(id % 5 as float) rating",
        )
        .cache()
    )
    ratings.count()
    return lambda: [
        ALS(rank=8, maxIter=2, seed=1, userCol="user", itemCol="item", ratingCol="rating")
        .fit(ratings)
        .itemFactors.count()
    ]


def pagerank(spark):
    links = (
        spark.range(0, 1_500_000, 1, 4)
        .selectExpr("id % 60013 as src", "(id * 7919 + id % 13) % 60013 as dst")
        .cache()
    )
    degrees = links.groupBy("src").count().cache()
    links.count(), degrees.count()

    def turn():
        ranks = degrees.selectExpr("src as node", "1.0 as rank")
        shares = links.join(ranks, links.src == ranks.node).join(degrees, "src")
        return [
            row[0]
            for row in shares.selectExpr("dst", "rank / count as share")
            .groupBy("dst")
            .sum("share")
            .selectExpr("round(sum(`sum(share)`), 3)")
            .collect()
        ]

    return turn


def tpch(spark, query):
    line = spark.range(0, 2_000_000, 1, 4).selectExpr(
        "id % 500000 as orderkey",
        "cast(id % 50 + 1 as double) as quantity",
        "id % 10007 * 1.5 as price",
        "id % 11 / 100.0 as discount",
        "id % 9 / 100.0 as tax",
        "substr('ANR', id % 3 + 1, 1) as returnflag",
        "substr('OF', id % 2 + 1, 1) as status",
        "date_add('1992-01-01', cast(id % 2400 as int)) as shipdate",
    )
    orders = spark.range(0, 500_000, 1, 4).selectExpr(
        "id as orderkey",
        "id % 30011 as custkey",
        "date_add('1992-01-01', cast(id % 2400 as int)) as orderdate",
        "id % 7 as priority",
    )
    customer = spark.range(0, 30011, 1, 4).selectExpr(
        "id as custkey",
        "element_at(array('BUILDING', 'MACHINERY', 'AUTOMOBILE'), cast(id % 3 + 1 as int)) as segment",
    )
    for name, data in (("lineitem", line), ("orders", orders), ("customer", customer)):
        data.createOrReplaceTempView(name)
        spark.sql(f"cache table {name}")
    return lambda: [tuple(map(str, row)) for row in spark.sql(query).collect()]


def tpch_q1(spark):
    return tpch(
        spark,
        "select returnflag, status, sum(quantity), round(sum(price * (1 - discount) * (1 + tax)), 1), count(*) from lineitem "
        "where shipdate <= '1998-09-02' group by returnflag, status order by 1, 2",
    )


def tpch_q3(spark):
    return tpch(
        spark,
        "select l.orderkey, round(sum(price * (1 - discount)), 1) r, orderdate from customer c, orders o, lineitem l where segment = 'BUILDING' "
        "and c.custkey = o.custkey and l.orderkey = o.orderkey and orderdate < '1995-03-15' and shipdate > '1995-03-15' "
        "group by l.orderkey, orderdate order by r desc, orderdate, 1 limit 10",
    )


def tpch_q18(spark):
    return tpch(
        spark,
        "select o.custkey, o.orderkey, sum(quantity) q from orders o, lineitem l where o.orderkey in (select orderkey from lineitem "
        "group by orderkey having sum(quantity) > 150) and o.orderkey = l.orderkey group by o.custkey, o.orderkey order by q desc, 2 limit 10",
    )


def broadcasts(spark):
    blob = bytes(random.Random(1).randbytes(60 << 20))
    shared = spark.sparkContext.broadcast(blob)
    return lambda: [
        spark.sparkContext.parallelize(range(8), 8).map(lambda n: shared.value[n * 1000]).sum()
    ]


def caching(spark):
    """Caches, reads and drops again and again: nothing may be left over."""

    def turn():
        found = []
        for number in range(4):
            sales = table(spark, 600_000).cache()
            found.append(sales.selectExpr("sum(amount)", "count(*)").first()[0])
            sales.unpersist(True)
        return [round(each, 2) for each in found]

    return turn


def streaming(spark):
    """A stream with state: counts by key in windows, some batches of it each turn."""
    from pyspark.sql.functions import col

    def turn():
        query = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 20_000)
            .option("numPartitions", 2)
            .load()
            .withWatermark("timestamp", "10 seconds")
            .groupBy("timestamp", (col("value") % 1009).alias("k"))
            .count()
            .writeStream.format("memory")
            .queryName("counted")
            .outputMode("update")
            .start()
        )
        while query.lastProgress is None or query.lastProgress["batchId"] < 8:
            time.sleep(0.05)
        query.stop()
        query.awaitTermination()
        rows = spark.sql("select max(count), count(distinct k) from counted").first()
        return [rows[0], rows[1]]

    return turn


def uncached(spark):
    return lambda: [
        tuple(row)
        for row in table(spark, 2_000_000)
        .groupBy("customer")
        .sum("amount")
        .selectExpr("round(sum(`sum(amount)`), 1)", "count(*)")
        .collect()
    ]


JOBS = {
    job.__name__: job
    for job in (
        join,
        scan,
        scan_off_heap,
        serialised,
        kmeans,
        python_objects,
        arrow,
        als,
        pagerank,
        tpch_q1,
        tpch_q3,
        tpch_q18,
        broadcasts,
        caching,
        streaming,
        uncached,
    )
}


def executors():
    """Memory of this application's executors, or of the driver's JVM in local mode."""
    found, own = [], os.getpid()
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline") as line:
                parents[int(pid)] = int(stat.read().rsplit(")", 1)[1].split()[1]), line.read()
        except OSError:
            pass

    def below(pid):
        while pid in parents and pid != own:
            pid = parents[pid][0]
        return pid == own

    jvms = [
        pid for pid, (_, line) in parents.items() if below(pid) and "java" in line.split("\0")[0]
    ]
    backends = [pid for pid in jvms if "CoarseGrainedExecutorBackend" in parents[pid][1]]
    for pid in backends or jvms:
        kib = {}
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            for row in rollup:
                words = row.split()
                if len(words) > 1 and words[0] in ("Rss:", "AnonHugePages:"):
                    kib[words[0]] = int(words[1])
        with open(f"/proc/{pid}/status") as status:
            peak = next(int(row.split()[1]) for row in status if row.startswith("VmHWM:"))
        own_ticks = 0
        for task in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{task}/stat") as stat:
                    name, rest = stat.read().rsplit(")", 1)
                    own_ticks += (
                        sum(map(int, rest.split()[11:13])) if name.endswith("(hiroma") else 0
                    )
            except OSError:
                pass
        found.append(
            {
                "rss_mib": kib["Rss:"] >> 10,
                "peak_mib": peak >> 10,
                "huge_mib": kib["AnonHugePages:"] >> 10,
                "own_cpu": own_ticks / os.sysconf("SC_CLK_TCK"),
            }
        )
    return found


def one(name, master, iterations):
    from pyspark.sql import SparkSession

    started = time.monotonic()
    spark = SparkSession.builder.appName(name).master(master).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    turn = JOBS[name](spark)
    seconds, result = [], None
    for _ in range(iterations):
        before = time.monotonic()
        last = turn()
        seconds.append(time.monotonic() - before)
        if result is not None and repr(last) != repr(result):
            raise SystemExit(f"{name}: an iteration came to {last} and one before to {result}")
        result = last
    memory = executors()
    cached = sum(info.memSize() for info in spark.sparkContext._jsc.sc().getRDDStorageInfo())
    print(
        "RESULT "
        + json.dumps(
            {
                "median": statistics.median(seconds[WARM:]),
                "all": time.monotonic() - started,
                "executors": memory,
                "cached_mib": cached / 2**20,
                "result": repr(result),
            }
        ),
        flush=True,
    )
    spark.stop()


def run(job, policy, args):
    conf = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "3g",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.host": "127.0.0.1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.log.level": "ERROR",
    }
    if job == "scan_off_heap":
        conf |= {"spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "1g"}
    if policy == "entire":
        key = (
            "spark.driver.extraJavaOptions"
            if args.master.startswith("local[")
            else "spark.executor.extraJavaOptions"
        )
        conf[key] = "-XX:+UseTransparentHugePages"
    elif not policy.startswith("off"):
        conf |= {"spark.plugins": PLUGIN, "spark.hiroma.policy": policy, "spark.jars": args.plugin}
        if args.master.startswith("local["):
            conf["spark.driver.extraClassPath"] = args.plugin
    for pair in args.conf:
        key, value = pair.split("=", 1)
        conf[key] = value
    words = " ".join(
        f"--conf {key}={value}" if " " not in value else f"--conf '{key}={value}'"
        for key, value in conf.items()
    )
    env = os.environ | {
        "PYSPARK_SUBMIT_ARGS": f"{words} pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [
            sys.executable,
            __file__,
            *("--one", job),
            *("--master", args.master),
            *("--iterations", str(args.iterations)),
        ],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=900,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise SystemExit(f"{job}, {policy}: ended with {done.returncode}\n{done.stderr[-4000:]}")
    found = json.loads(lines[0][7:])
    for key in ("rss_mib", "peak_mib", "own_cpu", "huge_mib"):
        found[key] = sum(executor[key] for executor in found["executors"])
    return found


def ratio(mine, others, key):
    """Of the pairs: the geometric mean, and a 95 % interval, which one pair does not have."""
    logs = [math.log(own[key] / other[key]) for own, other in zip(mine, others)]
    mean, count = statistics.fmean(logs), len(logs)
    if count < 2:
        return math.exp(mean), 0.0, math.inf
    t = float(STUDENT[count - 2]) if count - 2 < len(STUDENT) else 1.96
    half = t * statistics.stdev(logs) / math.sqrt(count)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def measured_ratio(job, policy, name, base, value, pairs):
    mean, low, high = value
    must = GOALS.get(name)
    met = None if must is None else True if high <= must else False if low > must else None
    return {
        "name": f"{job}.{policy}.{name}_ratio",
        "title": f"{job}: {name} of {policy} against {base}",
        "value": round(mean, 4),
        "min": round(low, 4),
        "max": round(high, 4) if math.isfinite(high) else None,
        "n": pairs,
        "unit": "1",
        "paper": None,
        "must": must,
        "aim": None,
        "met": met,
    }


def measured(job, policy, name, value, unit):
    return {
        "name": f"{job}.{policy}.{name}",
        "title": f"{job}: {name.replace('_', ' ')} of {policy}",
        "value": round(value, 4),
        "unit": unit,
        "paper": None,
        "must": None,
        "aim": None,
        "met": None,
    }


def told(job, policy, policies, runs):
    """Prints a line, and returns the same as results."""
    base, mine = policies[0], runs[policy]
    keys = ("median", "all", "rss_mib", "peak_mib", "huge_mib", "cached_mib", "own_cpu")
    middle = {key: statistics.median(found[key] for found in mine) for key in keys}
    ratios = {
        name: ratio(mine, runs[base], key)
        for name, key in (
            ("iteration", "median"),
            ("whole", "all"),
            ("rss", "rss_mib"),
            ("peak", "peak_mib"),
        )
    }
    mean, low, high = ratios["iteration"]
    print(
        f"{job:15} {policy:8} {middle['median']:7.3f} s ({mean:.3f}, {low:.3f} to {high:.3f})  "
        f"whole {middle['all']:5.1f} s ({ratios['whole'][0]:.2f})  "
        f"rss {middle['rss_mib']:5.0f} MiB ({ratios['rss'][0]:.2f})  "
        f"peak {middle['peak_mib']:5.0f} MiB ({ratios['peak'][0]:.2f})  "
        f"huge {middle['huge_mib']:4.0f} of {middle['cached_mib']:4.0f} MiB cached  "
        f"own cpu {middle['own_cpu']:.2f} s",
        flush=True,
    )
    results = [
        measured(job, policy, name, middle[key], unit)
        for name, key, unit in (
            ("iteration", "median", "s"),
            ("rss", "rss_mib", "MiB"),
            ("peak", "peak_mib", "MiB"),
            ("cached", "cached_mib", "MiB"),
            ("huge", "huge_mib", "MiB"),
            ("own_cpu", "own_cpu", "s"),
        )
    ]
    if policy == base:
        return results
    return results + [
        measured_ratio(job, policy, name, base, value, len(mine)) for name, value in ratios.items()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugin", default="spark/hiroma-spark/target/hiroma-spark-0.1.0.jar")
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--policies", default="off,part")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--master", default="local-cluster[2,1,3072]")
    parser.add_argument("--conf", action="append", default=[], help="KEY=VALUE for every run")
    parser.add_argument("--json")
    parser.add_argument(
        "--iterations",
        type=int,
        default=ITERATIONS,
        help="of each run; the first two do not count",
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one(args.one, args.master, args.iterations)
    args.plugin = os.path.abspath(args.plugin)
    policies = args.policies.split(",")
    results = []
    for job in args.jobs.split(","):
        runs = {policy: [] for policy in policies}
        answers = set()
        for number in range(args.pairs):
            for policy in policies if number % 2 == 0 else policies[::-1]:
                found = run(job, policy, args)
                answers.add(found["result"])
                runs[policy].append(found)
        if len(answers) > 1:
            raise SystemExit(f"{job}: results differ: {answers}")
        for policy in policies:
            results += told(job, policy, policies, runs)
        if args.json:
            with open(args.json, "w") as file:
                json.dump(
                    {
                        "machine": {
                            "cpus": os.cpu_count(),
                            "kernel": os.uname().release,
                            "master": args.master,
                            "pairs": args.pairs,
                        },
                        "results": results,
                    },
                    file,
                    indent=1,
                )
    return None


if __name__ == "__main__":
    main()
