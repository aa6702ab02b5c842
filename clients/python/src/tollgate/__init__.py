"""A thin typed client of the Tollgate rate limit service, without dependencies.

    from tollgate import Tollgate

    gate = Tollgate("http://127.0.0.1:8080")
    if gate.check("api", "ada").allowed:
        ...

A denial is an answer, not an exception. A service that does not answer within the timeout is
handled as ``on_failure`` says: ``"allow"``, ``"deny"`` or ``"raise"``.
"""

from ._aio import AsyncReservation, AsyncTollgate
from ._asgi import RateLimitMiddleware
from ._sync import Reservation, Tollgate
from ._words import (
    Charge,
    ChargeVerdict,
    Denied,
    OnFailure,
    Rejected,
    TollgateError,
    Unavailable,
    Verdict,
)

__all__ = [
    "AsyncReservation",
    "AsyncTollgate",
    "Charge",
    "ChargeVerdict",
    "Denied",
    "OnFailure",
    "RateLimitMiddleware",
    "Rejected",
    "Reservation",
    "Tollgate",
    "TollgateError",
    "Unavailable",
    "Verdict",
]
