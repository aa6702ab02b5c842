#!/usr/bin/env python3
"""Measures the proxy beside a bare upstream and @discordjs/proxy, in one run on one machine.

    bench/proxy/run.py [TOLLGATE] [--seconds 5] [--rounds 3] [--buckets 100000] [--out FILE]

Needs wrk, node and `scripts/install-peers`; TOLLGATE defaults to target/release/tollgate. For each
subject: requests per second, latency percentiles over 8 connections, and CPU microseconds per request
of the process in the middle, from /proc. Then the memory of idle buckets: resident bytes before and
after a request to each of many channels.
"""
import argparse, json, os, platform, re, statistics, subprocess, sys, tempfile, time, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


def cpu_us(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_US


def resident(pid):
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return int(re.search(r"^Rss:\s+(\d+) kB", rollup.read(), re.M).group(1)) * 1024


class Running:
    """A process that says in its first line where it listens."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
        self.url = self.process.stdout.readline().split()[-1]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def wrk(url, script, seconds, connections=8):
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", f"{HERE}/{script}", url]
    text = subprocess.run(command, capture_output=True, text=True, timeout=600).stdout
    micros = {"us": 1, "ms": 1e3, "s": 1e6}
    at = lambda p: round(next(float(n) * micros[u] for n, u in
                              re.findall(rf"^\s+{p}%\s+([\d.]+)(us|ms|s)$", text, re.M)))
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return {"requests": int(re.search(r"(\d+) requests in", text).group(1)),
            "rps": round(float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1))),
            "p50_us": at(50), "p99_us": at(99), "failed": int(failed.group(1)) if failed else 0}


def measure(url, pid, seconds):
    before = cpu_us(pid)
    row = wrk(f"{url}/api/v10/interactions/1/token/callback", "callback.lua", seconds)
    row["cpu_us"] = round((cpu_us(pid) - before) / row["requests"], 1)
    return row


def median(rows):
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def latency(tollgate, seconds, rounds):
    fake = Running([tollgate, "fake-upstream", "--profile", "discord"])
    ours = Running([tollgate, "proxy", "--profile", "discord", "--upstream", fake.url, "--listen", "127.0.0.1:0"])
    peers = os.path.join(ROOT, "target", "peers")
    script = os.path.join(peers, "rival.mjs")
    with open(os.path.join(HERE, "rival.mjs")) as source, open(script, "w") as copy:
        copy.write(source.read())
    rival = Running(["node", script, fake.url])
    subjects = {"bare upstream": fake, "tollgate proxy": ours, "@discordjs/proxy 2.1.1": rival}
    rows = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            rows[name].append(measure(subject.url, subject.process.pid, seconds))
    for subject in subjects.values():
        subject.stop()
    return {name: median(found) for name, found in rows.items()}


def memory(tollgate, buckets):
    """Resident bytes per idle bucket, with a profile that has no limit over all routes."""
    profile = open(os.path.join(ROOT, "crates/tollgate-upstream/profiles/discord.toml")).read()
    profile = re.sub(r"\[global\].*?(?=\n#|\n\[)", "", profile, flags=re.S)
    spec = open(os.path.join(ROOT, "crates/tollgate-sim/src/upstream/profiles/discord.toml")).read()
    spec = re.sub(r"^global = .*$", "", spec, flags=re.M)
    with tempfile.TemporaryDirectory() as place:
        for name, text in (("profile.toml", profile), ("spec.toml", spec)):
            with open(os.path.join(place, name), "w") as file:
                file.write(text)
        fake = Running([tollgate, "fake-upstream", "--spec", f"{place}/spec.toml", "--faster", "50"])
        ours = Running([tollgate, "proxy", "--profile", f"{place}/profile.toml", "--upstream", fake.url,
                        "--listen", "127.0.0.1:0"])
        wrk(ours.url, "callback.lua", 1)
        before = resident(ours.process.pid)
        sent = 0
        while sent < buckets:
            sent += wrk(ours.url, "channels.lua", 5)["requests"] if sent == 0 else more(ours, sent, buckets)
        after = resident(ours.process.pid)
        ours.stop(), fake.stop()
    return {"buckets": sent, "resident_bytes": after - before, "bytes_per_bucket": round((after - before) / sent, 1)}


def more(ours, sent, buckets):
    """Further channels, from where the script stopped."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua", delete=False, dir=HERE) as script:
        text = open(os.path.join(HERE, "channels.lua")).read()
        script.write(text.replace("1000000", str(1_000_000 + sent + 1_000)))
    try:
        return wrk(ours.url, os.path.basename(script.name), 5)["requests"]
    finally:
        os.unlink(script.name)


def table(found, idle):
    bare = found["bare upstream"]
    lines = ["| subject | requests/s | p50 µs | p99 µs | added p50 | added p99 | CPU µs/request |", "|---|---|---|---|---|---|---|"]
    for name, row in found.items():
        lines.append(f"| {name} | {row['rps']:.0f} | {row['p50_us']:.0f} | {row['p99_us']:.0f} | "
                     f"{row['p50_us'] - bare['p50_us']:.0f} | {row['p99_us'] - bare['p99_us']:.0f} | {row['cpu_us']} |")
    if idle:
        lines += ["", f"{idle['buckets']} idle buckets: {idle['bytes_per_bucket']} resident bytes each."]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tollgate", nargs="?", default=os.path.join(ROOT, "target/release/tollgate"))
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--buckets", type=int, default=100_000)
    parser.add_argument("--out")
    args = parser.parse_args()
    found = latency(args.tollgate, args.seconds, args.rounds)
    idle = memory(args.tollgate, args.buckets) if args.buckets else None
    text = table(found, idle)
    print(text)
    if args.out:
        command = "bench/proxy/run.py " + " ".join(arg for arg in sys.argv[1:] if "--out" not in arg and arg != args.out)
        machine = f"{os.cpu_count()} processors, {platform.system()} {platform.release()}"
        with open(args.out, "w") as file:
            file.write(f"# The proxy beside a bare upstream and @discordjs/proxy\n\n`{command.strip()}` on {machine}, "
                       f"load 1 min {os.getloadavg()[0]:.1f}.\n\n{text}\n\n```json\n"
                       f"{json.dumps({'latency': found, 'idle': idle}, indent=1)}\n```\n")


if __name__ == "__main__":
    main()
