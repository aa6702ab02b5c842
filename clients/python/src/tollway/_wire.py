"""HTTP/1.1 and JSON as the service speaks them; no sockets here."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Tuple
from urllib.parse import urlsplit

from ._words import Charge, ChargeVerdict, OnFailure, Rejected, Unavailable, Verdict

BODY_BYTES_MAX = 4 << 20
HEAD_BYTES_MAX = 64 << 10

Target = Tuple[str, str]
"""A path and its body."""


@dataclass(frozen=True)
class Address:
    """Where the service is: a host and a port, with TLS or without, or a Unix socket."""

    host: str
    port: int
    tls: bool
    unix: Optional[str]

    @staticmethod
    def parse(url: str) -> Address:
        if url.startswith("unix:"):
            return Address("localhost", 0, False, url[len("unix:") :])
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is neither http://host:port nor https:// nor unix:/path")
        tls = parts.scheme == "https"
        return Address(parts.hostname, parts.port or (443 if tls else 80), tls, None)


class Caller:
    """What a client is told about its service, whichever way it waits for answers."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        token: Optional[str] = None,
        timeout: float = 0.25,
        on_failure: OnFailure = "allow",
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._address = Address.parse(url)
        self._token = token
        self._timeout = timeout
        self._on_failure: OnFailure = on_failure
        self._tls = tls or (ssl.create_default_context() if self._address.tls else None)
        self._prepare()

    def _prepare(self) -> None:
        """Makes what a client keeps between calls."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Unavailable(f"the answer is not JSON: {error}") from error


def request(
    address: Address, path: str, body: Any, token: Optional[str], method: str = "POST"
) -> bytes:
    """The bytes of a request; without a body if that is ``None``."""
    payload = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    host = f"[{address.host}]" if ":" in address.host else address.host
    head = [
        f"{method} {path} HTTP/1.1",
        f"host: {host}:{address.port}" if address.port else f"host: {host}",
    ]
    if body is not None:
        head += ["content-type: application/json", f"content-length: {len(payload)}"]
    if token:
        head.append(f"authorization: Bearer {token}")
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + payload


class Reader:
    """Collects the bytes of one answer until it is whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.keep_alive = True

    @property
    def is_empty(self) -> bool:
        return not self._bytes

    def feed(self, data: bytes) -> Optional[Answer]:
        """Adds what was read; the answer once it is whole."""
        self._bytes += data
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0:
            if len(self._bytes) > HEAD_BYTES_MAX:
                raise Unavailable("the head of the answer is too long")
            return None
        status, headers = self._head(bytes(self._bytes[:end]))
        self.keep_alive = headers.get("connection", "").lower() != "close"
        body = _body(headers, bytes(self._bytes[end + 4 :]))
        return None if body is None else Answer(status, headers, body)

    @staticmethod
    def _head(head: bytes) -> tuple[int, dict[str, str]]:
        first, *lines = head.decode("latin-1").split("\r\n")
        try:
            status = int(first.split(" ", 2)[1])
        except (IndexError, ValueError) as error:
            raise Unavailable("the answer is not HTTP") from error
        pairs = (line.partition(":") for line in lines)
        return status, {name.strip().lower(): value.strip() for name, _, value in pairs}


def _body(headers: Mapping[str, str], rest: bytes) -> Optional[bytes]:
    """The body if it is whole."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _chunks(rest)
    try:
        length = int(headers.get("content-length", "0"))
    except ValueError as error:
        raise Unavailable("the answer has no length") from error
    if not 0 <= length <= BODY_BYTES_MAX:
        raise Unavailable("the answer is too long")
    return rest[:length] if len(rest) >= length else None


def _chunks(rest: bytes) -> Optional[bytes]:
    """A proxy on the way may send a body in chunks."""
    body = b""
    while True:
        line, found, rest = rest.partition(b"\r\n")
        if not found:
            return None
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError as error:
            raise Unavailable("a chunk has no length") from error
        if size > BODY_BYTES_MAX - len(body):
            raise Unavailable("the answer is too long")
        if size == 0:
            return body if rest.startswith(b"\r\n") else None
        if len(rest) < size + 2:
            return None
        body, rest = body + rest[:size], rest[size + 2 :]


def checked(answer: Answer) -> Any:
    """The JSON of an answer that is one; denials are."""
    if answer.status == 200 or answer.status == 429:
        return answer.json()
    if answer.status >= 500:
        raise Unavailable(f"the service answered {answer.status}")
    raise Rejected(answer.status, detail(answer))


def detail(answer: Answer) -> str:
    """What a problem says about itself."""
    try:
        return str(json.loads(answer.body).get("detail", ""))
    except (ValueError, AttributeError):
        return ""


def asked(charges: Sequence[Charge]) -> Any:
    """The body that asks for these charges together."""
    if len(charges) == 1:
        return charges[0].as_json()
    return {"charges": [charge.as_json() for charge in charges]}


def verdict(body: Mapping[str, Any], headers: Mapping[str, str]) -> Verdict:
    """The verdict in a body."""
    told = {name: value for name, value in headers.items() if _is_limit_field(name)}
    charges = tuple(_charge(charge) for charge in body.get("charges", ()))
    return Verdict(
        allowed=bool(body["allowed"]),
        denied_by=body.get("denied_by"),
        denied_by_owner=body.get("denied_by_owner"),
        charges=charges,
        degraded=bool(body.get("degraded", False)),
        headers=told,
    )


def _is_limit_field(name: str) -> bool:
    return name == "retry-after" or name.startswith(("ratelimit", "x-ratelimit"))


def _charge(charge: Mapping[str, Any]) -> ChargeVerdict:
    wait = charge.get("retry_after_ms")
    return ChargeVerdict(
        policy=charge["policy"],
        allowed=charge["allowed"],
        limit=charge["limit"],
        remaining=charge["remaining"],
        reset_after=charge["reset_after_ms"] / 1000,
        retry_after=None if wait is None else wait / 1000,
        grace_used=charge.get("grace_used"),
    )


def fallen_back(on_failure: OnFailure, error: Unavailable) -> Verdict:
    """The verdict in place of one that the service did not give."""
    if on_failure == "raise":
        raise error
    return Verdict(allowed=on_failure == "allow", failed=True)
