"""Queues and workers against the real service."""

from __future__ import annotations

import asyncio
import threading
import time
import unittest
from typing import Any, Callable, Sequence
from unittest import mock

from service import Service, closed_port
from tollway import (
    AsyncQueue,
    GiveUp,
    JobFailed,
    Lease,
    LeaseLost,
    NewJob,
    Queue,
    Rejected,
    RetryLater,
    Unavailable,
    Worker,
)

PATIENCE = 30.0
"""A timeout that a busy machine does not reach."""


class WithQueue(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.queue = self.open("mail")

    def open(self, name: str) -> Queue:
        queue = Queue(name, self.service.url, timeout=PATIENCE)
        self.addCleanup(queue.close)
        return queue

    def work(self, handler: Callable[[Lease], Any], **options: Any) -> Worker:
        """A worker on a thread, stopped at the end of the test."""
        worker = Worker(self.queue, handler, wait=0.2, **options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(worker.stop)
        return worker


class QueueTest(WithQueue):
    def test_a_job_is_leased_settled_and_its_result_is_there(self) -> None:
        new = self.queue.enqueue({"to": "ada"}, "acme", priority=2, key="mail 7")
        self.assertFalse(new.duplicate)
        again = self.queue.enqueue({"to": "ada"}, "acme", key="mail 7")
        self.assertEqual((again.id, again.duplicate), (new.id, True))
        [lease] = self.queue.lease(max=5, wait=PATIENCE, worker="w1")
        self.assertEqual((lease.id, lease.group, lease.priority), (new.id, "acme", 2))
        self.assertEqual(lease.json(), {"to": "ada"})
        self.assertEqual(self.queue.job(new.id).state, "running")
        self.queue.progress(lease, 1, 2)
        self.queue.ack(lease, "sent")
        self.assertEqual(self.queue.result(new.id), "sent")
        with self.assertRaises(LeaseLost):
            self.queue.fail(lease, "too late")

    def test_payloads_and_results_keep_their_bytes(self) -> None:
        jobs = [NewJob(b"\xff\x00", "g"), NewJob("text \u00e9", "g"), NewJob(None, "g")]
        self.queue.enqueue_all(jobs)
        leases = self.queue.lease(max=3)
        self.assertEqual([lease.payload for lease in leases], [b"\xff\x00", "text \u00e9", ""])
        self.queue.ack(leases[0], b"\xfe")
        self.assertEqual(self.queue.result(leases[0].id), b"\xfe")

    def test_a_job_is_released_cancelled_or_waits_with_its_group(self) -> None:
        first = self.queue.enqueue("a", "g")
        [lease] = self.queue.lease()
        self.queue.release(lease)
        [lease] = self.queue.lease()
        self.assertFalse(self.queue.cancel(first.id), "its worker is asked to stop")
        self.queue.heartbeat([lease])
        self.assertTrue(lease.cancelled and not lease.lost)
        self.queue.ack(lease)
        second = self.queue.enqueue("b", "g")
        self.assertTrue(self.queue.cancel(second.id))
        self.queue.enqueue("c", "g")
        [lease] = self.queue.lease()
        with self.assertRaises(RetryLater) as refused:
            lease.obey(429, {"Retry-After": "3600"})
        self.queue.retry_later(lease, refused.exception)
        self.assertEqual(self.queue.lease(), [])
        lease.obey(200, {}), lease.obey(503, {})

    def test_an_answer_that_says_its_limit_is_spent_lets_the_group_wait(self) -> None:
        spent = {"RateLimit-Remaining": "0", "RateLimit-Reset": "3600", "Set-Cookie": "secret"}
        self.queue.enqueue_all([NewJob("a", "g"), NewJob("b", "g"), NewJob("c", "other")])
        first = next(lease for lease in self.queue.lease(max=3) if lease.payload == "a")
        first.obey(200, spent)
        self.assertNotIn("secret", str(first.answer))
        self.queue.ack(first, "done")
        self.assertEqual(self.queue.result(first.id), "done")
        self.queue.enqueue("d", "g")
        self.assertEqual(self.queue.lease(max=9), [])
        self.queue.enqueue("e", "other")
        [lease] = self.queue.lease(max=9)
        lease.obey(403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset-After": "60"}, "discord")
        self.queue.fail(lease, "no", retry=False)
        self.queue.enqueue("f", "other")
        self.assertEqual(self.queue.lease(max=9), [])

    def test_a_job_is_given_another_time_and_waited_for_no_longer_than_told(self) -> None:
        later = self.queue.enqueue("a", "g", delay=3600)
        with self.assertRaises(TimeoutError):
            self.queue.result(later.id, 0.01)
        self.assertTrue(self.queue.reschedule(later.id))
        [lease] = self.queue.lease()
        self.assertFalse(self.queue.reschedule(later.id, 60), "it runs already")
        self.queue.ack(lease)
        with self.assertRaises(Rejected):
            self.queue.reschedule(later.id)

    def test_mistakes_and_absence_are_told_apart(self) -> None:
        with self.assertRaises(Rejected):
            self.open("nowhere").enqueue("x")
        with self.assertRaises(Rejected):
            self.queue.enqueue("x", priority=900)
        away = Queue("mail", closed_port(), timeout=PATIENCE)
        with self.assertRaises(Unavailable):
            away.enqueue("x")


class WorkerTest(WithQueue):
    def test_what_a_handler_returns_is_the_result_and_what_it_raises_a_failure(self) -> None:
        def handle(lease: Lease) -> Any:
            if lease.payload == "hopeless":
                raise GiveUp("no such user")
            if lease.payload == "odd":
                return object()
            if lease.payload == "unlucky" and lease.failures < 2:
                raise OSError("try again")
            return {"attempt": lease.attempt}

        self.work(handle)
        lucky, unlucky, hopeless = (
            self.queue.enqueue(payload).id for payload in ("lucky", "unlucky", "hopeless")
        )
        self.assertEqual(self.queue.result(lucky, PATIENCE), '{"attempt":1}')
        self.assertEqual(self.queue.result(unlucky, PATIENCE), '{"attempt":3}')
        with self.assertRaisesRegex(JobFailed, "TypeError.*not JSON serializable"):
            self.queue.result(self.queue.enqueue("odd").id, PATIENCE)
        with self.assertRaisesRegex(JobFailed, "dead: GiveUp: no such user"):
            self.queue.result(hopeless, PATIENCE)

    def test_a_refusal_lets_the_whole_group_wait_and_is_no_failure(self) -> None:
        seen: list[str] = []

        def handle(lease: Lease) -> None:
            seen.append(str(lease.payload))
            if len(seen) == 1:
                raise RetryLater(wait=0.001)

        self.work(handle)
        first = self.queue.enqueue("first", "g", attempts_max=1)
        self.queue.result(first.id, PATIENCE)
        self.assertEqual(seen, ["first", "first"])

    def test_jobs_run_side_by_side_up_to_the_concurrency(self) -> None:
        together = threading.Barrier(3, timeout=PATIENCE)
        self.work(lambda lease: together.wait() and None, concurrency=3)
        jobs = self.queue.enqueue_all([NewJob("x", str(group)) for group in range(3)])
        for job in jobs:
            self.queue.result(job.id, PATIENCE)

    def test_a_lease_is_prolonged_while_its_job_runs(self) -> None:
        prolonged = threading.Event()

        def handle(lease: Lease) -> str:
            before = lease.expires_at
            while not prolonged.wait(0.01):
                if lease.expires_at > before:
                    prolonged.set()
            return "prolonged"

        self.work(handle, heartbeat=0.05)
        job = self.queue.enqueue("x")
        self.assertEqual(self.queue.result(job.id, PATIENCE), "prolonged")

    def test_a_short_lease_is_prolonged_in_time_though_heartbeats_are_not_heard(self) -> None:
        unheard = [0, 1]

        class Away(Queue):
            def heartbeat(self, leases: Sequence[Lease]) -> None:
                if unheard:
                    unheard.pop()
                    raise Unavailable("it is being restarted")
                super().heartbeat(leases)

        queue = Away("short", self.service.url, timeout=PATIENCE)
        self.addCleanup(queue.close)
        ended = threading.Event()
        worker = Worker(queue, lambda lease: ended.wait(PATIENCE) and lease.attempt, wait=0.2)
        thread = threading.Thread(target=worker.run)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(worker.stop)
        job = queue.enqueue("x")
        seen: set[int] = set()
        give_up_at = time.monotonic() + PATIENCE
        while len(seen) < 2 and time.monotonic() < give_up_at and not ended.wait(0.05):
            seen.add(queue.job(job.id).fields.get("expires_at_ms", 0))
        ended.set()
        self.assertTrue(len(seen) == 2 and 0 not in seen, seen)
        self.assertEqual(queue.result(job.id, PATIENCE), "1")

    def test_what_came_of_a_job_is_told_as_soon_as_the_service_answers_again(self) -> None:
        told = []

        class Away(Queue):
            def ack(self, lease: Lease, result: Any = None) -> None:
                told.append(result)
                if len(told) < 8:
                    raise Unavailable("it is being restarted")
                super().ack(lease, result)

        with mock.patch("tollway._worker.PAUSES", (0.001,)):
            self.queue = Away("mail", self.service.url, timeout=PATIENCE)
            self.addCleanup(self.queue.close)
            self.work(lambda lease: "sent")
            job = self.queue.enqueue("x")
            self.assertEqual(self.queue.result(job.id, PATIENCE), "sent")
        self.assertEqual(told, ["sent"] * 8)

    def test_stopping_finishes_what_runs_and_begins_nothing(self) -> None:
        queue = self.queue
        jobs = queue.enqueue_all([NewJob("first", "g"), NewJob("second", "g")])
        worker = Worker(queue, lambda lease: worker.stop() or "finished", wait=0.2)
        worker.run()
        self.assertEqual(queue.result(jobs[0].id), "finished")
        self.assertEqual(queue.job(jobs[1].id).state, "waiting")

    def test_a_mistake_ends_the_worker(self) -> None:
        with self.assertRaises(Rejected):
            Worker(self.open("nowhere"), print).run()


class AsyncQueueTest(WithQueue):
    def test_the_same_for_asyncio(self) -> None:
        asyncio.run(self.works())

    async def works(self) -> None:
        async with AsyncQueue("mail", self.service.url, timeout=PATIENCE) as queue:
            together = asyncio.Event()
            running = 0

            @queue.worker(concurrency=2, heartbeat=0.05, wait=0.2)
            async def handle(lease: Lease) -> Any:
                nonlocal running
                if lease.payload == "hopeless":
                    raise GiveUp("no")
                if lease.payload == "unlucky" and lease.failures == 0:
                    raise OSError("try again")
                running += 1
                if running == 2:
                    together.set()
                before = lease.expires_at
                await together.wait()
                while lease.expires_at == before:
                    await asyncio.sleep(0.01)
                return {"failures": lease.failures}

            work = asyncio.create_task(handle.run(signals=False))
            names = ["a", "unlucky"]
            jobs = await queue.enqueue_all([NewJob(name, name) for name in names])
            later = await queue.enqueue("late", delay=3600)
            self.assertTrue(await queue.reschedule(later.id, 7200))
            with self.assertRaises(TimeoutError):
                await queue.result(later.id, 0.01)
            results = [await queue.result(job.id, PATIENCE) for job in jobs]
            self.assertEqual(results, ['{"failures":0}', '{"failures":1}'])
            hopeless = await queue.enqueue("hopeless")
            with self.assertRaises(JobFailed):
                await queue.result(hopeless.id, PATIENCE)
            handle.stop()
            await work
            last = await queue.enqueue("x")
            self.assertTrue(await queue.cancel(last.id))


if __name__ == "__main__":
    unittest.main()
