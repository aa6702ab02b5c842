"""A queue of the service, for threads."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional, Sequence, Union

from . import _queue_words as words
from ._queue_words import Enqueued, Job, Lease, NewJob, Payload, RetryLater
from ._sync_http import SyncCaller
from ._worker import Handler, Worker


class Queue(words.NamedQueue, SyncCaller):
    """One queue of a Tollway service; safe to share between threads.

    ``timeout`` bounds each call in seconds, beside the time that :meth:`lease` waits. A service
    that does not answer raises :class:`tollway.Unavailable`: give jobs a ``key``, and enqueue them
    again.
    """

    def enqueue(self, payload: Payload, group: str = "", **options: Any) -> Enqueued:
        """Enqueues one job; ``options`` are the fields of :class:`tollway.NewJob`."""
        new = NewJob(payload, group, **options)
        return words.enqueued(self._post("jobs", new.as_json()))

    def enqueue_all(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueues several jobs, all or none; at most 1,000."""
        body = {"jobs": [new.as_json() for new in jobs]}
        return [words.enqueued(fields) for fields in self._post("jobs/batch", body)["jobs"]]

    def job(self, id: int) -> Job:
        """What is known about a job."""
        answer = self._call(f"{self._path}/jobs/{id}", method="GET")
        return words.job(words.checked(answer))

    def cancel(self, id: int) -> bool:
        """Cancels a job: true if it is gone, false if its worker was asked to stop."""
        answer = self._call(f"{self._path}/jobs/{id}", method="DELETE")
        return bool(words.checked(answer)["cancelled"] == "removed")

    def result(self, id: int, timeout: float = 30.0) -> Union[str, bytes, None]:
        """Waits until a job is done, and returns its result.

        Raises :class:`tollway.JobFailed` if it becomes a dead letter, and ``TimeoutError``.
        """
        deadline = time.monotonic() + timeout
        while True:
            wait = words.wait_until(deadline)
            path = f"{self._path}/jobs/{id}?wait_ms={round(wait * 1000)}"
            found = words.job(words.checked(self._call(path, method="GET", wait=wait)))
            if words.ended(found):
                return found.result
            if time.monotonic() >= deadline:
                raise TimeoutError(f"job {id} is {found.state} after {timeout} s")

    def reschedule(self, id: int, delay: float = 0.0) -> bool:
        """Lets a job that waits start ``delay`` seconds from now; false if it runs already."""
        body = {"delay_ms": round(delay * 1000)}
        answer = self._call(f"{self._path}/jobs/{id}/reschedule", body)
        return words.moved(answer)

    def lease(self, max: int = 1, wait: float = 0.0, worker: str = "") -> list[Lease]:
        """Up to ``max`` jobs that may start; waits for the first, for at most a minute."""
        body = {"max": max, "wait_ms": round(wait * 1000), "worker": worker}
        answer = words.checked(self._call(f"{self._path}/lease", body, wait=wait))
        return [words.lease(fields) for fields in answer["leases"]]

    def ack(self, lease: Lease, result: Payload = None) -> None:
        """The job is done. Raises :class:`tollway.LeaseLost` if the lease is over, as the others
        below do."""
        told = {} if result is None else words.carried("result", result)
        self._post("ack", {"token": lease.token, **lease.answer, **told})

    def fail(self, lease: Lease, reason: str, retry: bool = True) -> None:
        """The attempt failed; without ``retry`` the job becomes a dead letter at once."""
        told = {"reason": reason, "retry": retry}
        self._post("fail", {"token": lease.token, **lease.answer, **told})

    def retry_later(self, lease: Lease, why: RetryLater) -> None:
        """The API refuses for now: the group waits."""
        self._post("retry-later", {"token": lease.token, **why.as_json()})

    def release(self, lease: Lease) -> None:
        """The job was not begun: others may have it at once."""
        self._post("release", {"token": lease.token})

    def heartbeat(self, leases: Sequence[Lease]) -> None:
        """Prolongs leases, and notes at each whether it is cancelled or lost."""
        body = {"leases": [{"token": lease.token} for lease in leases]}
        known = {lease.id: lease for lease in leases}
        for fields in self._post("heartbeat", body)["leases"]:
            words.beat(known, fields)

    def progress(self, lease: Lease, done: int, total: int) -> None:
        """Tells how far the work is."""
        self._post("progress", {"token": lease.token, "done": done, "total": total})

    def worker(self, **options: Any) -> Callable[[Handler], Worker]:
        """A decorator that makes a :class:`tollway.Worker` of a function."""
        return lambda handler: Worker(self, handler, **options)

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, call: str, body: Any) -> Any:
        return words.checked(self._call(f"{self._path}/{call}", body))
