"""The client for asyncio."""

from __future__ import annotations

import functools
from typing import Any, AsyncIterator, Awaitable, Callable, Optional, Sequence, TypeVar, Union

from . import _own_quotas, _wire
from ._aio_http import AsyncCaller
from ._own_quotas import OwnQuota, Until
from ._words import Charge, Denied, Limit, Unavailable, Verdict

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])
Told = TypeVar("Told")


class AsyncTollway(AsyncCaller):
    """As :class:`tollway.Tollway`, for one event loop."""

    async def check(self, policy: Union[str, Limit], key: str, cost: int = 1) -> Verdict:
        """Takes the units if they are there."""
        return await self.check_all([Charge(policy, key, cost)])

    async def check_all(self, charges: Sequence[Charge]) -> Verdict:
        """Takes every charge, or none."""
        return await self._ask("/v1/check", charges)

    async def peek(self, policy: Union[str, Limit], key: str, cost: int = 1) -> Verdict:
        """What a check would answer; takes nothing."""
        return await self._ask("/v1/peek", [Charge(policy, key, cost)])

    async def refund(self, policy: Union[str, Limit], key: str, cost: int = 1) -> None:
        """Gives units back. Raises :class:`Unavailable` if the service does not answer."""
        _wire.checked(await self._call("/v1/refund", Charge(policy, key, cost).as_json()))

    async def reset(self, policy: Union[str, Limit], key: str) -> None:
        """Forgets the key under the policy; needs the role admin."""
        _wire.checked(await self._call("/v1/reset", Charge(policy, key).as_json()))

    async def reserve(self, policy: Union[str, Limit], key: str, cost: int) -> AsyncReservation:
        """Takes units now, to be settled by :meth:`AsyncReservation.commit`."""
        try:
            answer = await self._call("/v1/reserve", Charge(policy, key, cost).as_json())
            body = _wire.checked(answer)
        except Unavailable as error:
            return AsyncReservation(self, _wire.fallen_back(self._on_failure, error), None)
        verdict = _wire.verdict(body, answer.headers)
        return AsyncReservation(self, verdict, body.get("reservation"))

    async def set_quota(
        self, policy: str, key: str, quota: str, *, until: Optional[Until] = None, note: str = ""
    ) -> OwnQuota:
        """As :meth:`tollway.Tollway.set_quota`."""
        body = _own_quotas.said(until, note, quota=quota)
        return await self._answer(_own_quotas.to_set(policy, key, body))

    async def quota(self, policy: str, key: str) -> Optional[OwnQuota]:
        """As :meth:`tollway.Tollway.quota`."""
        return await self._answer(_own_quotas.to_get(policy, key))

    async def quotas(self, policy: str) -> AsyncIterator[OwnQuota]:
        """As :meth:`tollway.Tollway.quotas`."""
        after: Optional[str] = None
        while True:
            found, after = await self._answer(_own_quotas.to_list(policy, after))
            for own in found:
                yield own
            if after is None:
                return

    async def remove_quota(self, policy: str, key: str) -> bool:
        """As :meth:`tollway.Tollway.remove_quota`."""
        return await self._answer(_own_quotas.to_remove(policy, key))

    async def grant(
        self, policy: str, key: str, units: int, *, until: Optional[Until] = None, note: str = ""
    ) -> None:
        """As :meth:`tollway.Tollway.grant`."""
        body = _own_quotas.said(until, note, units=units)
        await self._answer(_own_quotas.to_grant(policy, key, body))

    async def _answer(self, call: _own_quotas.Call[Told]) -> Told:
        return call.read(await self._call(call.path, call.body, method=call.method))

    def limited(
        self, policy: Union[str, Limit], key: Union[str, Callable[..., str]], cost: int = 1
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
