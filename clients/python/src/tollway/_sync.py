"""The client for threads."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator, Optional, Sequence, TypeVar, Union

from . import _own_quotas, _wire
from ._own_quotas import OwnQuota, Until
from ._sync_http import SyncCaller
from ._words import Charge, Denied, Limit, Unavailable, Verdict

Function = TypeVar("Function", bound=Callable[..., Any])
Told = TypeVar("Told")


class Tollway(SyncCaller):
    """Asks a Tollway service; safe to share between threads.

    ``timeout`` bounds a whole request in seconds: looking up the name, connecting, asking,
    reading. Past it, ``on_failure`` answers.
    """

    def check(self, policy: Union[str, Limit], key: str, cost: int = 1) -> Verdict:
        """Takes the units if they are there."""
        return self.check_all([Charge(policy, key, cost)])

    def check_all(self, charges: Sequence[Charge]) -> Verdict:
        """Takes every charge, or none."""
        return self._ask("/v1/check", charges)

    def peek(self, policy: Union[str, Limit], key: str, cost: int = 1) -> Verdict:
        """What a check would answer; takes nothing."""
        return self._ask("/v1/peek", [Charge(policy, key, cost)])

    def refund(self, policy: Union[str, Limit], key: str, cost: int = 1) -> None:
        """Gives units back. Raises :class:`Unavailable` if the service does not answer."""
        _wire.checked(self._call("/v1/refund", Charge(policy, key, cost).as_json()))

    def reset(self, policy: Union[str, Limit], key: str) -> None:
        """Forgets the key under the policy; needs the role admin."""
        _wire.checked(self._call("/v1/reset", Charge(policy, key).as_json()))

    def reserve(self, policy: Union[str, Limit], key: str, cost: int) -> Reservation:
        """Takes units now, to be settled by :meth:`Reservation.commit` at their real cost."""
        try:
            answer = self._call("/v1/reserve", Charge(policy, key, cost).as_json())
            body = _wire.checked(answer)
        except Unavailable as error:
            return Reservation(self, _wire.fallen_back(self._on_failure, error), None)
        return Reservation(self, _wire.verdict(body, answer.headers), body.get("reservation"))

    def set_quota(
        self, policy: str, key: str, quota: str, *, until: Optional[Until] = None, note: str = ""
    ) -> OwnQuota:
        """Gives a key a quota of its own, or the keys of a pattern (``acme-*``) theirs; needs the
        role admin. What was used stays used."""
        body = _own_quotas.said(until, note, quota=quota)
        return self._answer(_own_quotas.to_set(policy, key, body))

    def quota(self, policy: str, key: str) -> Optional[OwnQuota]:
        """What was said of exactly this key or pattern; needs the role admin."""
        return self._answer(_own_quotas.to_get(policy, key))

    def quotas(self, policy: str) -> Iterator[OwnQuota]:
        """All quotas of keys and patterns under a policy, in order; needs the role admin."""
        after: Optional[str] = None
        while True:
            found, after = self._answer(_own_quotas.to_list(policy, after))
            yield from found
            if after is None:
                return

    def remove_quota(self, policy: str, key: str) -> bool:
        """Takes quota and grant away; whether there was one. Needs the role admin."""
        return self._answer(_own_quotas.to_remove(policy, key))

    def grant(
        self, policy: str, key: str, units: int, *, until: Optional[Until] = None, note: str = ""
    ) -> None:
        """Gives so many used units back, or so many more until a time; needs the role admin."""
        body = _own_quotas.said(until, note, units=units)
        self._answer(_own_quotas.to_grant(policy, key, body))

    def _answer(self, call: _own_quotas.Call[Told]) -> Told:
        return call.read(self._call(call.path, call.body, method=call.method))

    def limited(
        self, policy: Union[str, Limit], key: Union[str, Callable[..., str]], cost: int = 1
    ) -> Callable[[Function], Function]:
        """A decorator: the function runs if it is allowed, otherwise :class:`Denied` is raised.

        ``key`` is a text, or a function that finds it from the call's arguments.
        """

        def decorate(function: Function) -> Function:
            @functools.wraps(function)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                found = key(*args, **kwargs) if callable(key) else key
                verdict = self.check(policy, found, cost)
                if not verdict.allowed:
                    raise Denied(verdict)
                return function(*args, **kwargs)

            return guarded  # type: ignore[return-value]

        return decorate

    def __enter__(self) -> Tollway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, path: str, charges: Sequence[Charge]) -> Verdict:
        try:
            answer = self._call(path, _wire.asked(charges))
            return _wire.verdict(_wire.checked(answer), answer.headers)
        except Unavailable as error:
            return _wire.fallen_back(self._on_failure, error)


class Reservation:
    """Units taken, to be settled at their real cost; in a ``with`` block, cancelled on an error
    and committed as reserved otherwise."""

    def __init__(self, gate: Tollway, verdict: Verdict, name: Optional[str]) -> None:
        self._gate = gate
        self._name = name
        self.verdict = verdict

    def commit(self, cost: Optional[int] = None) -> None:
        """Settles at the real cost, or as reserved."""
        self._settle("/v1/commit", {} if cost is None else {"costs": [cost]})

    def cancel(self) -> None:
        """Gives everything back."""
        self._settle("/v1/cancel", {})

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.cancel()

    def _settle(self, path: str, body: dict[str, Any]) -> None:
        name, self._name = self._name, None
        if name is not None:
            _wire.checked(self._gate._call(path, {"reservation": name, **body}))
