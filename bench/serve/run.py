#!/usr/bin/env python3
"""Measures the service beside its peers, in one run on one machine.

    bench/serve/install-throttlecrab
    bench/serve/run.py TOLLWAY [--throttlecrab SERVER] [--rounds 3] [--out bench/runs/DATE/serve]

Needs redis-server, redis-benchmark, wrk and h2load; throttlecrab-server is taken from target/throttlecrab
if it was built there. Every subject is warmed up before it is measured. `--only tails` compares the tail
latencies at 1k and 2M live keys, `--only unpipelined` the CPU of single requests beside redis-server,
`--only attacked` what honest clients wait while `attack.py` runs beside them and while it does not. For each subject: requests per second, latency
percentiles, and CPU microseconds of the server per request from /proc, which is the figure to compare:
client and server share the machine. Medians over the rounds; every round is kept in the JSON file.
"""
import argparse, json, os, platform, re, statistics, struct, subprocess, sys, tempfile, time
import socket

HERE = os.path.dirname(os.path.abspath(__file__))
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


def cpu_us(pid):
    """CPU time of all threads, by the scheduler's nanoseconds where it tells them."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return sum(int(open(f"/proc/{pid}/task/{thread}/schedstat").read().split()[0]) for thread in threads) / 1e3
    except (OSError, ValueError):
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * TICK_US


def wait_port(port):
    for _ in range(3000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit(f"nothing listens on {port}")


class Server:
    def __init__(self, command, port, env=None):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env={**os.environ, **(env or {})})
        wait_port(port)

    def measure(self, operations, run):
        before = cpu_us(self.process.pid)
        row = run()
        row["cpu_us_per_op"] = round((cpu_us(self.process.pid) - before) / (operations or row["ops"]), 3)
        return row

    def stop(self):
        self.process.terminate()
        self.process.wait()


def redis_benchmark(port, pipeline, keys, count, command, clients=50):
    arguments = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-c", str(clients), "-n", str(count),
                 "-P", str(pipeline), "-r", str(keys), *command]
    text = subprocess.run(arguments, capture_output=True, text=True, timeout=300).stdout
    rps = float(re.findall(r"throughput summary: ([\d.]+)", text)[-1])
    spread = [(float(p), float(ms)) for p, ms in re.findall(r"([\d.]+)% <= ([\d.]+) milliseconds", text)]
    at = lambda want: next((round(ms * 1000) for p, ms in spread if p >= want), None)
    return {"rps": round(rps), "p50_us": at(50), "p99_us": at(99), "p99.9_us": at(99.9), "ops": count}


def wrk(port, seconds):
    text = subprocess.run(["wrk", "-t1", "-c50", f"-d{seconds}s", "-s", f"{HERE}/throttle.lua",
                           f"http://127.0.0.1:{port}"], capture_output=True, text=True, timeout=120).stdout
    ops, took_us, p50, p99, p999, errors = map(int, re.search(r"RESULT (.*)", text).group(1).split())
    return {"rps": round(ops / took_us * 1e6), "p50_us": p50, "p99_us": p99, "p99.9_us": p999,
            "ops": ops, "errors": errors}


def h2load(port, clients, streams, count):
    key = b"user:97"
    message = b"\x0a" + bytes([len(key)]) + key + b"\x10\x10\x18\x1e\x20\x3c\x28\x01"
    with tempfile.NamedTemporaryFile() as body:
        body.write(b"\0" + struct.pack(">I", len(message)) + message)
        body.flush()
        text = subprocess.run(["h2load", "-n", str(count), "-c", str(clients), "-m", str(streams), "-d",
                               body.name, "-H", "content-type: application/grpc", "-H", "te: trailers",
                               f"http://127.0.0.1:{port}/throttlecrab.RateLimiter/Throttle"],
                              capture_output=True, text=True, timeout=300).stdout
    rps = float(re.search(r"finished in .*?, ([\d.]+) req/s", text).group(1))
    done = int(re.search(r"(\d+) succeeded", text).group(1))
    return {"rps": round(rps), "ops": count, "errors": count - done}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tollway")
    built = os.path.join(HERE, "../../target/throttlecrab/bin/throttlecrab-server")
    parser.add_argument("--throttlecrab", default=built if os.path.exists(built) else None)
    parser.add_argument("--only", choices=["tails", "unpipelined", "attacked"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out")
    options = parser.parse_args()
    size = lambda count: max(1000, int(count * options.scale))
    rows = []

    def note(name, row):
        rows.append({"what": name, **row})
        print(name, row, file=sys.stderr, flush=True)

    tollway = lambda *more: [options.tollway, "serve", "--http", "127.0.0.1:18080", "--grpc",
                              "127.0.0.1:18081", "--resp", "127.0.0.1:16380", *more]
    script = open(f"{HERE}/gcra.lua").read()
    throttle = ["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"]
    if options.only == "tails":
        tails(tollway, size, options.rounds, note)
        return report(rows, options)
    if options.only == "unpipelined":
        unpipelined(tollway, throttle, size, options.rounds, note)
        return report(rows, options)
    if options.only == "attacked":
        attacked(tollway, size, options.rounds, note)
        return report(rows, options)
    for _ in range(options.rounds):
        redis = Server(["redis-server", "--port", "16379", "--save", "", "--appendonly", "no"], 16379)
        sha = subprocess.run(["redis-cli", "-p", "16379", "SCRIPT", "LOAD", script], capture_output=True,
                             text=True).stdout.strip()
        gcra = ["EVALSHA", sha, "1", "gcra:__rand_int__", "16", "30", "60", "1"]
        ours = Server(tollway(), 16380)
        for port, command in ((16379, ["INCR", "key:__rand_int__"]), (16379, gcra), (16380, throttle)):
            redis_benchmark(port, 16, 100_000, size(50_000), command)  # warm up
        for pipeline, count in ((1, 100_000), (16, 600_000), (64, 1_200_000)):
            n = size(count)
            load = lambda port, command, n=n, keys=100_000: redis_benchmark(port, pipeline, keys, n, command)
            note(f"redis INCR P{pipeline}",
                 redis.measure(n, lambda: load(16379, ["INCR", "key:__rand_int__"])))
            few = n // 4 if pipeline > 1 else n
            note(f"redis EVALSHA gcra P{pipeline}", redis.measure(few, lambda: load(16379, gcra, few)))
            for keys, label in ((1_000, "1k"), (100_000, "100k"), (2_000_000, "2M")):
                if keys == 2_000_000 and pipeline == 1:
                    redis_benchmark(16380, 64, keys, size(4_000_000), throttle)  # fill
                note(f"tollway CL.THROTTLE P{pipeline} {label} keys",
                     ours.measure(n, lambda: load(16380, throttle, n, keys)))
        note("tollway HTTP /throttle", ours.measure(None, lambda: wrk(18080, 4)))
        for clients, streams in ((50, 1), (4, 25)):
            note(f"tollway gRPC c{clients}m{streams}",
                 ours.measure(size(60_000), lambda: h2load(18081, clients, streams, size(60_000))))
        ours.stop()
        redis.stop()
        ours = Server(tollway("--workers", "2"), 16380)
        for pipeline, count in ((1, 100_000), (16, 600_000), (64, 1_200_000)):
            note(f"tollway CL.THROTTLE P{pipeline} 100k keys, 2 workers",
                 ours.measure(size(count), lambda: redis_benchmark(16380, pipeline, 100_000, size(count), throttle)))
        note("tollway HTTP /throttle, 2 workers", ours.measure(None, lambda: wrk(18080, 4)))
        ours.stop()
        if options.throttlecrab:
            crab = Server([options.throttlecrab, "--http", "--http-port", "18080", "--grpc", "--grpc-port",
                           "18070", "--redis", "--redis-port", "16390", "--store", "periodic"], 16390)
            for pipeline, count in ((1, 100_000), (16, 40_000), (64, 100_000)):
                command = ["THROTTLE", "key:__rand_int__", "16", "30", "60"]
                note(f"throttlecrab THROTTLE P{pipeline}",
                     crab.measure(size(count), lambda: redis_benchmark(16390, pipeline, 100_000, size(count), command)))
            note("throttlecrab HTTP /throttle", crab.measure(None, lambda: wrk(18080, 4)))
            for clients, streams in ((50, 1), (4, 25)):
                note(f"throttlecrab gRPC c{clients}m{streams}",
                     crab.measure(size(60_000), lambda: h2load(18070, clients, streams, size(60_000))))
            crab.stop()
    report(rows, options)


def tails(tollway, size, rounds, note):
    """One server with 2M live keys: requests to 1k of them and to all of them, in turn.

    All are allowed, so that both do the same work, and every state outlives the run."""
    ours = Server(tollway(), 16380)
    lasting = ["CL.THROTTLE", "key:__rand_int__", "999999", "1", "1000"]
    redis_benchmark(16380, 64, 2_000_000, 8_000_000, lasting)  # fill
    for pipeline, count in ((1, 100_000), (16, 600_000), (64, 1_200_000)):
        n = size(count)
        redis_benchmark(16380, pipeline, 2_000_000, n, lasting)  # warm up
        for turn in range(rounds):
            both = ((1_000, "1k"), (2_000_000, "2M"))
            for keys, label in both if turn % 2 == 0 else reversed(both):
                note(f"tollway CL.THROTTLE P{pipeline}, {label} of 2M live keys",
                     ours.measure(n, lambda: redis_benchmark(16380, pipeline, keys, n, lasting)))
    ours.stop()


def unpipelined(tollway, throttle, size, rounds, note):
    """Single requests beside redis-server, which has one thread: by default and with two workers."""
    redis = Server(["redis-server", "--port", "16379", "--save", "", "--appendonly", "no"], 16379)
    ours = Server(tollway(), 16380)
    program, serve = tollway()[:2]
    two = Server([program, serve, "--http", "off", "--grpc", "off", "--resp", "127.0.0.1:16381", "--workers", "2"],
                 16381)
    subjects = (("redis INCR P1", redis, 16379, ["INCR", "key:__rand_int__"]),
                ("tollway CL.THROTTLE P1", ours, 16380, throttle),
                ("tollway CL.THROTTLE P1, 2 workers", two, 16381, throttle))
    n = size(100_000)
    for name, server, at, command in subjects:
        redis_benchmark(at, 16, 100_000, n, command)  # warm up
    for _ in range(rounds):
        for name, server, at, command in subjects:
            note(name, server.measure(n, lambda: redis_benchmark(at, 1, 100_000, n, command)))
    for _, server, _, _ in subjects:
        server.stop()


def attacked(tollway, size, rounds, note):
    """Single requests of four honest clients, alone and under attack in turn."""
    rules = "".join(f'[[policies]]\nname = "{name}"\nquota = "{quota}"\n' for name, quota in
                    (("honest", "1000000/1s"), ("flooded", "1/1h"), ("flooded-window", "1/1h")))
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(rules + 'algorithm = "sliding-window"\n[limits]\nslow_client = "2s"\n')
        file.flush()
        ours = Server(tollway("--config", file.name, "--memory-bytes", str(64 << 20)), 16380)
        command = ["TOLL.CHECK", "honest", "key:__rand_int__"]
        load = lambda: redis_benchmark(16380, 1, 10_000, size(100_000), command, clients=4)
        load()  # warm up
        for _ in range(rounds):
            note("honest clients alone", ours.measure(size(100_000), load))
            attack = subprocess.Popen([sys.executable, f"{HERE}/attack.py", "18080", "16380", "600"])
            time.sleep(3)
            note("honest clients under attack", ours.measure(size(100_000), load))
            attack.kill()
            attack.wait()
        ours.stop()


def compare(rows):
    """What was aimed at, as far as these rows tell: ratios of medians, and of the least disturbed rounds."""
    figures = lambda name, field: [row[field] for row in rows if row["what"] == name and row.get(field)]
    lines = []

    def ratio(what, one, other, field, bound):
        mine, theirs = figures(one, field), figures(other, field)
        if mine and theirs:
            middle, least = (pick(mine) / pick(theirs) for pick in (statistics.median, min))
            lines.append(f"| {what} | {bound} | {middle:.2f} | {least:.2f} |")

    for pipeline in (1, 16, 64):
        name = f"tollway CL.THROTTLE P{pipeline}, %s of 2M live keys"
        ratio(f"p99.9, 2M to 1k keys, pipeline {pipeline}", name % "2M", name % "1k", "p99.9_us", "≤ 2")
    ratio("p99 of honest clients, under attack to alone", "honest clients under attack", "honest clients alone",
          "p99_us", "≤ 3")
    for ours in ("tollway CL.THROTTLE P1", "tollway CL.THROTTLE P1 100k keys"):
        ratio("CPU, unpipelined, to redis INCR", ours, "redis INCR P1", "cpu_us_per_op", "≤ 1")
    for pipeline in (16, 64):
        ours = f"tollway CL.THROTTLE P{pipeline} 100k keys"
        ratio(f"CPU, pipeline {pipeline}, to redis INCR", ours, f"redis INCR P{pipeline}", "cpu_us_per_op", "< 1")
        ratio(f"CPU, pipeline {pipeline}, to a GCRA script", ours, f"redis EVALSHA gcra P{pipeline}",
              "cpu_us_per_op", "≤ 0.1")
        ratio(f"throughput, pipeline {pipeline}, to throttlecrab", ours, f"throttlecrab THROTTLE P{pipeline}",
              "rps", "≥ 5")
    ratio("CPU, HTTP, to throttlecrab", "tollway HTTP /throttle", "throttlecrab HTTP /throttle",
          "cpu_us_per_op", "≤ 0.7")
    for shape in ("c50m1", "c4m25"):
        ratio(f"CPU, gRPC {shape}, to throttlecrab", f"tollway gRPC {shape}", f"throttlecrab gRPC {shape}",
              "cpu_us_per_op", "≤ 0.9")
    head = ["", "| target | aimed at | medians | least of the rounds |", "|---|---|---|---|"]
    return head + lines if lines else []


def report(rows, options):
    names = list(dict.fromkeys(row["what"] for row in rows))
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    redis = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout.split()[2]
    lines = ["# The service beside its peers", "",
             f"`bench/serve/run.py tollway --rounds {options.rounds} --scale {options.scale}"
             f"{' --only ' + options.only if options.only else ''}`, "
             f"{os.cpu_count()} cores, {cpu}, Linux {platform.release()}, redis-server {redis}. "
             "Medians; client and server share the machine, which others used meanwhile: compare the CPU figures.", "",
             "| what | req/s | p50 µs | p99 µs | p99.9 µs | server CPU µs/op, median [min–max] |",
             "|---|---|---|---|---|---|"]
    for name in names:
        mine = [row for row in rows if row["what"] == name]
        median = lambda field: statistics.median([row[field] for row in mine if row.get(field) is not None] or [float("nan")])
        costs = [row["cpu_us_per_op"] for row in mine]
        lines.append(f"| {name} | {median('rps'):,.0f} | {median('p50_us'):.0f} | {median('p99_us'):.0f} | "
                     f"{median('p99.9_us'):.0f} | {statistics.median(costs):.2f} [{min(costs):.2f}–{max(costs):.2f}] |")
    lines += compare(rows)
    text = "\n".join(lines).replace("nan", "–") + "\n"
    print(text)
    if options.out:
        os.makedirs(os.path.dirname(options.out), exist_ok=True)
        open(options.out + ".md", "w").write(text)
        json.dump(rows, open(options.out + ".json", "w"), indent=1)


main()
