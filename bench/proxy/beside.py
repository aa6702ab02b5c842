#!/usr/bin/env python3
"""What a request costs two builds of the proxy, in turns, through each to one fake upstream.

    bench/proxy/beside.py OLD NEW [--requests 4000] [--rounds 7]      CPU µs, from /proc: the machine must be idle
    bench/proxy/beside.py OLD NEW --instructions [--requests 1000]    by callgrind: also beside others

OLD and NEW are release binaries. Instructions are those of N and of 3 N requests, subtracted, on one thread
and one connection; the kernel's are not among them. One binary differs from itself by 3 % with 1,000
requests, and by half with 50.
"""
import argparse, os, re, socket, statistics, subprocess, tempfile, threading

CONNECTIONS = 4
BODY = '{"type":5}'
HEAD = ("POST /api/v10/interactions/1/token/callback HTTP/1.1\r\nhost: {}\r\nauthorization: Bot one\r\n"
        "content-type: application/json\r\ncontent-length: {}\r\n\r\n")


class Running:
    """A process that says in its first line where it listens; ended with the block that uses it."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{command[0]} did not start: exit {self.process.wait()}")
        self.address = line.split()[-1].removeprefix("http://")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def cpu_us(self):
        tasks = f"/proc/{self.process.pid}/task"
        times = (open(f"{tasks}/{task}/schedstat").read().split()[0] for task in os.listdir(tasks))
        return sum(map(int, times)) / 1e3


def ask(address, requests):
    host, port = address.split(":")
    request = (HEAD.format(address, len(BODY)) + BODY).encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = connection.makefile("rb")
        for _ in range(requests):
            connection.sendall(request)
            status = answer.readline()
            assert status.split()[1].startswith(b"2"), status
            length = 0
            while (line := answer.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            answer.read(length)


def proxy(binary, upstream, *options, before=()):
    return Running(*before, binary, "proxy", "--profile", "discord", "--upstream", f"http://{upstream}",
                   "--listen", "127.0.0.1:0", *options)


def cpu(binaries, upstream, requests, rounds):
    rows = [[] for _ in binaries]
    with proxy(binaries[0], upstream) as old, proxy(binaries[1], upstream) as new:
        for round in range(rounds + 1):
            for row, it in zip(rows, (old, new)):
                before = it.cpu_us()
                threads = [threading.Thread(target=ask, args=(it.address, requests // CONNECTIONS))
                           for _ in range(CONNECTIONS)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
                row.append((it.cpu_us() - before) / (requests // CONNECTIONS * CONNECTIONS))
    return [statistics.median(row[1:]) for row in rows]


def instructions(binary, upstream, requests):
    def run(count):
        with tempfile.TemporaryDirectory() as place:
            out = os.path.join(place, "out")
            with proxy(binary, upstream, "--workers", "1",
                       before=("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}")) as it:
                ask(it.address, count)
            return int(re.search(r"^totals: (\d+)", open(out).read(), re.M).group(1))
    return (run(3 * requests) - run(requests)) / (2 * requests)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", nargs=2, metavar="BINARY")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--instructions", action="store_true")
    args = parser.parse_args()
    with Running(args.binaries[0], "fake-upstream", "--profile", "discord", "--listen", "127.0.0.1:0") as fake:
        if args.instructions:
            found = [instructions(binary, fake.address, args.requests or 1000) for binary in args.binaries]
        else:
            found = cpu(args.binaries, fake.address, args.requests or 4000, args.rounds)
    print(f"{found[0]:.2f} {found[1]:.2f} ratio {found[1] / found[0]:.3f}")


if __name__ == "__main__":
    main()
