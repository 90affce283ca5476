#!/usr/bin/env python3
"""Runs one job in configurations of all kinds, without and with the plugin: the job ends the same.

    configurations.py --plugin JAR [--only WORD] [--json FILE]

A job that works without the plugin must work with it, with the same result; one that fails without it
(a collector that this JDK lacks) is told as such and proves nothing. The configurations "installed" have
the plugin as an administrator installs it: in a stock Spark's jars or by class path, and in the
spark-defaults.conf of a SPARK_CONF_DIR; all others get it by options of the job.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile

PLUGIN = "io.hiroma.spark.HiromaPlugin"
OPTIONS = "spark.executor.extraJavaOptions"
DEFAULTS = "spark.executor.defaultJavaOptions"
TOOL = "spark.executorEnv.JAVA_TOOL_OPTIONS"
JDK = "spark.executorEnv.JDK_JAVA_OPTIONS"
# Spark makes it.
NOT_THERE = os.path.join(tempfile.gettempdir(), f"hiroma-not-there-{os.getpid()}")
OFF_HEAP = {"spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "300m"}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
}


def configurations():
    """Names and settings; keys that begin with `:` are for this script."""
    yield "defaults", {}
    for collector in ("G1", "Serial", "Parallel", "Z", "Shenandoah", "Epsilon"):
        more = "-XX:+UnlockExperimentalVMOptions " if collector == "Epsilon" else ""
        yield f"options: {collector}", {OPTIONS: f"{more}-XX:+Use{collector}GC"}
        if collector != "Epsilon":
            yield f"JAVA_TOOL_OPTIONS: {collector}", {TOOL: f"-XX:+Use{collector}GC"}
    yield "default options: Parallel", {DEFAULTS: "-XX:+UseParallelGC", OPTIONS: "-Dx=y"}
    yield "JDK_JAVA_OPTIONS: Serial", {JDK: "-XX:+UseSerialGC"}
    yield "heap of a fixed size", {OPTIONS: "-Xms1g"}
    yield "small heap at the start", {OPTIONS: "-Xms64m"}
    yield "heap touched at the start", {OPTIONS: "-Xms1g -XX:+AlwaysPreTouch"}
    for size in ("2m", "8m", "32m"):
        yield f"regions of {size}", {OPTIONS: f"-XX:G1HeapRegionSize={size}"}
    yield "references of 64 bits", {OPTIONS: "-XX:-UseCompressedOops"}
    yield "objects at multiples of 16", {OPTIONS: "-XX:ObjectAlignmentInBytes=16"}
    yield "the JVM's own huge pages", {OPTIONS: "-XX:+UseTransparentHugePages"}
    yield "no explicit collections", {OPTIONS: "-XX:+DisableExplicitGC"}
    yield "interpreter", {OPTIONS: "-Xint"}
    yield "a class archive less", {OPTIONS: "-Xshare:off"}
    yield "temporary directory that is not there", {OPTIONS: f"-Djava.io.tmpdir={NOT_THERE}"}
    yield "off the heap", OFF_HEAP
    yield "off the heap, Parallel", OFF_HEAP | {OPTIONS: "-XX:+UseParallelGC"}
    yield "off the heap, Z", OFF_HEAP | {OPTIONS: "-XX:+UseZGC"}
    yield "tunables of the C library", OFF_HEAP | {
        "spark.executorEnv.GLIBC_TUNABLES": "glibc.malloc.arena_max=2"
    }
    yield "another malloc threshold", OFF_HEAP | {
        "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": "65536"
    }
    yield "chunks of the user's", {"spark.storage.unrollMemoryThreshold": "65536"}
    yield "Kryo", {"spark.serializer": "org.apache.spark.serializer.KryoSerializer"}
    yield "compressed blocks", {"spark.rdd.compress": "true"}
    yield "encryption", {"spark.io.encryption.enabled": "true"}
    yield "little storage", {"spark.memory.fraction": "0.2", "spark.memory.storageFraction": "0.1"}
    yield "executors that come and go", DYNAMIC
    yield "a profile with less memory", DYNAMIC | {
        "spark.executor.memory": "2g",
        "spark.executor.cores": "1",
        ":profile": "1g",
    }
    yield "a profile with more memory", DYNAMIC | {
        "spark.executor.memory": "600m",
        "spark.executor.cores": "1",
        ":profile": "1g",
    }
    yield "speculation", {"spark.speculation": "true"}
    yield "local", {":master": "local[2]"}
    yield "local, Serial", {
        ":master": "local[2]",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    }
    yield "local, off the heap", OFF_HEAP | {":master": "local[2]"}
    yield "little memory in a container", {
        ":limit": str(2000 << 20),
        "spark.executor.memory": "600m",
    }
    yield "denied huge pages", {":deny": "1"}
    for install in ("jars", "path"):
        for master in ("", "local[2]"):
            yield f"installed, {install}{', local' if master else ''}, the user's --jars", {
                ":install": install,
                ":jars": "1",
            } | ({":master": master} if master else {})
    yield "installed, jars, the user's class path", {
        ":install": "jars",
        "spark.driver.extraClassPath": NOT_THERE,
        "spark.executor.extraClassPath": NOT_THERE,
    }
    yield "entire", {":policy": "entire"}
    yield "entire, Parallel in the environment", {":policy": "entire", TOOL: "-XX:+UseParallelGC"}
    yield "entire, Serial in the environment", {":policy": "entire", TOOL: "-XX:+UseSerialGC"}
    yield "auto", {":policy": "auto", "spark.hiroma.turn.millis": "2000"}
    yield "auto without reports", {":policy": "auto", "spark.hiroma.report.millis": "0"}
    yield "part-old", {":policy": "part-old"}
    yield "a policy that does not exist", {":policy": "most"}
    yield "keys that do not exist", {
        "spark.hiroma.ahead.mib": "64",
        "spark.hiroma.sweep.pages": "1",
    }


JOB = r"""
import sys
from pyspark import StorageLevel
from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder
from pyspark.sql import SparkSession
profile, off_heap = sys.argv[1], sys.argv[2] == "true"
spark = SparkSession.builder.appName("configuration").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
rows = spark.range(0, 400_000, 1, 4).selectExpr("id", "id * 3 as three", "concat('row-', id) as name").persist(
    StorageLevel(False, True, True, False, 1) if off_heap else StorageLevel.MEMORY_ONLY)
words = spark.sparkContext.parallelize(range(40), 4).flatMap(lambda part: [f"{part}-{n}" * 3 for n in range(2000)])
if profile:
    words = words.withResources(ResourceProfileBuilder().require(ExecutorResourceRequests().memory(profile).cores(1)).build)
words = words.persist(StorageLevel.MEMORY_ONLY)
found = []
for turn in range(3):
    found.append([tuple(rows.selectExpr("sum(three)", "max(name)", "count(*)").first()), words.map(len).sum()])
rows.unpersist(True)
found.append(spark.range(0, 100_000).selectExpr("sum(id)").first()[0])
print("PLUGINS", spark.sparkContext.getConf().get("spark.plugins", "none"))
print("RESULT", found, flush=True)
spark.stop()
"""


def limited(command, limit):
    """Runs in a memory control group of its own (v1 or v2), removed afterwards."""
    for root, file in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        if os.path.exists(f"{root}/cgroup.procs"):
            group = f"{root}/hiroma-configuration-{os.getpid()}"
            try:
                os.makedirs(group, exist_ok=True)
                if os.path.exists(f"{group}/{file}"):
                    with open(f"{group}/{file}", "w") as out:
                        out.write(limit)
                    return [
                        "sh",
                        "-c",
                        f'echo $$ > {group}/cgroup.procs; exec "$@"',
                        "sh",
                        *command,
                    ], group
            except OSError:
                pass
    return command, None


def linked_spark(plugin, place):
    """A copy of the stock Spark, made of links, with the plugin among its jars."""
    import pyspark

    stock, home = os.path.dirname(pyspark.__file__), os.path.join(place, "spark")
    os.makedirs(f"{home}/jars", exist_ok=True)
    links = [name for name in os.listdir(stock) if name != "jars"]
    links += [f"jars/{name}" for name in os.listdir(f"{stock}/jars")]
    for name in links:
        if not os.path.lexists(f"{home}/{name}"):
            os.symlink(f"{stock}/{name}", f"{home}/{name}")
    shutil.copy(plugin, f"{home}/jars")
    return home


def installed(way, conf, plugin, place):
    """What an administrator does: variables of the environment for a job that knows nothing of it."""
    defaults = os.path.join(place, "conf")
    os.makedirs(defaults, exist_ok=True)
    if way == "path":
        conf = conf | {f"spark.{jvm}.extraClassPath": plugin for jvm in ("driver", "executor")}
    with open(f"{defaults}/spark-defaults.conf", "w") as file:
        file.writelines(f"{key} {value}\n" for key, value in conf.items())
    env = {"SPARK_CONF_DIR": defaults}
    return env | ({"SPARK_HOME": linked_spark(plugin, place)} if way == "jars" else {})


def other_jar(place):
    """A user's own library."""
    path = os.path.join(place, "other.jar")
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return path


def run(settings, plugin, script):
    place = os.path.dirname(script)
    more_env, more_words = {}, ""
    conf = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "1g",
        "spark.driver.memory": "800m",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.deploy.maxExecutorRetries": "5",
    }
    conf |= {key: value for key, value in settings.items() if not key.startswith(":")}
    memory = conf["spark.executor.memory"]
    worker = {"1g": 1024, "600m": 1024, "2g": 2048}[memory]
    # Executors of a profile need room beside those of the default one.
    master = settings.get(
        ":master",
        (
            f"local-cluster[2,2,{2 * worker}]"
            if ":profile" in settings
            else f"local-cluster[2,1,{worker}]"
        ),
    )
    ours = {"spark.plugins": PLUGIN, "spark.hiroma.policy": settings.get(":policy", "part")}
    if plugin and ":install" in settings:
        more_env = installed(settings[":install"], ours, plugin, place)
    elif plugin:
        conf |= ours | {"spark.jars": plugin}
        if master.startswith("local["):
            conf["spark.driver.extraClassPath"] = plugin
    if ":jars" in settings:
        more_words = f"--jars {shlex.quote(other_jar(place))}"
    words = " ".join(shlex.join(["--conf", f"{key}={value}"]) for key, value in conf.items())
    env = os.environ | {
        "PYSPARK_SUBMIT_ARGS": f"--master {master} {more_words} {words} pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
    }
    env |= more_env
    command, group = [
        sys.executable,
        script,
        settings.get(":profile", ""),
        conf.get("spark.memory.offHeap.enabled", "false"),
    ], None
    if ":deny" in settings:
        command = [
            sys.executable,
            "-c",
            "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])",
            *command,
        ]
    if ":limit" in settings:
        command, group = limited(command, settings[":limit"])
    done = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = done.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, 9)
        done.wait()
        return "no end within 180 s", ""
    finally:
        if group:
            try:
                os.rmdir(group)
            except OSError:
                pass
    if plugin and "RESULT " in out and f"PLUGINS {PLUGIN}" not in out.splitlines():
        return "ran without the plugin", err
    lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
    return (lines[0] if lines and done.returncode == 0 else f"ended with {done.returncode}"), err


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugin", default="spark/hiroma-spark/target/hiroma-spark-0.1.0.jar")
    parser.add_argument("--only", default="", help="configurations whose name has this")
    parser.add_argument("--json")
    args = parser.parse_args()
    plugin = os.path.abspath(args.plugin)
    place = tempfile.mkdtemp(prefix="hiroma-configuration-")
    script = os.path.join(place, "job.py")
    with open(script, "w") as file:
        file.write(JOB)
    same = failed = void = 0
    results = []
    try:
        for name, settings in configurations():
            if args.only not in name:
                continue
            without, _ = run(settings, None, script)
            with_plugin, err = run(settings, plugin, script)
            works = without.startswith("RESULT")
            right = with_plugin == without
            verdict = (
                "right"
                if works and right
                else "WRONG" if works else "fails without the plugin as well"
            )
            print(f"{name:45} {verdict}", flush=True)
            if works and not right:
                print(
                    f"  without: {without[:200]}\n  with:    {with_plugin[:200]}\n{err[-1500:]}",
                    flush=True,
                )
            same, failed, void = (
                same + (works and right),
                failed + (works and not right),
                void + (not works),
            )
            results.append(
                {
                    "name": name,
                    "value": int(right),
                    "unit": "1",
                    "paper": None,
                    "must": 1,
                    "aim": None,
                    "met": right or not works,
                }
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(NOT_THERE, ignore_errors=True)
    print(f"{same} passed, {failed} failed, {void} skipped")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(
                {
                    "machine": {"cpus": os.cpu_count(), "kernel": os.uname().release},
                    "results": results,
                },
                file,
                indent=1,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
