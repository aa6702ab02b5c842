"""Connections of a client for asyncio, and what goes over them."""

from __future__ import annotations

import asyncio
from typing import Any, Optional, Tuple

from . import _wire
from ._wire import Answer, Caller
from ._words import Unavailable

IDLE_MAX = 8

Stream = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncCaller(Caller):
    """Asks, and waits for the answer within a time; for one event loop."""

    def _prepare(self) -> None:
        self._idle: list[Stream] = []

    async def close(self) -> None:
        """Closes the connections that wait for the next request."""
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.close()

    async def _call(
        self, path: str, body: Any = None, *, method: str = "POST", wait: float = 0.0
    ) -> Answer:
        """``wait`` is how long the service may wait before it answers."""
        data = _wire.request(self._address, path, body, self._token, method)
        try:
            return await asyncio.wait_for(self._round_trip(data), self._timeout + wait)
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
