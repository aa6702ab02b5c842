#!/usr/bin/env python3
"""Compares scripts for one request of GCRA checks by the CPU time that a server spends on them.

    crates/tollway-redis/benches/scripts.py [--engine redis-server] [--rounds 30] [--only REGEX]
        [--scripts REGEX] [--depths 1,20] [--since COMMIT]

Every workload runs each of its scripts in turn, round after round, so that whatever else the machine
does hurts all of them alike. CPU time is that of the server's main thread as /proc/PID/schedstat
counts it: utime and stime of /proc/PID/stat together, in nanoseconds instead of ticks. Printed are
the median and the least of all rounds, the median of each round's ratio to the first script of
the workload, and the ratio of the least.

The first script is the one that was sent until 2026-11-18; those scripts are read from commit
c8c7539, the last that has them, and those of today from the tree. With --since COMMIT the first is
the script of one request as that commit has it.
"""

import argparse
import os
import re
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from math import gcd

BEFORE = "c8c7539"
FOLDER = "crates/tollway-redis/src/scripts"
KEYS = 1000
SKEW_US = 10_000
SECOND = 10**9


class Quota:
    """`units` per `period_ns`, with room for `burst`, in the limbs of gcra.lua."""

    def __init__(self, units, period_ns, burst):
        common = gcd(units, period_ns)
        self.scale, self.unit = units // common, period_ns // common
        self.capacity, self.cost = self.limbs(burst), self.limbs(1)
        self.life = str(self.cost[0] // 1000 + 3).encode()

    def limbs(self, units):
        micros, rest = divmod(units * self.unit, 1000 * self.scale)
        return [min(micros, 1 << 52), rest // self.scale, rest % self.scale]

    def is_whole(self):
        return self.scale == 1 and self.unit % 1000 == 0


QUOTAS = {
    # Keys that come back find their state, and none is denied.
    "whole": Quota(10, SECOND, 10**9),
    # The same; one unit is no whole number of microseconds.
    "fine": Quota(7, SECOND, 10**9),
    # States are gone when their key comes back.
    "new": Quota(10**6, SECOND, 10**8),
    "denied": Quota(1, 864_000 * SECOND, 1),
}
SHAPES = {"one charge": (1, 1), "three charges": (3, 1), "three keys": (3, 3)}


def identity(number):
    return struct.pack("<Q", 0x1234_5678_9ABC_DEF0 + number * 0x0101_0101)


def doubles(*numbers):
    return struct.pack(f"<{len(numbers)}d", *numbers)


def per_charge(charges, encode):
    return b"".join(map(encode, range(charges)))


def whole_arguments(quota, charges, _keys):
    one = lambda n: doubles(quota.capacity[0], quota.cost[0], SKEW_US) + identity(n)
    return [per_charge(charges, one) + quota.life]


def fine_arguments(quota, charges, _keys):
    one = lambda n: doubles(*quota.capacity, quota.scale, SKEW_US, *quota.cost) + identity(n)
    return [per_charge(charges, one) + quota.life]


def apart_arguments(quota, charges, _keys):
    one = lambda n: doubles(quota.capacity[0], quota.cost[0]) + identity(n)
    life = bytes([len(quota.life)]) + quota.life
    return [per_charge(charges, one) + (doubles(SKEW_US)) * charges + life * charges]


def apart_fine_arguments(quota, charges, _keys):
    one = lambda n: doubles(quota.capacity[0], quota.scale, *quota.cost) + identity(n)
    rare = doubles(*quota.capacity[1:], SKEW_US)
    life = bytes([len(quota.life)]) + quota.life
    return [per_charge(charges, one) + rare * charges + life * charges]


def one_request_arguments(quota, charges, keys):
    one = lambda n: identity(n) + doubles(quota.capacity[0], quota.cost[0])
    below = doubles(quota.scale, *quota.cost[1:], *quota.capacity[1:])
    rare = doubles(SKEW_US) * charges + (b"" if quota.is_whole() else below * charges)
    life = (bytes([len(quota.life)]) + quota.life).ljust(16, b"\0")
    return [per_charge(charges, one) + rare + life * keys]


def batch_arguments(quota, charges, keys):
    state = lambda n: (
        struct.pack("<BH", 1, n % keys + 1)
        + identity(n)
        + b"\0\0"
        + doubles(*quota.capacity, quota.scale, SKEW_US)
    )
    charge = lambda n: struct.pack("<HB", n + 1, 0) + doubles(*quota.cost)
    request = struct.pack("<BH", 1, charges) + bytes(16) + per_charge(charges, charge)
    return [b"", per_charge(charges, state), request, b""]


def before(*names):
    show = lambda name: ["git", "show", f"{BEFORE}:{FOLDER}/{name}.lua"]
    return "".join(subprocess.check_output(show(name), text=True) for name in names)


def today(*names):
    texts = []
    for name in names:
        with open(f"{FOLDER}/{name}.lua") as file:
            texts.append(file.read())
    return "".join(texts)


def write_lists(text, sign, end, numbers, write=lambda text, _: text):
    def one(match):
        item, _, between = match[1].rpartition("|")
        items = [((between if i else "") + item).replace(sign, str(n)) for i, n in enumerate(numbers)]
        return "".join(map(write, items, numbers))

    return re.sub(re.escape(sign + "{") + "(.*?)" + re.escape(end), one, text, flags=re.S)


def write_out_before(template, charges, _keys):
    """The template language of that commit: blocks and lists, once per charge."""
    lines = [line for line in template.splitlines() if not line.startswith("-- ")]
    numbers = range(1, charges + 1)
    text = write_lists("\n".join(lines) + "\n", "@", "}", numbers)
    block = lambda match: "".join(match[1].replace("@", str(number)) for number in numbers)
    return re.sub(r"--each\n(.*?)--end\n", block, text, flags=re.S)


def write_out(template, charges, keys):
    """As `write_out` of script.rs."""
    of_key = {1: range(1, charges + 1)} if keys == 1 else {n: [n] for n in range(1, keys + 1)}
    charges_of = lambda text, key: write_lists(text, "@", "@}", of_key[key])
    by_key = write_lists(template, "$", "$}", list(of_key), charges_of)
    return write_lists(by_key, "@", "@}", range(1, charges + 1))


def scripts_for(quota, charges, keys, since):
    """The scripts that can answer, by name: source and arguments. The first is what was sent."""
    names = []
    if since:
        text = subprocess.check_output(
            ["git", "show", f"{since}:{FOLDER}/gcra_one_request.lua"], text=True
        )
        arguments = one_request_arguments(quota, charges, keys)
        today_text = write_out(today("gcra_one_request"), charges, keys)
        return {
            f"gcra_one_request of {since}": (write_out(text, charges, keys), arguments),
            "gcra_one_request": (today_text, arguments),
        }
    if keys == 1:
        names += [("gcra_whole", whole_arguments), ("gcra_fine", fine_arguments)]
    if keys == charges:
        names += [("gcra_apart", apart_arguments), ("gcra_apart_fine", apart_fine_arguments)]
    scripts = {}
    for name, arguments in names:
        if quota.is_whole() or name.endswith("fine"):
            source = write_out_before(before(name), charges, keys)
            scripts[name] = (source, arguments(quota, charges, keys))
    source = write_out(today("gcra_one_request"), charges, keys)
    scripts["gcra_one_request"] = (source, one_request_arguments(quota, charges, keys))
    batch = batch_arguments(quota, charges, keys)
    scripts["gcra_check"] = (today("time", "gcra_check"), batch)
    whole = today("time") + "local algorithms = {}\n" + today("gcra", "decide")
    scripts["gcra, decide"] = (whole, batch)
    return scripts


class Server:
    def __init__(self, program):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.folder = tempfile.TemporaryDirectory()
        arguments = ["--port", str(port), "--save", "", "--dir", self.folder.name]
        self.process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
        for _ in range(200):
            try:
                self.socket = socket.create_connection(("127.0.0.1", port))
                break
            except OSError:
                time.sleep(0.05)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def cpu_ns(self):
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
            return int(file.read().split()[0])

    def ask(self, commands, count):
        """Sends commands and skips their answers; gives the last. An error ends the run, and so does
        nil, with which a script leaves the decision to another; in an array it is a new key."""
        self.socket.sendall(commands)
        buffer, at, answer, in_array = self.buffer, 0, None, False
        while count:
            end = buffer.find(b"\r\n", at)
            if end >= 0:
                kind, number = buffer[at : at + 1], buffer[at + 1 : end]
                is_nil = number == b"-1" and kind == b"$"
                if kind == b"-" or is_nil and not in_array:
                    raise RuntimeError(f"the server says {buffer[at:end]}")
                if kind == b"*":
                    count, at, in_array = count - 1 + int(number), end + 2, True
                    continue
                length = int(number) + 2 if kind == b"$" and not is_nil else 0
                if end + 2 + length <= len(buffer):
                    answer, at = buffer[end + 2 : end + length], end + 2 + length
                    count -= 1
                    continue
            buffer, at = buffer[at:] + self.socket.recv(1 << 16), 0
        self.buffer = buffer[at:]
        return answer


def command(*words):
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class Contender:
    def __init__(self, server, number, source, arguments, keys, depth):
        self.server, self.depth, self.times_us = server, depth, []
        sha = server.ask(command(b"SCRIPT", b"LOAD", source.encode()), 1)
        name = lambda n, key: b"t%c:g:k{user:%06d}%s" % (97 + number, n, b"k" * key)
        names = lambda n: [name(n, key) for key in range(keys)]
        asks = [
            command(b"EVALSHA", sha, b"%d" % keys, *names(n), *arguments) for n in range(KEYS)
        ]
        self.bytes = len(asks[0])
        self.batches = [b"".join(asks[n : n + depth]) for n in range(0, KEYS, depth)]
        # Each key is made, given a longer time to live, and changed in place.
        self.turn(3)

    def turn(self, turns):
        for _ in range(turns):
            for batch in self.batches:
                self.server.ask(batch, self.depth)

    def measure(self, turns):
        began = self.server.cpu_ns()
        self.turn(turns)
        self.times_us.append((self.server.cpu_ns() - began) / 1000 / turns / KEYS)


def compare(engine, workload, depth, options):
    shape, quota = workload
    (charges, keys), quota = SHAPES[shape], QUOTAS[quota]
    server = Server(engine)
    try:
        contenders = {}
        for number, (name, script) in enumerate(scripts_for(quota, charges, keys, options.since).items()):
            if number == 0 or re.search(options.scripts, name):
                contenders[name] = Contender(server, number, *script, keys, depth)
        for number in range(options.rounds):
            order = list(contenders.values())
            for contender in order if number % 2 else reversed(order):
                contender.measure(3 if depth == 1 else 10)
    finally:
        server.stop()
    first = next(iter(contenders.values()))
    for name, contender in contenders.items():
        ratios = [a / b for a, b in zip(contender.times_us, first.times_us)]
        median, least = statistics.median(contender.times_us), min(contender.times_us)
        print(
            f"| {engine} | {', '.join(workload)} | {depth} | {name} | {median:.2f} | {least:.2f} "
            f"| {statistics.median(ratios):.2f} | {least / min(first.times_us):.2f} "
            f"| {contender.bytes} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", action="append")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="")
    parser.add_argument("--scripts", default="")
    parser.add_argument("--depths", default="1,20")
    parser.add_argument("--since", default="")
    options = parser.parse_args()
    print(f"load {' '.join(map(str, os.getloadavg()))}\n")
    print("| engine | request | depth | script | median µs | least µs | ratio | of least | bytes sent |")
    print("|---|---|---|---|---|---|---|---|---|")
    for engine in options.engine or ["redis-server", "valkey-server"]:
        for workload in ((shape, quota) for shape in SHAPES for quota in QUOTAS):
            if re.search(options.only, ", ".join(workload)):
                for depth in map(int, options.depths.split(",")):
                    compare(engine, workload, depth, options)


if __name__ == "__main__":
    main()
