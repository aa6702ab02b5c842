"""A thin typed client of the Tollway rate limit service, without dependencies.

    from tollway import Tollway

    gate = Tollway("http://127.0.0.1:8080")
    if gate.check("api", "ada").allowed:
        ...

A denial is an answer, not an exception. A service that does not answer within the timeout is
handled as ``on_failure`` says: ``"allow"``, ``"deny"`` or ``"raise"``.

``Queue`` enqueues jobs and waits for their results, ``Worker`` works on them.
"""

from ._aio import AsyncReservation, AsyncTollway
from ._aio_queue import AsyncQueue, AsyncWorker
from ._asgi import RateLimitMiddleware
from ._own_quotas import Granted, OwnQuota
from ._queue import Queue
from ._queue_words import Enqueued, GiveUp, Job, JobFailed, Lease, LeaseLost, NewJob, RetryLater
from ._sync import Reservation, Tollway
from ._worker import Worker
from ._words import (
    Charge,
    ChargeVerdict,
    Denied,
    Limit,
    OnFailure,
    Rejected,
    TollwayError,
    Unavailable,
    Verdict,
)

__all__ = [
    "AsyncQueue",
    "AsyncReservation",
    "AsyncTollway",
    "AsyncWorker",
    "Charge",
    "ChargeVerdict",
    "Denied",
    "Enqueued",
    "GiveUp",
    "Granted",
    "Job",
    "JobFailed",
    "Lease",
    "LeaseLost",
    "Limit",
    "NewJob",
    "OnFailure",
    "OwnQuota",
    "Queue",
    "RateLimitMiddleware",
    "Rejected",
    "Reservation",
    "RetryLater",
    "Tollway",
    "TollwayError",
    "Unavailable",
    "Verdict",
    "Worker",
]
