"""The client against the real service, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import time
import unittest
from datetime import datetime, timedelta, timezone
from typing import Any

from service import Misbehaving, Service, closed_port
from tollway import (
    AsyncTollway,
    Charge,
    Denied,
    RateLimitMiddleware,
    Rejected,
    Tollway,
    Unavailable,
)

PATIENCE = 30.0
"""A timeout that a busy machine does not reach."""


class WithService(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.gate = Tollway(self.service.url, timeout=PATIENCE, on_failure="raise")
        self.addCleanup(self.gate.close)


class OwnQuotaTest(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service(token="boss")
        self.addCleanup(self.service.close)

    def test_a_key_is_given_a_quota_of_its_own_and_units_beyond_it(self) -> None:
        gate = Tollway(self.service.url, token="boss", timeout=PATIENCE, on_failure="raise")
        self.addCleanup(gate.close)
        until = datetime.now(timezone.utc) + timedelta(days=1)
        own = gate.set_quota("api", "a/b", "9/1h", until=until, note="trial")
        told = (own.key, own.quota, own.note, own.kept)
        self.assertEqual(told, ("a/b", "9/1h", "trial", "process"))
        self.assertEqual(gate.peek("api", "a/b").remaining, 9)
        gate.grant("api", "a/b", 5, until=until)
        self.assertEqual(gate.peek("api", "a/b").remaining, 14)
        gate.set_quota("api", "vip-*", "7/1h")
        self.assertEqual([own.key for own in gate.quotas("api")], ["a/b", "vip-*"])
        self.assertTrue(gate.remove_quota("api", "a/b"))
        self.assertFalse(gate.remove_quota("api", "a/b"))
        self.assertIsNone(gate.quota("api", "a/b"))
        for policy, quota in (("none", "9/1h"), ("api", "many")):
            with self.assertRaises(Rejected):
                gate.set_quota(policy, "k", quota)
        with self.assertRaises(ValueError):
            gate.set_quota("api", "k", "9/1h", until=datetime.now())

    def test_the_client_for_asyncio_does_the_same(self) -> None:
        async def scenario() -> None:
            async with AsyncTollway(self.service.url, token="boss", timeout=PATIENCE) as gate:
                await gate.set_quota("api", "acme", "2/1h", until="2100-01-01 09:00 Europe/Berlin")
                own = await gate.quota("api", "acme")
                assert own is not None
                self.assertEqual((own.until, own.in_force), ("2100-01-01T08:00:00Z", "2/1h"))
                await gate.check("api", "acme", 2)
                await gate.grant("api", "acme", 1)
                self.assertEqual((await gate.peek("api", "acme")).remaining, 1)
                self.assertEqual([own.key async for own in gate.quotas("api")], ["acme"])
                self.assertTrue(await gate.remove_quota("api", "acme"))

        asyncio.run(scenario())


class SyncTest(WithService):
    def test_units_are_taken_until_there_are_none(self) -> None:
        verdicts = [self.gate.check("api", "ada") for _ in range(4)]
        self.assertEqual([verdict.allowed for verdict in verdicts], [True, True, True, False])
        denied = verdicts[3]
        self.assertEqual((denied.denied_by, denied.remaining), ("api", 0))
        self.assertTrue(0 < (denied.retry_after or 0) <= 1200)
        self.assertIn("retry-after", denied.headers)
        self.assertIn("ratelimit", verdicts[0].headers)

    def test_a_denial_names_the_owner_that_denied(self) -> None:
        self.assertTrue(self.gate.check("teams", "somebody", cost=40))
        self.assertTrue(self.gate.check("teams", "a", cost=10))
        denied = self.gate.check("teams", "a")
        self.assertEqual((denied.denied_by, denied.denied_by_owner), ("teams", "a"))
        self.assertIsNone(self.gate.check("teams", "somebody").denied_by_owner)

    def test_several_charges_are_taken_together_or_not_at_all(self) -> None:
        charges = [Charge("tokens", "ada", 10), Charge("api", "ada", 4)]
        verdict = self.gate.check_all(charges)
        self.assertEqual((verdict.allowed, verdict.denied_by), (False, "api"))
        self.assertIsNone(verdict.retry_after, "no wait makes four of three")
        self.assertEqual(self.gate.peek("tokens", "ada").remaining, 100)

    def test_a_reservation_is_settled_at_its_real_cost(self) -> None:
        with self.gate.reserve("tokens", "ada", 60) as held:
            self.assertTrue(held.verdict.allowed)
            self.assertFalse(self.gate.check("tokens", "ada", 50).allowed)
            held.commit(20)
        self.assertEqual(self.gate.peek("tokens", "ada").remaining, 80)
        with self.assertRaises(ZeroDivisionError), self.gate.reserve("tokens", "ada", 60):
            raise ZeroDivisionError
        self.assertEqual(self.gate.peek("tokens", "ada").remaining, 80)

    def test_a_limit_comes_with_the_call(self) -> None:
        limit = {"algorithm": "leaky-bucket", "size": 2, "drip_interval": "1h"}
        verdicts = [self.gate.check(limit, "uploads ada") for _ in range(3)]
        self.assertEqual([verdict.allowed for verdict in verdicts], [True, True, False])
        self.gate.reset(limit, "uploads ada")
        both = self.gate.check_all([Charge(limit, "uploads ada"), Charge("api", "ada")])
        self.assertEqual([charge.remaining for charge in both.charges], [1, 2])
        with self.assertRaisesRegex(Rejected, "limit.size: expected a whole number"):
            self.gate.check({**limit, "size": "big"}, "uploads ada")

    def test_refund_and_reset_give_back(self) -> None:
        self.gate.check("api", "ada", 3)
        self.gate.refund("api", "ada", 1)
        self.assertEqual(self.gate.peek("api", "ada").remaining, 1)
        self.gate.reset("api", "ada")
        self.assertEqual(self.gate.peek("api", "ada").remaining, 3)

    def test_the_decorator_raises_in_place_of_a_call_too_many(self) -> None:
        @self.gate.limited("api", key=lambda user: f"user:{user}")
        def greet(user: str) -> str:
            return f"hello {user}"

        self.assertEqual([greet("ada") for _ in range(3)], ["hello ada"] * 3)
        with self.assertRaises(Denied) as denied:
            greet("ada")
        self.assertEqual(denied.exception.verdict.denied_by, "api")
        self.assertEqual(greet("bob"), "hello bob")

    def test_a_mistake_is_raised_whatever_the_failure_mode(self) -> None:
        gate = Tollway(self.service.url, timeout=PATIENCE, on_failure="allow")
        self.addCleanup(gate.close)
        with self.assertRaises(Rejected) as unknown:
            gate.check("no such policy", "ada")
        self.assertEqual(unknown.exception.status, 404)
        with self.assertRaises(Rejected):
            gate.check("api", "ada", 0)
        with self.assertRaises(ValueError):
            Tollway("ftp://nowhere")

    def test_a_service_that_left_is_told_on_a_kept_connection(self) -> None:
        self.assertTrue(self.gate.check("api", "ada").allowed)
        self.service.close()
        with self.assertRaises(Unavailable):
            self.gate.check("api", "ada")


class TokenTest(unittest.TestCase):
    def test_a_token_is_shown(self) -> None:
        service = Service(token="secret")
        self.addCleanup(service.close)
        with self.assertRaises(Rejected) as refused:
            Tollway(service.url, timeout=PATIENCE).check("api", "ada")
        self.assertEqual(refused.exception.status, 401)
        gate = Tollway(service.url, timeout=PATIENCE, token="secret", on_failure="raise")
        self.assertTrue(gate.check("api", "ada").allowed)


class FailureTest(unittest.TestCase):
    """However the service fails, the configured answer comes, and not (much) past the timeout:
    each of these servers would keep a patient client for ever."""

    def servers(self) -> list[str]:
        urls = [closed_port()]
        for how in ("silent", "drip"):
            server = Misbehaving(how)
            self.addCleanup(server.close)
            urls.append(server.url)
        return urls

    def test_the_failure_mode_answers_in_time(self) -> None:
        for url in self.servers():
            for mode in ("allow", "deny"):
                gate = Tollway(url, timeout=0.1, on_failure=mode)  # type: ignore[arg-type]
                before = time.monotonic()
                verdict = gate.check("api", "ada")
                self.assertLess(time.monotonic() - before, 10, url)
                self.assertEqual((verdict.allowed, verdict.failed), (mode == "allow", True), url)
            with self.assertRaises(Unavailable):
                Tollway(url, timeout=0.1, on_failure="raise").check("api", "ada")

    def test_the_failure_mode_answers_in_time_on_a_loop_too(self) -> None:
        async def run(url: str) -> None:
            for mode in ("allow", "deny"):
                gate = AsyncTollway(url, timeout=0.1, on_failure=mode)  # type: ignore[arg-type]
                verdict = await asyncio.wait_for(gate.check("api", "ada"), 10)
                self.assertEqual((verdict.allowed, verdict.failed), (mode == "allow", True), url)

        for url in self.servers():
            asyncio.run(run(url))


class AsyncTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.gate = AsyncTollway(self.service.url, timeout=PATIENCE, on_failure="raise")
        self.addAsyncCleanup(self.gate.close)

    async def test_checks_at_once_share_the_limit(self) -> None:
        verdicts = await asyncio.gather(*(self.gate.check("api", "ada") for _ in range(10)))
        self.assertEqual(sum(verdict.allowed for verdict in verdicts), 3)

    async def test_a_reservation_is_settled(self) -> None:
        async with await self.gate.reserve("tokens", "ada", 60) as held:
            await held.commit(10)
        self.assertEqual((await self.gate.peek("tokens", "ada")).remaining, 90)

    async def test_the_decorator_guards_coroutines(self) -> None:
        @self.gate.limited("api", key="everybody")
        async def work() -> int:
            return 1

        self.assertEqual(sum([await work() for _ in range(3)]), 3)
        with self.assertRaises(Denied):
            await work()

    async def test_the_middleware_answers_429_and_passes_fields_on(self) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"hi"})

        limited = RateLimitMiddleware(app, gate=self.gate, policy="api")

        async def get(kind: str = "http") -> list[dict[str, Any]]:
            sent: list[dict[str, Any]] = []

            async def send(message: Any) -> None:
                sent.append(message)

            async def receive() -> dict[str, Any]:
                return {"type": "http.request"}

            await limited({"type": kind, "client": ("192.0.2.1", 1)}, receive, send)
            return sent

        for _ in range(3):
            start, _body = await get()
            self.assertEqual(start["status"], 200)
            self.assertIn(b"ratelimit", dict(start["headers"]))
        start, body = await get()
        self.assertEqual(start["status"], 429)
        self.assertGreater(int(dict(start["headers"])[b"retry-after"]), 0)
        self.assertEqual(json.loads(body["body"])["violated-policies"], ["api"])
        start, _body = await get("lifespan")
        self.assertEqual(start["status"], 200, "only requests are limited")


if __name__ == "__main__":
    unittest.main()
