#!/usr/bin/env python3
"""Jobs per second through enqueue, lease and acknowledge, ours beside BullMQ and apalis-redis.

    bench/queue/run.py [--jobs 20000] [--rounds 3] [--no-apalis] [--no-bullmq]

One machine, one run, a fresh redis-server per contender and round, in turns. For each: wall time of
both phases, and the CPU time of the server's main thread per job (INFO cpu), which does not depend
on how busy the machine is otherwise. Builds and installs what it needs under target/queue-bench.
The queue in a file of its own (redb) is measured by `cargo bench -p tollway-queue --bench queue`.
"""

import argparse
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "bench" / "queue"
TOOLS = ROOT / "target" / "queue-bench"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A redis-server of its own, nothing kept on disk: the peers do not differ in that."""

    def __init__(self, program):
        self.port = free_port()
        self.dir = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "no", "--dir", self.dir.name],
            stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while "PONG" not in self.ask("PING", quiet=True):
            if time.monotonic() > deadline:
                raise SystemExit("redis-server does not start")
            time.sleep(0.02)

    def ask(self, *words, quiet=False):
        command = ["redis-cli", "-p", str(self.port), *words]
        return subprocess.run(command, capture_output=True, text=True, check=not quiet).stdout

    def cpu_s(self):
        lines = dict(line.split(":", 1) for line in self.ask("INFO", "cpu").split() if ":" in line)
        return float(lines["used_cpu_user_main_thread"]) + float(lines["used_cpu_sys_main_thread"])

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.dir.cleanup()


def prepare(args):
    TOOLS.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cargo", "build", "--release", "-p", "tollway-queue", "--features", "redis",
                    "--bench", "shared"], cwd=ROOT, check=True)
    contenders = {}
    ours = sorted((ROOT / "target" / "release" / "deps").glob("shared-*"), key=os.path.getmtime)
    ours = [path for path in ours if os.access(path, os.X_OK) and path.suffix == ""][-1]
    groups = str(args.groups)
    for mode in ("single", "bulk"):
        contenders[f"tollway {mode}"] = lambda port, jobs, mode=mode: [
            str(ours), str(port), str(jobs), str(args.bytes), mode, groups]
    if args.bullmq:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, TOOLS / name)
        if not (TOOLS / "node_modules" / "bullmq").exists():
            subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"],
                           cwd=TOOLS, check=True)
        for mode in ("single", "bulk"):
            contenders[f"BullMQ {mode}"] = lambda port, jobs, mode=mode: [
                "node", str(HERE / "bullmq.mjs"), str(port), str(jobs), str(args.bytes), mode]
    if args.apalis:
        environment = {**os.environ, "CARGO_TARGET_DIR": str(TOOLS / "apalis")}
        subprocess.run(["cargo", "build", "--release", "--quiet", "--locked"],
                       cwd=HERE / "apalis", env=environment, check=True)
        binary = str(TOOLS / "apalis" / "release" / "tollway-queue-bench-apalis")
        # With more jobs waiting its script fails: "too many results to unpack".
        contenders["apalis-redis single"] = lambda port, jobs: [
            binary, str(port), str(min(jobs, 5000)), str(args.bytes)]
    return contenders


def measure(command, program):
    server = Server(program)
    try:
        before = server.cpu_s()
        done = subprocess.run(command(server.port), cwd=TOOLS, capture_output=True, text=True,
                              timeout=300)
        if done.returncode != 0:
            return {"error": done.stderr.strip().splitlines()[-1:] or ["failed"]}
        result = json.loads(done.stdout.strip().splitlines()[-1])
        result["cpu_us"] = (server.cpu_s() - before) / result["jobs"] * 1e6
        return result
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", default="redis-server")
    parser.add_argument("--no-apalis", dest="apalis", action="store_false")
    parser.add_argument("--no-bullmq", dest="bullmq", action="store_false")
    args = parser.parse_args()
    contenders = prepare(args)
    results = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for name, command in contenders.items():
            run = measure(lambda port: command(port, args.jobs), args.server)
            results[name].append(run)
            print(name, json.dumps(run), file=sys.stderr)
    print(f"{args.jobs} jobs of {args.bytes} bytes in {args.groups} groups, "
          f"median of {args.rounds} rounds\n")
    print("| contender | enqueue/s | lease+ack/s | end to end/s | server CPU per job |")
    print("|---|---|---|---|---|")
    for name, runs in results.items():
        good = [run for run in runs if "error" not in run]
        if not good:
            print(f"| {name} | failed: {runs[0]['error']} | | | |")
            continue
        rate = lambda seconds: statistics.median(run["jobs"] / seconds(run) for run in good)
        cpu = [run["cpu_us"] for run in good if "cpu_us" in run]
        cells = [rate(lambda run: run["enqueue_s"]), rate(lambda run: run["process_s"]),
                 rate(lambda run: run["enqueue_s"] + run["process_s"])]
        cpu_text = f"{statistics.median(cpu):.1f} µs" if cpu else "–"
        print(f"| {name} | {cells[0]:,.0f} | {cells[1]:,.0f} | {cells[2]:,.0f} | {cpu_text} |")


if __name__ == "__main__":
    main()
