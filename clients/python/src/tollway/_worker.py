"""A worker on threads: leases jobs, hands each to a function, and tells what came of it."""

from __future__ import annotations

import itertools
import math
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, Generic, Optional, TypeVar

from ._queue_words import GiveUp, Lease, LeaseLost, RetryLater, sendable
from ._words import TollwayError, Unavailable

if TYPE_CHECKING:
    from ._queue import Queue

Handler = Callable[[Lease], Any]

PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to reach a service that does not answer."""
REPORT_FOR = 60.0
"""For how long what came of a job is told to a service that does not answer, in seconds."""
BEAT_AGAIN = 0.5
"""How soon a heartbeat is repeated that the service has not heard, in seconds."""
REPORTS_LAST = 5
"""How often a worker that is told to stop tells it."""


AnyQueue = TypeVar("AnyQueue")
AnyHandler = TypeVar("AnyHandler")


class Work(Generic[AnyQueue, AnyHandler]):
    """What a worker is told, and what it remembers, whichever way it waits."""

    def __init__(
        self,
        queue: AnyQueue,
        handler: AnyHandler,
        *,
        concurrency: int = 1,
        heartbeat: Optional[float] = None,
        wait: float = 2.0,
        name: str = "",
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._heartbeat = heartbeat
        self._wait = wait
        self._name = name
        self._running: dict[int, Lease] = {}
        self._mistake: Optional[TollwayError] = None
        self._beat_at = math.inf
        self._prepare()

    def _prepare(self) -> None:
        """Makes what only this kind of worker keeps."""

    def _next_beat(self, leases: list[Lease]) -> float:
        """When these are to be prolonged, by the clock that never steps."""
        pauses = (self._heartbeat or lease.lasts / 3 for lease in leases)
        return time.monotonic() + min(pauses, default=math.inf)


class Worker(Work["Queue", Handler]):
    """Works on the jobs of a queue until it is stopped.

    What the handler returns becomes the job's result, unless it is ``None``. An exception is a
    failure and the job is tried again; :class:`tollway.RetryLater` lets the group wait,
    :class:`tollway.GiveUp` makes a dead letter of the job.

    ``concurrency`` jobs run at once, each on a thread. ``heartbeat`` is the time in seconds between
    two signs of life: a third of the queue's lease unless told. ``wait`` is how long one call waits
    for a job, and so the longest that :meth:`stop` takes beside the jobs that run.
    """

    def _prepare(self) -> None:
        self._stopped = threading.Event()
        self._room = threading.Semaphore(self._concurrency)
        self._changed = threading.Condition()
        """Guards what stands below, ``_running`` and ``_beat_at``."""
        self._is_over = False

    def __call__(self, lease: Lease) -> Any:
        """The handler itself, as before it was decorated."""
        return self._handler(lease)

    def run(self, *, signals: bool = True) -> None:
        """Works until :meth:`stop`; with ``signals``, and on the main thread, until SIGTERM or
        SIGINT. Jobs that run are finished; none is begun any more."""
        before = self._listen() if signals else {}
        self._is_over = False
        beats = threading.Thread(target=self._beat, daemon=True)
        beats.start()
        try:
            with ThreadPoolExecutor(self._concurrency, "tollway-worker") as pool:
                self._lease(pool)
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify()
            beats.join()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._mistake is not None:
            raise self._mistake

    def stop(self) -> None:
        """Begins no other job. Safe on any thread, and in a handler."""
        self._stopped.set()

    def _listen(self) -> dict[signal.Signals, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        told = (signal.SIGTERM, signal.SIGINT)
        return {number: signal.signal(number, lambda *_: self.stop()) for number in told}

    def _lease(self, pool: ThreadPoolExecutor) -> None:
        failures = 0
        while not self._stopped.is_set():
            # Room for one is waited for; what else is free is taken with it.
            if not self._room.acquire(timeout=self._wait):
                continue
            free = 1
            while free < self._concurrency and self._room.acquire(blocking=False):
                free += 1
            leases: list[Lease] = []
            try:
                if not self._stopped.is_set():
                    leases = self._queue.lease(free, self._wait, self._name)
                failures = 0
            except Unavailable:
                self._stopped.wait(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1
            finally:
                for _ in range(free - len(leases)):
                    self._room.release()
            for lease in leases:
                with self._changed:
                    self._running[lease.id] = lease
                    self._beat_at = min(self._beat_at, self._next_beat([lease]))
                    self._changed.notify()
                pool.submit(self._work, lease)

    def _work(self, lease: Lease) -> None:
        try:
            if self._stopped.is_set():
                # It came while the worker was told to stop.
                self._tell(lambda: self._queue.release(lease))
            else:
                self._tell(self._handle(lease))
        finally:
            with self._changed:
                self._running.pop(lease.id, None)
            self._room.release()

    def _handle(self, lease: Lease) -> Callable[[], None]:
        """What is to be told of a job after its handler had it."""
        try:
            result = sendable(self._handler(lease))
        except RetryLater as why:
            return _bound(self._queue.retry_later, lease, why)
        except GiveUp as why:
            return _bound(self._queue.fail, lease, _reason(why), False)
        except Exception as error:  # noqa: BLE001, whatever a handler raises is its job's failure
            return _bound(self._queue.fail, lease, _reason(error))
        return _bound(self._queue.ack, lease, result)

    def _tell(self, report: Callable[[], None]) -> None:
        give_up_at = time.monotonic() + REPORT_FOR
        for attempt in itertools.count():
            try:
                return report()
            except LeaseLost:
                return  # Others have the job.
            except Unavailable:
                is_late = time.monotonic() >= give_up_at
                if is_late or (self._stopped.is_set() and attempt >= REPORTS_LAST):
                    return  # Untold, the lease ends and the job is run again.
                time.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
            except TollwayError as mistake:
                # No other attempt mends it: a wrong token, a result that is too long.
                self._mistake = self._mistake or mistake
                return self.stop()

    def _beat(self) -> None:
        while True:
            with self._changed:
                while not self._is_over and (pause := self._beat_at - time.monotonic()) > 0:
                    self._changed.wait(None if pause == math.inf else pause)
                if self._is_over:
                    return
                leases = [lease for lease in self._running.values() if not lease.lost]
                self._beat_at = self._next_beat(leases)
            try:
                if leases:
                    self._queue.heartbeat(leases)
            except TollwayError:
                # The service may be back before the lease ends; a mistake, the reports will tell.
                with self._changed:
                    self._beat_at = min(self._beat_at, time.monotonic() + BEAT_AGAIN)


def _bound(report: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: report(*arguments)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]
