"""An ASGI middleware: Starlette, FastAPI, Litestar, Django, Quart."""

from __future__ import annotations

import json
import math
from typing import Any, Awaitable, Callable, MutableMapping, Optional

from ._aio import AsyncTollway
from ._words import Verdict

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def client_address(scope: Scope) -> Optional[str]:
    """The peer's address. Behind a proxy give a key function of your own, or let the server put
    the real client into the scope: a forwarded header that anybody may send is no key."""
    client = scope.get("client")
    return None if client is None else str(client[0])


class RateLimitMiddleware:
    """Answers 429 with a problem body where the service denies, and passes its header fields on.

    ``key`` finds the key of a request; ``None`` lets it through unlimited.
    """

    def __init__(
        self,
        app: App,
        *,
        gate: AsyncTollway,
        policy: str,
        key: Callable[[Scope], Optional[str]] = client_address,
        cost: Callable[[Scope], int] = lambda _scope: 1,
    ) -> None:
        self._app = app
        self._gate = gate
        self._policy = policy
        self._key = key
        self._cost = cost

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = self._key(scope) if scope["type"] == "http" else None
        if key is None:
            return await self._app(scope, receive, send)
        verdict = await self._gate.check(self._policy, key, self._cost(scope))
        if not verdict.allowed:
            return await _refuse(verdict, self._policy, send)

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_fields(verdict)]
            await send(message)

        return await self._app(scope, receive, send_with_limits)


def _fields(verdict: Verdict) -> list[tuple[bytes, bytes]]:
    pairs = verdict.headers.items()
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]


async def _refuse(verdict: Verdict, policy: str, send: Send) -> None:
    body = json.dumps({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "status": 429,
        "violated-policies": [verdict.denied_by or policy],
    }).encode()
    fields = [
        *_fields(verdict),
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if verdict.retry_after is not None and "retry-after" not in verdict.headers:
        fields.append((b"retry-after", str(math.ceil(verdict.retry_after)).encode()))
    await send({"type": "http.response.start", "status": 429, "headers": fields})
    await send({"type": "http.response.body", "body": body})
