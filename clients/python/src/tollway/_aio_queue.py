"""A queue of the service, and its worker, for asyncio."""

from __future__ import annotations

import asyncio
import itertools
import math
import signal
import time
from typing import Any, Awaitable, Callable, Sequence, Union

from . import _queue_words as words
from ._aio_http import AsyncCaller
from ._queue_words import (
    Enqueued,
    GiveUp,
    Job,
    Lease,
    LeaseLost,
    NewJob,
    Payload,
    RetryLater,
    sendable,
)
from ._worker import BEAT_AGAIN, PAUSES, REPORT_FOR, REPORTS_LAST, Work, _reason
from ._words import TollwayError, Unavailable

AsyncHandler = Callable[[Lease], Awaitable[Any]]


class AsyncQueue(words.NamedQueue, AsyncCaller):
    """As :class:`tollway.Queue`, for one event loop."""

    async def enqueue(self, payload: Payload, group: str = "", **options: Any) -> Enqueued:
        """Enqueues one job; ``options`` are the fields of :class:`tollway.NewJob`."""
        new = NewJob(payload, group, **options)
        return words.enqueued(await self._post("jobs", new.as_json()))

    async def enqueue_all(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueues several jobs, all or none; at most 1,000."""
        answer = await self._post("jobs/batch", {"jobs": [new.as_json() for new in jobs]})
        return [words.enqueued(fields) for fields in answer["jobs"]]

    async def job(self, id: int) -> Job:
        """What is known about a job."""
        answer = await self._call(f"{self._path}/jobs/{id}", method="GET")
        return words.job(words.checked(answer))

    async def cancel(self, id: int) -> bool:
        """Cancels a job: true if it is gone, false if its worker was asked to stop."""
        answer = await self._call(f"{self._path}/jobs/{id}", method="DELETE")
        return bool(words.checked(answer)["cancelled"] == "removed")

    async def result(self, id: int, timeout: float = 30.0) -> Union[str, bytes, None]:
        """Waits until a job is done, as :meth:`tollway.Queue.result`."""
        deadline = time.monotonic() + timeout
        while True:
            wait = words.wait_until(deadline)
            path = f"{self._path}/jobs/{id}?wait_ms={round(wait * 1000)}"
            found = words.job(words.checked(await self._call(path, method="GET", wait=wait)))
            if words.ended(found):
                return found.result
            if time.monotonic() >= deadline:
                raise TimeoutError(f"job {id} is {found.state} after {timeout} s")

    async def reschedule(self, id: int, delay: float = 0.0) -> bool:
        """Lets a job that waits start ``delay`` seconds from now; false if it runs already."""
        body = {"delay_ms": round(delay * 1000)}
        answer = await self._call(f"{self._path}/jobs/{id}/reschedule", body)
        return words.moved(answer)

    async def lease(self, max: int = 1, wait: float = 0.0, worker: str = "") -> list[Lease]:
        """Up to ``max`` jobs that may start; waits for the first, for at most a minute."""
        body = {"max": max, "wait_ms": round(wait * 1000), "worker": worker}
        answer = words.checked(await self._call(f"{self._path}/lease", body, wait=wait))
        return [words.lease(fields) for fields in answer["leases"]]

    async def ack(self, lease: Lease, result: Payload = None) -> None:
        """The job is done. Raises :class:`tollway.LeaseLost` if the lease is over, as the others
        below do."""
        told = {} if result is None else words.carried("result", result)
        await self._post("ack", {"token": lease.token, **lease.answer, **told})

    async def fail(self, lease: Lease, reason: str, retry: bool = True) -> None:
        """The attempt failed; without ``retry`` the job becomes a dead letter at once."""
        told = {"reason": reason, "retry": retry}
        await self._post("fail", {"token": lease.token, **lease.answer, **told})

    async def retry_later(self, lease: Lease, why: RetryLater) -> None:
        """The API refuses for now: the group waits."""
        await self._post("retry-later", {"token": lease.token, **why.as_json()})

    async def release(self, lease: Lease) -> None:
        """The job was not begun: others may have it at once."""
        await self._post("release", {"token": lease.token})

    async def heartbeat(self, leases: Sequence[Lease]) -> None:
        """Prolongs leases, and notes at each whether it is cancelled or lost."""
        body = {"leases": [{"token": lease.token} for lease in leases]}
        known = {lease.id: lease for lease in leases}
        for fields in (await self._post("heartbeat", body))["leases"]:
            words.beat(known, fields)

    async def progress(self, lease: Lease, done: int, total: int) -> None:
        """Tells how far the work is."""
        await self._post("progress", {"token": lease.token, "done": done, "total": total})

    def worker(self, **options: Any) -> Callable[[AsyncHandler], AsyncWorker]:
        """A decorator that makes an :class:`tollway.AsyncWorker` of a coroutine function."""
        return lambda handler: AsyncWorker(self, handler, **options)

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _post(self, call: str, body: Any) -> Any:
        return words.checked(await self._call(f"{self._path}/{call}", body))


class AsyncWorker(Work[AsyncQueue, AsyncHandler]):
    """As :class:`tollway.Worker`, with a task for each job."""

    def _prepare(self) -> None:
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._leased: asyncio.Event

    async def __call__(self, lease: Lease) -> Any:
        """The handler itself, as before it was decorated."""
        return await self._handler(lease)

    async def run(self, *, signals: bool = True) -> None:
        """Works until :meth:`stop`; with ``signals``, until SIGTERM or SIGINT. Jobs that run are
        finished; none is begun any more."""
        loop = asyncio.get_running_loop()
        told = (signal.SIGTERM, signal.SIGINT) if signals else ()
        for number in told:
            loop.add_signal_handler(number, self.stop)
        # Not before: older versions of Python bind it to a loop when it is made.
        self._leased = asyncio.Event()
        beats = asyncio.create_task(self._beat())
        try:
            await self._lease()
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            beats.cancel()
            for number in told:
                loop.remove_signal_handler(number)
        if self._mistake is not None:
            raise self._mistake

    def stop(self) -> None:
        """Begins no other job."""
        self._stopped = True

    async def _lease(self) -> None:
        failures = 0
        while not self._stopped:
            free = self._concurrency - len(self._tasks)
            if free == 0:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                leases = await self._queue.lease(free, self._wait, self._name)
                failures = 0
            except Unavailable:
                await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1
                continue
            for lease in leases:
                self._running[lease.id] = lease
                self._beat_at = min(self._beat_at, self._next_beat([lease]))
                self._leased.set()
                task = asyncio.create_task(self._work(lease))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _work(self, lease: Lease) -> None:
        try:
            if self._stopped:
                # It came while the worker was told to stop.
                await self._tell(lambda: self._queue.release(lease))
            else:
                await self._tell(await self._handle(lease))
        finally:
            self._running.pop(lease.id, None)

    async def _handle(self, lease: Lease) -> Callable[[], Awaitable[None]]:
        """What is to be told of a job after its handler had it."""
        queue = self._queue
        try:
            result = sendable(await self._handler(lease))
        except RetryLater as error:
            why = error
            return lambda: queue.retry_later(lease, why)
        except GiveUp as error:
            reason = _reason(error)
            return lambda: queue.fail(lease, reason, retry=False)
        except Exception as error:  # noqa: BLE001, whatever a handler raises is its job's failure
            reason = _reason(error)
            return lambda: queue.fail(lease, reason)
        return lambda: queue.ack(lease, result)

    async def _tell(self, report: Callable[[], Awaitable[None]]) -> None:
        give_up_at = time.monotonic() + REPORT_FOR
        for attempt in itertools.count():
            try:
                return await report()
            except LeaseLost:
                return  # Others have the job.
            except Unavailable:
                is_late = time.monotonic() >= give_up_at
                if is_late or (self._stopped and attempt >= REPORTS_LAST):
                    return  # Untold, the lease ends and the job is run again.
                await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
            except TollwayError as mistake:
                # No other attempt mends it: a wrong token, a result that is too long.
                self._mistake = self._mistake or mistake
                return self.stop()

    async def _beat(self) -> None:
        while True:
            pause = self._beat_at - time.monotonic()
            if pause > 0:
                self._leased.clear()
                try:
                    timeout = None if pause == math.inf else pause
                    await asyncio.wait_for(self._leased.wait(), timeout)
                except asyncio.TimeoutError:
                    pass
                continue
            leases = [lease for lease in self._running.values() if not lease.lost]
            self._beat_at = self._next_beat(leases)
            try:
                if leases:
                    await self._queue.heartbeat(leases)
            except TollwayError:
                # The service may be back before the lease ends; a mistake, the reports will tell.
                self._beat_at = min(self._beat_at, time.monotonic() + BEAT_AGAIN)
