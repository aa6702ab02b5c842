"""The client for threads."""

from __future__ import annotations

import functools
import selectors
import socket
import ssl
import threading
import time
from typing import Any, Callable, Optional, Sequence, TypeVar, Union

from . import _wire
from ._wire import Address, Answer, Caller
from ._words import Charge, Denied, Unavailable, Verdict

IDLE_MAX = 8
"""Connections kept for the next request."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Tollway(Caller):
    """Asks a Tollway service; safe to share between threads.

    ``timeout`` bounds a whole request in seconds: looking up the name, connecting, asking,
    reading. Past it, ``on_failure`` answers.
    """

    def _prepare(self) -> None:
        self._idle: list[socket.socket] = []
        self._lock = threading.Lock()

    def check(self, policy: str, key: str, cost: int = 1) -> Verdict:
        """Takes the units if they are there."""
        return self.check_all([Charge(policy, key, cost)])

    def check_all(self, charges: Sequence[Charge]) -> Verdict:
        """Takes every charge, or none."""
        return self._ask("/v1/check", charges)

    def peek(self, policy: str, key: str, cost: int = 1) -> Verdict:
        """What a check would answer; takes nothing."""
        return self._ask("/v1/peek", [Charge(policy, key, cost)])

    def refund(self, policy: str, key: str, cost: int = 1) -> None:
        """Gives units back. Raises :class:`Unavailable` if the service does not answer."""
        _wire.checked(self._call("/v1/refund", Charge(policy, key, cost).as_json()))

    def reset(self, policy: str, key: str) -> None:
        """Forgets the key under the policy; needs the role admin."""
        _wire.checked(self._call("/v1/reset", {"policy": policy, "key": key}))

    def reserve(self, policy: str, key: str, cost: int) -> Reservation:
        """Takes units now, to be settled by :meth:`Reservation.commit` at their real cost."""
        try:
            answer = self._call("/v1/reserve", Charge(policy, key, cost).as_json())
            body = _wire.checked(answer)
        except Unavailable as error:
            return Reservation(self, _wire.fallen_back(self._on_failure, error), None)
        return Reservation(self, _wire.verdict(body, answer.headers), body.get("reservation"))

    def limited(
        self, policy: str, key: Union[str, Callable[..., str]], cost: int = 1
    ) -> Callable[[Function], Function]:
        """A decorator: the function runs if it is allowed, otherwise :class:`Denied` is raised.

        ``key`` is a text, or a function that finds it from the call's arguments.
        """

        def decorate(function: Function) -> Function:
            @functools.wraps(function)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                found = key(*args, **kwargs) if callable(key) else key
                verdict = self.check(policy, found, cost)
                if not verdict.allowed:
                    raise Denied(verdict)
                return function(*args, **kwargs)

            return guarded  # type: ignore[return-value]

        return decorate

    def close(self) -> None:
        """Closes the connections that wait for the next request."""
        with self._lock:
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.close()

    def __enter__(self) -> Tollway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, path: str, charges: Sequence[Charge]) -> Verdict:
        try:
            answer = self._call(path, _wire.asked(charges))
            return _wire.verdict(_wire.checked(answer), answer.headers)
        except Unavailable as error:
            return _wire.fallen_back(self._on_failure, error)

    def _call(self, path: str, body: Any) -> Answer:
        deadline = time.monotonic() + self._timeout
        data = _wire.request(self._address, path, body, self._token)
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


class Reservation:
    """Units taken, to be settled at their real cost; in a ``with`` block, cancelled on an error
    and committed as reserved otherwise."""

    def __init__(self, gate: Tollway, verdict: Verdict, name: Optional[str]) -> None:
        self._gate = gate
        self._name = name
        self.verdict = verdict

    def commit(self, cost: Optional[int] = None) -> None:
        """Settles at the real cost, or as reserved."""
        self._settle("/v1/commit", {} if cost is None else {"costs": [cost]})

    def cancel(self) -> None:
        """Gives everything back."""
        self._settle("/v1/cancel", {})

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.cancel()

    def _settle(self, path: str, body: dict[str, Any]) -> None:
        name, self._name = self._name, None
        if name is not None:
            _wire.checked(self._gate._call(path, {"reservation": name, **body}))


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
