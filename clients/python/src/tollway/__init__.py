"""A thin typed client of the Tollway rate limit service, without dependencies.

    from tollway import Tollway

    gate = Tollway("http://127.0.0.1:8080")
    if gate.check("api", "ada").allowed:
        ...

A denial is an answer, not an exception. A service that does not answer within the timeout is
handled as ``on_failure`` says: ``"allow"``, ``"deny"`` or ``"raise"``.
"""

from ._aio import AsyncReservation, AsyncTollway
from ._asgi import RateLimitMiddleware
from ._sync import Reservation, Tollway
from ._words import (
    Charge,
    ChargeVerdict,
    Denied,
    OnFailure,
    Rejected,
    TollwayError,
    Unavailable,
    Verdict,
)

__all__ = [
    "AsyncReservation",
    "AsyncTollway",
    "Charge",
    "ChargeVerdict",
    "Denied",
    "OnFailure",
    "RateLimitMiddleware",
    "Rejected",
    "Reservation",
    "Tollway",
    "TollwayError",
    "Unavailable",
    "Verdict",
]
