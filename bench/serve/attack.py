#!/usr/bin/env python3
"""Attacks a service on loopback for some seconds: bench/serve/attack.py HTTP_PORT RESP_PORT SECONDS

Each attack is bounded in rate, so that what honest clients feel is the service's doing and not the
attackers' use of the processors: floods of new and of very long keys, clients that never read, never
finish or reset their connections.
"""
import itertools, socket, struct, sys, threading, time

HTTP, RESP, SECONDS = (int(word) for word in sys.argv[1:4])
END = time.monotonic() + SECONDS


def connect(port):
    stream = socket.create_connection(("127.0.0.1", port))
    stream.settimeout(0.2)
    return stream


def flood(policy, batch, length, pause):
    """New keys, each exhausted by its first charge."""
    stream = connect(RESP)
    for turn in itertools.count():
        if time.monotonic() > END:
            return
        keys = (str(turn * batch + at).zfill(length) for at in range(batch))
        try:
            stream.sendall("".join(f"TOLL.CHECK {policy} {policy}{length}{key}\r\n" for key in keys).encode())
            while len(stream.recv(65536)) == 65536:
                pass
        except OSError:
            stream = connect(RESP)
        time.sleep(pause)


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def shut_window(streams):
    """An HTTP/2 connection that asks for the largest document and lets nothing come."""
    head = b"\x82\x86\x04\x0d/openapi.json\x01\x09localhost"
    opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"\0\4\0\0\0\0")
    return opening + b"".join(frame(1, 5, 2 * at + 1, head) for at in range(streams))


def hold(count, kinds):
    """Connections that send `kinds` in turn and then nothing; opened again when they are closed."""
    held = [None] * count
    while time.monotonic() < END:
        for at in range(count):
            port, text = kinds[at % len(kinds)]
            try:
                if held[at] is None:
                    held[at] = connect(port)
                    held[at].sendall(text)
                    held[at].setblocking(False)
                elif held[at].recv(1, socket.MSG_PEEK) == b"":
                    held[at].close()
                    held[at] = None
            except BlockingIOError:
                pass
            except OSError:
                held[at] = None
        time.sleep(0.2)


def reset():
    """Connections that end with answers unread."""
    while time.monotonic() < END:
        try:
            with connect(RESP) as stream:
                stream.sendall(b"TOLL.CHECK flooded victim\r\n" * 50)
                stream.recv(1)
        except OSError:
            pass
        time.sleep(0.02)


silent = [(RESP, b""), (HTTP, b""), (RESP, b"*2\r\n$10\r\nTOLL"), (RESP, b"*1\r\n$1048576\r\nx"),
          (HTTP, b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\n"), (HTTP, b"PRI * HTTP/2.0\r\n")]
greedy = [(HTTP, b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100), (HTTP, shut_window(100)),
          (RESP, b"PING\r\n" * 20_000)]
attacks = [(flood, "flooded", 100, 8, 0.02), (flood, "flooded-window", 50, 8, 0.02), (flood, "flooded", 2, 65_000, 0.05),
           (hold, 120, silent), (hold, 12, greedy), (reset,)]
threads = [threading.Thread(target=attack, args=rest) for attack, *rest in attacks]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
