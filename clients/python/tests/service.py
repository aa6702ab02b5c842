"""The real service on a free port, and servers that misbehave."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

POLICIES = Path(__file__).parents[2] / "policies.toml"
QUEUES = """
[[queues]]
name = "mail"
attempts = 3
backoff = "1ms"
[[queues]]
name = "short"
lease = "3s"
[[queues]]
name = "single"
group_limits = ["concurrent 1"]
"""


class Service:
    """`tollway serve` until closed."""

    def __init__(self, token: str | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        config = Path(self._folder.name, "tollway.toml")
        config.write_text(POLICIES.read_text() + QUEUES)
        self.unix = str(Path(self._folder.name, "http.sock"))
        env = dict(os.environ)
        if token:
            env["TOLLWAY_TOKEN"] = token
        self.token = token
        self.url = self._start(config, "127.0.0.1:0", env)

    def _start(self, config: Path, http: str, env: dict[str, str]) -> str:
        command = [os.environ["TOLLWAY_BIN"], "serve", "--config", str(config)]
        self._child = subprocess.Popen(
            [*command, "--http", http, "--grpc", "off", "--resp", "off"],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        assert self._child.stdout is not None
        for line in self._child.stdout:
            name, where, *_ = line.split()
            if name == "HTTP":
                return f"http://{where}"
        raise AssertionError("the service did not start")

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._folder.cleanup()


class Misbehaving:
    """Accepts everybody; then says nothing (`silent`), or a byte now and then for ever (`drip`)."""

    def __init__(self, how: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._how = how
        self._over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        with stream:
            try:
                if self._how == "drip":
                    stream.sendall(b"HTTP/1.1 200 OK\r\nx: ")
                while not self._over.wait(0.02):
                    if self._how == "drip":
                        stream.sendall(b"y")
            except OSError:
                return

    def close(self) -> None:
        self._over.set()
        self._listener.close()


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
