#!/usr/bin/env python3
"""Measures the proxy beside a bare upstream and @discordjs/proxy, in one run on one machine.

    bench/proxy/run.py [--seconds 5] [--rounds 3] [--buckets 100000] [--out FILE] [--binary TOLLWAY]

One command: it builds the release binary (unless --binary names one) and installs the rival and wrk if
they are missing. For each subject: requests per second, latency percentiles over 8 connections, and CPU
microseconds per request of the process in the middle, from /proc; subjects take turns, medians are told.
Then the memory of idle buckets: resident bytes before and after a request to each of many channels,
divided by the buckets that the proxy itself lists.
"""
import argparse, contextlib, json, os, platform, re, shutil, statistics, subprocess, sys, tempfile, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
CONNECTIONS = 8


def cpu_us(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_US


def resident(pid):
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return int(re.search(r"^Rss:\s+(\d+) kB", rollup.read(), re.M).group(1)) * 1024


class Running:
    """A process that says in its first line where it listens; ended with the block that uses it."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{command[0]} did not start: exit {self.process.wait()}")
        self.url, self.pid = line.split()[-1], self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def wrk(url, script, seconds):
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "10s", "--latency",
               "-s", script if os.path.isabs(script) else os.path.join(HERE, script), url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    text = run.stdout
    if run.returncode or "Requests/sec" not in text:
        raise SystemExit(f"wrk failed: {run.stderr or text}")
    micros = {"us": 1, "ms": 1e3, "s": 1e6}
    at = lambda p: round(next(float(n) * micros[u] for n, u in
                              re.findall(rf"^\s+{p}%\s+([\d.]+)(us|ms|s)$", text, re.M)))
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return {"requests": int(re.search(r"(\d+) requests in", text).group(1)),
            "rps": round(float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1))),
            "p50_us": at(50), "p99_us": at(99), "failed": int(failed.group(1)) if failed else 0}


def measure(subject, seconds):
    before = cpu_us(subject.pid)
    row = wrk(f"{subject.url}/api/v10/interactions/1/token/callback", "callback.lua", seconds)
    row["cpu_us"] = round((cpu_us(subject.pid) - before) / row["requests"], 1)
    return row


def median(rows):
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def latency(tollway, seconds, rounds):
    # Modules are found from where the script is.
    script = shutil.copy(os.path.join(HERE, "rival.mjs"), os.path.join(ROOT, "target", "peers", "rival.mjs"))
    with contextlib.ExitStack() as stack:
        start = lambda *command: stack.enter_context(Running(*command))
        fake = start(tollway, "fake-upstream", "--profile", "discord")
        subjects = {
            "bare upstream": fake,
            "tollway proxy": start(tollway, "proxy", "--profile", "discord", "--upstream", fake.url,
                                    "--listen", "127.0.0.1:0"),
            "@discordjs/proxy 2.1.1": start("node", script, fake.url),
        }
        for subject in subjects.values():
            measure(subject, 1)
        rows = {name: [] for name in subjects}
        for _ in range(rounds):
            for name, subject in subjects.items():
                rows[name].append(measure(subject, seconds))
    return {name: median(found) for name, found in rows.items()}


def without_global(path, pattern):
    with open(os.path.join(ROOT, path)) as file:
        text = file.read()
    found = re.sub(pattern, "", text, flags=re.S | re.M)
    if found == text:
        raise SystemExit(f"{path} has no limit over all routes any more: mend this script")
    return found


def memory(tollway, wanted):
    """Resident bytes per idle bucket, where nothing limits all routes together."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        profile, spec = os.path.join(place, "profile.toml"), os.path.join(place, "spec.toml")
        with open(profile, "w") as file:
            file.write(without_global("crates/tollway-upstream/profiles/discord.toml", r"^\[global\]\n([^\[#\n].*\n)*?(?=\n|#|\[)"))
        with open(spec, "w") as file:
            file.write(without_global("crates/tollway-sim/src/upstream/profiles/discord.toml", r"^global = [^\n]*$"))
        fake = stack.enter_context(Running(tollway, "fake-upstream", "--spec", spec))
        ours = stack.enter_context(Running(tollway, "proxy", "--profile", profile, "--upstream", fake.url,
                                           "--listen", "127.0.0.1:0", "--admin", "/-/tollway"))
        measure(ours, 2)
        before, counted, first = resident(ours.pid), 0, 1_000_000
        while counted < wanted:
            channels = os.path.join(place, "channels.lua")
            with open(os.path.join(HERE, "channels.lua")) as source, open(channels, "w") as copy:
                copy.write(source.read().replace("1000000", str(first)))
            sent = wrk(ours.url, channels, 2)["requests"]
            first += sent + 10 * CONNECTIONS
            now = count_buckets(f"{ours.url}/-/tollway")
            if now <= counted:
                raise SystemExit(f"{counted} buckets and no more")
            counted = now
        after = resident(ours.pid)
    return {"buckets": counted, "resident_bytes": after - before,
            "bytes_per_bucket": round((after - before) / counted, 1)}


def count_buckets(admin):
    count, cursor = 0, ""
    while cursor is not None:
        page = json.load(urllib.request.urlopen(f"{admin}/admin/buckets?max=1000{cursor}", timeout=60))
        count += len(page["buckets"])
        cursor = f"&cursor={page['next']}" if page.get("next") is not None else None
    return count


def table(found, idle):
    bare = found["bare upstream"]
    lines = ["| subject | requests/s | p50 µs | p99 µs | added p50 | added p99 | CPU µs/request | failed |",
             "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for name, row in found.items():
        lines.append(f"| {name} | {row['rps']:.0f} | {row['p50_us']:.0f} | {row['p99_us']:.0f} | "
                     f"{row['p50_us'] - bare['p50_us']:.0f} | {row['p99_us'] - bare['p99_us']:.0f} | "
                     f"{row['cpu_us']} | {row['failed']:.0f} |")
    if idle:
        lines += ["", f"{idle['buckets']} idle buckets: {idle['bytes_per_bucket']} resident bytes each."]
    return "\n".join(lines)


def prepare(binary):
    """The binary to measure, and what is needed beside it."""
    subprocess.run([os.path.join(ROOT, "scripts", "install-peers")], check=True)
    if not shutil.which("wrk"):
        packages = f". {ROOT}/scripts/packages.sh; apt update >/dev/null || true; quietly_install wrk"
        subprocess.run(["sh", "-c", packages], check=True)
    if binary:
        return os.path.abspath(binary)
    subprocess.run(["cargo", "build", "--release", "-p", "tollway-cli"], cwd=ROOT, check=True)
    return os.path.join(ROOT, "target", "release", "tollway")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--buckets", type=int, default=100_000)
    parser.add_argument("--out")
    args = parser.parse_args()
    tollway = prepare(args.binary)
    load = os.getloadavg()[0]
    found = latency(tollway, args.seconds, args.rounds)
    idle = memory(tollway, args.buckets) if args.buckets else None
    text = table(found, idle)
    print(text)
    if args.out:
        command = " ".join(["bench/proxy/run.py", *sys.argv[1:]])
        machine = f"{os.cpu_count()} processors, {platform.system()} {platform.release()}"
        with open(args.out, "w") as file:
            file.write(f"# The proxy beside a bare upstream and @discordjs/proxy\n\n`{command}` on {machine}; load "
                       f"before it {load:.1f}.\n\n{text}\n\n```json\n"
                       f"{json.dumps({'latency': found, 'idle': idle}, indent=1)}\n```\n")


if __name__ == "__main__":
    main()
