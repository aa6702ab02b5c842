"""The words: charges asked, verdicts answered, and what may go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Mapping, Optional, Sequence, Union

OnFailure = Literal["allow", "deny", "raise"]

Limit = Mapping[str, Any]
"""A limit that comes with the call: the fields of a policy in a configuration, such as
``{"algorithm": "leaky-bucket", "size": 10, "drip_interval": "1s"}``."""


class TollwayError(Exception):
    """Anything that is not an answer."""


class Unavailable(TollwayError):
    """The service, or its store, did not answer in time."""


class Rejected(TollwayError):
    """The service refuses the request itself: an unknown policy, a wrong token, a cost of zero.

    A mistake of the caller's: raised whatever ``on_failure`` says.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


class Denied(TollwayError):
    """Raised by the decorator in place of a call that is not allowed."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"denied by {verdict.denied_by}, retry after {verdict.retry_after}")
        self.verdict = verdict


@dataclass(frozen=True)
class Charge:
    """Units asked of one policy, by its name or as it is, for one key."""

    policy: Union[str, Limit]
    key: str
    cost: int = 1

    def as_json(self) -> dict[str, Any]:
        field = "policy" if isinstance(self.policy, str) else "limit"
        return {field: self.policy, "key": self.key, "cost": self.cost}


@dataclass(frozen=True)
class ChargeVerdict:
    """What became of one charge. Times are in seconds."""

    policy: str
    allowed: bool
    limit: int
    remaining: int
    reset_after: float
    retry_after: Optional[float]
    """``None`` if allowed, or if no wait helps."""
    grace_used: Optional[int] = None
    """Units of the grace band of a soft limit that are used; ``None`` if the limit has none."""


@dataclass(frozen=True)
class Verdict:
    """What became of a request: every charge was taken, or none."""

    allowed: bool
    denied_by: Optional[str] = None
    denied_by_owner: Optional[str] = None
    """The owner whose floor and ceiling leave nothing, if the policy has owners."""
    charges: Sequence[ChargeVerdict] = ()
    degraded: bool = False
    """The service answered without its store."""
    failed: bool = False
    """The service did not answer: ``on_failure`` did."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Rate-limit header fields to pass on to whoever asked you."""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds until the same request is allowed; ``None`` if it is, or if no wait helps."""
        waits = [charge.retry_after for charge in self.charges if not charge.allowed]
        if not waits or any(wait is None for wait in waits):
            return None
        return max(wait for wait in waits if wait is not None)

    @property
    def remaining(self) -> Optional[int]:
        """The least that is left under any of the policies."""
        return min((charge.remaining for charge in self.charges), default=None)
