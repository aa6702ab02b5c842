"""Connections of a client for threads, and what goes over them."""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from typing import Any, Callable, Optional, Sequence

from . import _wire
from ._wire import Address, Answer, Caller
from ._words import Unavailable

IDLE_MAX = 8
"""Connections kept for the next request."""


class SyncCaller(Caller):
    """Asks, and waits for the answer within a time; safe to share between threads."""

    def _prepare(self) -> None:
        self._idle: list[socket.socket] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the connections that wait for the next request."""
        with self._lock:
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.close()

    def _call(
        self, path: str, body: Any = None, *, method: str = "POST", wait: float = 0.0
    ) -> Answer:
        """``wait`` is how long the service may wait before it answers."""
        deadline = time.monotonic() + self._timeout + wait
        data = _wire.request(self._address, path, body, self._token, method)
        with self._lock:
            stream = self._idle.pop() if self._idle else None
        try:
            if stream is not None:
                # An idle connection may have been closed at the other end; a fresh one may not.
                answer = self._exchange(stream, data, deadline, is_fresh=False)
                if answer is not None:
                    return answer
            fresh = self._exchange(self._connect(deadline), data, deadline, is_fresh=True)
            assert fresh is not None
            return fresh
        except OSError as error:
            raise Unavailable(str(error)) from error

    def _exchange(
        self, stream: socket.socket, data: bytes, deadline: float, *, is_fresh: bool
    ) -> Optional[Answer]:
        reader = _wire.Reader()
        answer: Optional[Answer] = None
        try:
            _send(stream, data, deadline)
            while answer is None:
                piece = _receive(stream, deadline)
                if not piece:
                    raise ConnectionResetError("the service closed the connection")
                answer = reader.feed(piece)
        except (ConnectionError, ssl.SSLEOFError):
            if is_fresh or not reader.is_empty:
                raise
            return None
        finally:
            self._release(stream, answer is not None and reader.keep_alive)
        return answer

    def _release(self, stream: socket.socket, is_usable: bool) -> None:
        if is_usable:
            with self._lock:
                if len(self._idle) < IDLE_MAX:
                    self._idle.append(stream)
                    return
        stream.close()

    def _connect(self, deadline: float) -> socket.socket:
        if self._address.unix is not None:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stream.settimeout(_left(deadline))
            stream.connect(self._address.unix)
            stream.setblocking(False)
            return stream
        last: Optional[OSError] = None
        for family, kind, protocol, _, place in _resolve(self._address, deadline):
            stream = socket.socket(family, kind, protocol)
            try:
                stream.settimeout(_left(deadline))
                stream.connect(place)
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream.setblocking(False)
                return self._secure(stream, deadline)
            except OSError as error:
                stream.close()
                last = error
        raise last or OSError("the name has no address")

    def _secure(self, stream: socket.socket, deadline: float) -> socket.socket:
        if self._tls is None:
            return stream
        secured = self._tls.wrap_socket(
            stream, server_hostname=self._address.host, do_handshake_on_connect=False
        )
        _patiently(secured, secured.do_handshake, deadline)
        return secured


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise Unavailable("the service did not answer in time")
    return left


def _resolve(address: Address, deadline: float) -> Sequence[Any]:
    """Looks the name up. The system's resolver knows no timeout: a name is waited for on a thread
    of its own."""
    try:
        numeric = socket.AI_NUMERICHOST
        return socket.getaddrinfo(address.host, address.port, 0, socket.SOCK_STREAM, 0, numeric)
    except socket.gaierror:
        pass
    found: list[Any] = []

    def look() -> None:
        try:
            found.extend(socket.getaddrinfo(address.host, address.port, 0, socket.SOCK_STREAM))
        except OSError:
            pass

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_left(deadline))
    return list(found)


def _patiently(stream: socket.socket, step: Callable[[], Any], deadline: float) -> Any:
    """Repeats a step of a non-blocking socket until it is done or the time is up."""
    while True:
        try:
            return step()
        except (ssl.SSLWantReadError, BlockingIOError):
            _wait(stream, selectors.EVENT_READ, deadline)
        except ssl.SSLWantWriteError:
            _wait(stream, selectors.EVENT_WRITE, deadline)


def _wait(stream: socket.socket, event: int, deadline: float) -> None:
    # Not select.select: it fails once a process has more than a thousand files open.
    with selectors.DefaultSelector() as selector:
        selector.register(stream, event)
        if not selector.select(_left(deadline)):
            raise Unavailable("the service did not answer in time")


def _send(stream: socket.socket, data: bytes, deadline: float) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[stream.send(rest) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            _wait(stream, selectors.EVENT_WRITE, deadline)
        except ssl.SSLWantReadError:
            _wait(stream, selectors.EVENT_READ, deadline)


def _receive(stream: socket.socket, deadline: float) -> bytes:
    _left(deadline)
    return bytes(_patiently(stream, lambda: stream.recv(65_536), deadline))
