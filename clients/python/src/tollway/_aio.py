"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Awaitable, Callable, Optional, Sequence, Tuple, TypeVar, Union

from . import _wire
from ._wire import Answer, Caller
from ._words import Charge, Denied, Unavailable, Verdict

IDLE_MAX = 8

Stream = Tuple[asyncio.StreamReader, asyncio.StreamWriter]
Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])


class AsyncTollway(Caller):
    """As :class:`tollway.Tollway`, for one event loop."""

    def _prepare(self) -> None:
        self._idle: list[Stream] = []

    async def check(self, policy: str, key: str, cost: int = 1) -> Verdict:
        """Takes the units if they are there."""
        return await self.check_all([Charge(policy, key, cost)])

    async def check_all(self, charges: Sequence[Charge]) -> Verdict:
        """Takes every charge, or none."""
        return await self._ask("/v1/check", charges)

    async def peek(self, policy: str, key: str, cost: int = 1) -> Verdict:
        """What a check would answer; takes nothing."""
        return await self._ask("/v1/peek", [Charge(policy, key, cost)])

    async def refund(self, policy: str, key: str, cost: int = 1) -> None:
        """Gives units back. Raises :class:`Unavailable` if the service does not answer."""
        _wire.checked(await self._call("/v1/refund", Charge(policy, key, cost).as_json()))

    async def reset(self, policy: str, key: str) -> None:
        """Forgets the key under the policy; needs the role admin."""
        _wire.checked(await self._call("/v1/reset", {"policy": policy, "key": key}))

    async def reserve(self, policy: str, key: str, cost: int) -> AsyncReservation:
        """Takes units now, to be settled by :meth:`AsyncReservation.commit`."""
        try:
            answer = await self._call("/v1/reserve", Charge(policy, key, cost).as_json())
            body = _wire.checked(answer)
        except Unavailable as error:
            return AsyncReservation(self, _wire.fallen_back(self._on_failure, error), None)
        verdict = _wire.verdict(body, answer.headers)
        return AsyncReservation(self, verdict, body.get("reservation"))

    def limited(
        self, policy: str, key: Union[str, Callable[..., str]], cost: int = 1
    ) -> Callable[[Function], Function]:
        """A decorator of coroutine functions, as :meth:`tollway.Tollway.limited`."""

        def decorate(function: Function) -> Function:
            @functools.wraps(function)
            async def guarded(*args: Any, **kwargs: Any) -> Any:
                found = key(*args, **kwargs) if callable(key) else key
                verdict = await self.check(policy, found, cost)
                if not verdict.allowed:
                    raise Denied(verdict)
                return await function(*args, **kwargs)

            return guarded  # type: ignore[return-value]

        return decorate

    async def close(self) -> None:
        """Closes the connections that wait for the next request."""
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.close()

    async def __aenter__(self) -> AsyncTollway:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, path: str, charges: Sequence[Charge]) -> Verdict:
        try:
            answer = await self._call(path, _wire.asked(charges))
            return _wire.verdict(_wire.checked(answer), answer.headers)
        except Unavailable as error:
            return _wire.fallen_back(self._on_failure, error)

    async def _call(self, path: str, body: Any) -> Answer:
        data = _wire.request(self._address, path, body, self._token)
        try:
            return await asyncio.wait_for(self._round_trip(data), self._timeout)
        except asyncio.TimeoutError as error:
            raise Unavailable("the service did not answer in time") from error
        except OSError as error:
            raise Unavailable(str(error)) from error

    async def _round_trip(self, data: bytes) -> Answer:
        if self._idle:
            # An idle connection may have been closed at the other end; a fresh one may not.
            answer = await self._exchange(self._idle.pop(), data, is_fresh=False)
            if answer is not None:
                return answer
        fresh = await self._exchange(await self._connect(), data, is_fresh=True)
        assert fresh is not None
        return fresh

    async def _exchange(self, stream: Stream, data: bytes, *, is_fresh: bool) -> Optional[Answer]:
        incoming, outgoing = stream
        reader = _wire.Reader()
        answer: Optional[Answer] = None
        try:
            outgoing.write(data)
            await outgoing.drain()
            while answer is None:
                piece = await incoming.read(65_536)
                if not piece:
                    raise ConnectionResetError("the service closed the connection")
                answer = reader.feed(piece)
        except ConnectionError:
            if is_fresh or not reader.is_empty:
                raise
            return None
        finally:
            if answer is not None and reader.keep_alive and len(self._idle) < IDLE_MAX:
                self._idle.append(stream)
            else:
                outgoing.close()
        return answer

    async def _connect(self) -> Stream:
        if self._address.unix is not None:
            return await asyncio.open_unix_connection(self._address.unix)
        host, port = self._address.host, self._address.port
        return await asyncio.open_connection(host, port, ssl=self._tls)


class AsyncReservation:
    """As :class:`tollway.Reservation`, in ``async with``."""

    def __init__(self, gate: AsyncTollway, verdict: Verdict, name: Optional[str]) -> None:
        self._gate = gate
        self._name = name
        self.verdict = verdict

    async def commit(self, cost: Optional[int] = None) -> None:
        """Settles at the real cost, or as reserved."""
        await self._settle("/v1/commit", {} if cost is None else {"costs": [cost]})

    async def cancel(self) -> None:
        """Gives everything back."""
        await self._settle("/v1/cancel", {})

    async def __aenter__(self) -> AsyncReservation:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self.commit()
        else:
            await self.cancel()

    async def _settle(self, path: str, body: dict[str, Any]) -> None:
        name, self._name = self._name, None
        if name is not None:
            _wire.checked(await self._gate._call(path, {"reservation": name, **body}))
