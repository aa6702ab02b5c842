"""Quotas of one's own, for a key or a pattern: what is asked and what is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Callable, Generic, Mapping, Optional, Tuple, TypeVar, Union
from urllib.parse import quote

from ._wire import Answer, detail
from ._words import Rejected, Unavailable

Until = Union[str, datetime]
"""When something ends: a moment with its zone, RFC 3339, or ``2026-11-20 09:00 Europe/Berlin``."""


T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """What is sent, and how the answer is read, whether somebody waits for it or awaits it."""

    method: str
    path: str
    read: Callable[[Answer], T]
    body: Optional[dict[str, Any]] = None


@dataclass(frozen=True)
class Granted:
    """Units beyond a quota, until then."""

    units: int
    until: str


@dataclass(frozen=True)
class OwnQuota:
    """What was said of one key or pattern. Times are RFC 3339."""

    policy: str
    key: Optional[str]
    """``None`` if its bytes are no text; they are in ``key_bytes``."""
    key_bytes: bytes
    quota: Optional[str]
    until: Optional[str]
    grant: Optional[Granted]
    note: str
    by: str
    """The name of the token that set it."""
    at: str
    in_force: Optional[str]
    """The quota that holds, with what is granted; ``None`` if none does, for ``why_not``."""
    why_not: Optional[str]
    kept: str
    """``store`` for all nodes, ``file`` beside the snapshot, or until the ``process`` ends."""


def path(policy: str, key: Optional[str] = None) -> str:
    start = f"/v1/policies/{quote(policy, safe='')}/keys"
    return start if key is None else f"{start}/{quote(key, safe='')}"


def to_set(policy: str, key: str, body: dict[str, Any]) -> Call[OwnQuota]:
    return Call("PUT", path(policy, key), lambda answer: told(checked(answer)), body)


def to_get(policy: str, key: str) -> Call[Optional[OwnQuota]]:
    def read(answer: Answer) -> Optional[OwnQuota]:
        return None if is_missing(answer) else told(checked(answer))

    return Call("GET", path(policy, key), read)


def to_list(policy: str, after: Optional[str]) -> Call[Tuple[list[OwnQuota], Optional[str]]]:
    """The quotas of a page, and where the next one begins."""

    def read(answer: Answer) -> Tuple[list[OwnQuota], Optional[str]]:
        body = checked(answer)
        return [told(entry) for entry in body["keys"]], body["next"]

    return Call("GET", path(policy) + ("" if after is None else f"?after={after}"), read)


def to_remove(policy: str, key: str) -> Call[bool]:
    def read(answer: Answer) -> bool:
        if is_missing(answer):
            return False
        checked(answer)
        return True

    return Call("DELETE", path(policy, key), read)


def to_grant(policy: str, key: str, body: dict[str, Any]) -> Call[None]:
    def read(answer: Answer) -> None:
        checked(answer)

    return Call("POST", path(policy, key) + "/grant", read, body)


def said(until: Optional[Until], note: str, **words: Any) -> dict[str, Any]:
    """The body of a quota or a grant."""
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ValueError("until: a datetime needs a time zone")
        until = until.isoformat()
    return {**words, "note": note, **({} if until is None else {"until": until})}


def checked(answer: Answer) -> Any:
    """The JSON of an answer that is one."""
    if 200 <= answer.status < 300:
        return answer.json()
    if answer.status >= 500:
        raise Unavailable(f"the service answered {answer.status}: {detail(answer)}")
    raise Rejected(answer.status, detail(answer))


def is_missing(answer: Answer) -> bool:
    """Whether there is no such quota; an unknown policy is a mistake of the caller's."""
    return answer.status == 404 and detail(answer).startswith("key: ")


def told(body: Mapping[str, Any]) -> OwnQuota:
    grant = body["grant"]
    return OwnQuota(
        policy=body["policy"],
        key=body["key"],
        key_bytes=bytes.fromhex(body["key_hex"]),
        quota=body["quota"],
        until=body["until"],
        grant=None if grant is None else Granted(grant["units"], grant["until"]),
        note=body["note"],
        by=body["by"],
        at=body["at"],
        in_force=body["in_force"],
        why_not=body["why_not"],
        kept=body["kept"],
    )
