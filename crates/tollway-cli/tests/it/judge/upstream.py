"""An API that judges: it limits as six public APIs do, and records what it served and refused.

    upstream.py NAME OPTIONS BODIES...

OPTIONS is JSON: limits by name as [size, period in seconds], and `latency`, the bounds in
milliseconds between which answers take. BODIES are TOML files with the bodies that clients of that
API read. The first line that it prints is where it listens.

    GET /_judge/record    every call in order: when it arrived and was answered, in seconds; the
                          route; which limit refused it, or null. And for how long, all in all,
                          the machine let this program wait since the first call
"""

import asyncio
import json
import random
import sys
import time
import tomllib
from datetime import datetime, timezone

from apis import APIS, Call

BODY_MAX = 64 << 20
# How long a sleep is, and what it takes longer on a machine that does nothing else.
NAP, TIMER = 0.005, 0.002


class Upstream:
    def __init__(self, name, options, bodies):
        self.api = APIS[name](options)
        self.bodies = bodies
        self.low, self.high = options.get("latency", [5, 5])
        # The order of answers is the same in every run that sends the same calls.
        self.chance = random.Random(options.get("seed", 1))
        self.record, self.started, self.number = [], None, 1_000_000
        self.late = 0.0

    async def watch_the_machine(self):
        """Sleeps shortly again and again: what a sleep takes too long, everybody is late by."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(NAP)
            if self.started is not None:
                self.late += max(0.0, time.monotonic() - before - NAP - TIMER)

    async def answer(self, call):
        now = time.monotonic()
        if self.started is None:
            self.started = now
        decision = self.api.decide(call, now)
        entry = {"at": now - self.started, "answered": None, "refused": decision.refused}
        # With what an API may limit by beside the path, so that limits are told apart.
        entry["route"] = " ".join([call.method, call.path, *by_field(call)])
        self.record.append(entry)
        await asyncio.sleep(self.chance.uniform(self.low, self.high) / 1000)
        entry["answered"] = time.monotonic() - self.started
        for permit in decision.permits:
            permit.give_back()
        if decision.refused:
            return decision.status, decision.headers, json.dumps(decision.body).encode()
        status, body = self.served(call)
        return status, decision.headers, body

    def served(self, call):
        self.number += 1
        for answer in self.bodies["answers"]:
            method, _, path = answer["request"].partition(" ")
            names = fit(path, call.parts) if method == call.method else None
            if names is not None:
                status = answer.get("status", 200)
                return status, self.fill(answer.get("body", ""), call, names).encode()
        return 404, self.fill(self.bodies["errors"]["404"]["body"], call, {}).encode()

    def fill(self, text, call, names):
        """Replaces `<word>` in a body; see the crate documentation of `fake_api::bodies`."""
        out, rest = [], text
        while "<" in rest:
            before, _, rest = rest.partition("<")
            word, _, rest = rest.partition(">")
            out += [before, self.word(word, call, names)]
        return "".join([*out, rest])

    def word(self, word, call, names):
        kind, _, name = word.partition(".")
        name, _, otherwise = name.partition("=")
        match kind:
            case "id":
                return str(self.number)
            case "epoch":
                return str(int(time.time()))
            case "time":
                return datetime.now(timezone.utc).isoformat(timespec="seconds")
            case "path":
                return names[name]
            case "body" if name in call.fields:
                return json.dumps(call.fields[name])
        return otherwise or "null"


def by_field(call):
    """Slack's channel."""
    return [call.fields["channel"]] if "channel" in call.fields else []


def fit(path, parts):
    """The named parts of a path if it fits the template."""
    template = [part for part in path.split("/") if part]
    if len(template) != len(parts):
        return None
    names = {}
    for wanted, part in zip(template, parts):
        if wanted.startswith("{"):
            names[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return names


async def read_call(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding") == "chunked":
        body = await read_chunks(reader)
    else:
        body = await reader.readexactly(min(int(headers.get("content-length", 0)), BODY_MAX))
    return Call(method, target, headers, body)


async def read_chunks(reader):
    body = bytearray()
    while True:
        size = int((await reader.readline()).partition(b";")[0], 16)
        body += await reader.readexactly(size)
        await reader.readline()
        if size == 0 or len(body) > BODY_MAX:
            return bytes(body)


async def serve(upstream, reader, writer):
    try:
        while True:
            call = await read_call(reader)
            if call.path == "/_judge/record":
                told = {"calls": upstream.record, "late": upstream.late}
                status, headers, body = 200, {}, json.dumps(told).encode()
            else:
                status, headers, body = await upstream.answer(call)
            head = [f"HTTP/1.1 {status} Judged"]
            head += [f"{name}: {value}" for name, value in headers.items()]
            if status != 204:
                head += ["content-type: application/json", f"content-length: {len(body)}"]
            writer.write("\r\n".join([*head, "", ""]).encode() + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(name, options, *bodies):
    described = [tomllib.load(open(path, "rb")) for path in bodies]
    answers = [answer for one in described for answer in one["answers"]]
    upstream = Upstream(name, json.loads(options), {**described[0], "answers": answers})
    watch = asyncio.create_task(upstream.watch_the_machine())
    server = await asyncio.start_server(
        lambda reader, writer: serve(upstream, reader, writer), "127.0.0.1", 0, backlog=1024
    )
    port = server.sockets[0].getsockname()[1]
    print(f"judge  http://127.0.0.1:{port}", flush=True)
    await server.serve_forever()
    watch.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
