"""The words of queues: jobs, leases, and what may become of them."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass, field
from typing import Any, Mapping, NoReturn, Optional, Union
from urllib.parse import quote

from . import _wire
from ._wire import Answer, Caller
from ._words import Rejected, TollwayError, Unavailable

Payload = Union[str, bytes, Mapping[str, Any], list[Any], int, float, bool, None]
"""Text and bytes are kept as they are; anything else as its JSON."""


class LeaseLost(TollwayError):
    """The lease is over: it expired, or the job was settled before."""


class JobFailed(TollwayError):
    """The job that was waited for is a dead letter, or gone."""


class RetryLater(TollwayError):
    """Raised by a handler: the API refuses for now, and the whole group is to wait.

    As long as ``wait`` says, in seconds, or as the header fields of the API's answer do, read by a
    ``profile`` if one is named. The refusal is not charged to the job as a failure.
    """

    def __init__(
        self,
        wait: Optional[float] = None,
        *,
        status: int = 429,
        headers: Optional[Mapping[str, str]] = None,
        profile: Optional[str] = None,
    ) -> None:
        super().__init__("retry later")
        if (wait is None) == (headers is None):
            raise ValueError("give either wait or headers")
        self.wait = wait
        self.status = status
        self.headers = headers
        self.profile = profile

    def as_json(self) -> dict[str, Any]:
        if self.headers is None:
            return {"wait_ms": max(0, round((self.wait or 0) * 1000))}
        told = {str(name): str(value) for name, value in self.headers.items()}
        body: dict[str, Any] = {"headers": told, "status": self.status}
        return body if self.profile is None else {**body, "profile": self.profile}


class GiveUp(TollwayError):
    """Raised by a handler: no other attempt helps, and the job becomes a dead letter."""


@dataclass(frozen=True)
class NewJob:
    """A job to be enqueued. Times are in seconds."""

    payload: Payload
    group: str = ""
    priority: int = 0
    weight: int = 1
    delay: Optional[float] = None
    start_at: Optional[float] = None
    """Seconds since the epoch, as ``time.time()`` has them."""
    start_within: Optional[float] = None
    """If it cannot start for so long, it is dead, or dropped if the queue says so."""
    key: Optional[str] = None
    """A second job with the same key is not enqueued: with one, a call can be repeated."""
    attempts_max: Optional[int] = None
    backoff: Optional[float] = None
    backoff_max: Optional[float] = None

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "group": self.group,
            "priority": self.priority,
            "weight": self.weight,
            "delay_ms": _ms(self.delay),
            "start_at_ms": _ms(self.start_at),
            "start_within_ms": _ms(self.start_within),
            "key": self.key,
            "attempts_max": self.attempts_max,
            "backoff_ms": _ms(self.backoff),
            "backoff_max_ms": _ms(self.backoff_max),
            **carried("payload", self.payload),
        }
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True)
class Enqueued:
    """A job that the queue has."""

    id: int
    duplicate: bool
    """There was one with this key: it is that one."""
    expected_at: Optional[float]
    """When it is expected to start, in seconds since the epoch."""


@dataclass(frozen=True)
class Job:
    """What is known about a job."""

    id: int
    state: str
    """``waiting``, ``running``, ``done`` or ``dead``."""
    group: str
    payload: Union[str, bytes]
    result: Union[str, bytes, None]
    reason: Optional[str]
    """Why it is a dead letter."""
    attempt: int
    failures: int
    fields: Mapping[str, Any]
    """All that the service answered."""


@dataclass
class Lease:
    """A job to be done, for as long as the lease lasts."""

    id: int
    group: str
    payload: Union[str, bytes]
    attempt: int
    failures: int
    priority: int
    weight: int
    token: str = field(repr=False)
    expires_at: float
    """Seconds since the epoch by the service's clock; heartbeats move it."""
    lasts: float
    """For how many seconds the lease lasts, from its beginning and from each heartbeat."""
    cancelled: bool = False
    """Somebody has cancelled the job: the work may stop."""
    lost: bool = False
    """The lease is over: another worker may have the job."""
    answer: dict[str, Any] = field(default_factory=dict, repr=False)
    """What :meth:`obey` saw last; it is told with what came of the job."""

    def json(self) -> Any:
        """The payload, read as JSON."""
        return json.loads(self.payload)

    def obey(
        self, status: int, headers: Mapping[str, str], profile: Optional[str] = None
    ) -> None:
        """Looks at an API's answer: a refusal (429, or 503 that says when to come back) raises
        :class:`RetryLater`, and the group waits as long as the header fields say. Of any other
        answer they are told with what comes of the job: if nothing is left of a limit, the group
        waits before it is refused."""
        told = {str(name).lower(): str(value) for name, value in headers.items()}
        # Nobody's business but the API's and its caller's.
        told.pop("set-cookie", None)
        if status == 429 or (status == 503 and "retry-after" in told):
            raise RetryLater(status=status, headers=told, profile=profile)
        self.answer = {"headers": told, "status": status}
        if profile is not None:
            self.answer["profile"] = profile


def sendable(result: Any) -> Any:
    """A handler's result; raises ``TypeError`` if it is neither bytes nor JSON."""
    if not isinstance(result, bytes):
        json.dumps(result)
    return result


def carried(name: str, value: Payload) -> dict[str, Any]:
    """A payload or a result as bodies carry it."""
    if isinstance(value, bytes):
        return {f"{name}_base64": base64.b64encode(value).decode()}
    return {name: value}


def _bytes(fields: Mapping[str, Any], name: str) -> Union[str, bytes, None]:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    text = fields.get(name)
    return None if text is None else str(text)


def _ms(seconds: Optional[float]) -> Optional[int]:
    return None if seconds is None else round(seconds * 1000)


class NamedQueue(Caller):
    """One queue of a service, for clients that wait for answers in their own way."""

    def __init__(
        self,
        name: str,
        url: str = "http://127.0.0.1:8080",
        *,
        token: Optional[str] = None,
        timeout: float = 5.0,
        tls: Any = None,
    ) -> None:
        super().__init__(url, token=token, timeout=timeout, tls=tls)
        self.name = name
        self._path = f"/v1/queues/{quote(name, safe='')}"


def enqueued(fields: Mapping[str, Any]) -> Enqueued:
    ready = fields.get("ready")
    expected_at = ready["expected_ms"] / 1000 if ready else None
    return Enqueued(fields["id"], bool(fields["duplicate"]), expected_at)


def job(fields: Mapping[str, Any]) -> Job:
    return Job(
        id=fields["id"],
        state=fields["state"],
        group=fields.get("group", ""),
        payload=_bytes(fields, "payload") or "",
        result=_bytes(fields, "result"),
        reason=fields.get("reason"),
        attempt=fields["attempt"],
        failures=fields["failures"],
        fields=fields,
    )


def lease(fields: Mapping[str, Any]) -> Lease:
    return Lease(
        id=fields["id"],
        group=fields["group"],
        payload=_bytes(fields, "payload") or "",
        attempt=fields["attempt"],
        failures=fields["failures"],
        priority=fields["priority"],
        weight=fields["weight"],
        token=fields["token"],
        expires_at=fields["expires_at_ms"] / 1000,
        lasts=(fields["expires_at_ms"] - fields["leased_at_ms"]) / 1000,
    )


def beat(leases: Mapping[int, Lease], fields: Mapping[str, Any]) -> None:
    """Notes what a heartbeat answered about one lease."""
    found = leases.get(fields["id"])
    if found is None or found.attempt != fields["attempt"]:
        return
    found.lost = fields["lease"] == "lost"
    found.cancelled = found.cancelled or fields["lease"] == "cancelled"
    if fields.get("expires_at_ms") is not None:
        found.expires_at = fields["expires_at_ms"] / 1000


def checked(answer: Answer) -> Any:
    """The JSON of an answer that is one."""
    if 200 <= answer.status < 300:
        return answer.json()
    if answer.status == 409:
        raise LeaseLost(_wire.detail(answer))
    if answer.status >= 500:
        raise Unavailable(f"the service answered {answer.status}: {_wire.detail(answer)}")
    raise Rejected(answer.status, _wire.detail(answer))


def ended(found: Job) -> bool:
    """Whether nothing more will become of a job; raises :class:`JobFailed` if it failed."""
    if found.state in ("waiting", "running"):
        return False
    if found.state != "done":
        _failed(found)
    return True


def wait_until(deadline: float) -> float:
    """How long one call is to wait, of those that go on until ``deadline``; in seconds."""
    return min(max(deadline - time.monotonic(), 0.0), 20.0)


def moved(answer: Answer) -> bool:
    """Whether a job was given another time: not if it runs already."""
    if answer.status == 409:
        return False
    checked(answer)
    return True


def _failed(found: Job) -> NoReturn:
    why = f": {found.reason}" if found.reason else ""
    raise JobFailed(f"job {found.id} is {found.state}{why}")
