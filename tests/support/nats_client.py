"""A plain client of NATS, for tests of messages through a server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine
from typing import Any

import nats
from support.waiting import wait_until


class NatsClient:
    """A plain client, in a separate thread; keeps all messages."""

    def __init__(self, port: int, *subjects: str) -> None:
        self.got: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self._connect(port, subjects))

    def _do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _connect(self, port: int, subjects: tuple[str, ...]) -> None:
        async def quiet(_: Exception) -> None: ...

        self._client = await nats.connect(
            f"nats://127.0.0.1:{port}", max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=quiet
        )
        for subject in subjects:
            await self._client.subscribe(subject, cb=self._keep)
        await self._client.flush()

    async def _keep(self, message: Any) -> None:
        self.got.append(message)

    def publish(self, *messages: tuple[str, bytes, dict[str, str] | None]) -> None:
        async def publish_all() -> None:
            for subject, payload, headers in messages:
                await self._client.publish(subject, payload, headers=headers)
            await self._client.flush()

        self._do(publish_all())

    def ask(self, subject: str, **request: Any) -> dict[str, Any]:
        answer = self._do(self._client.request(subject, json.dumps(request).encode(), timeout=30))
        found: dict[str, Any] = json.loads(answer.data)
        return found

    def is_connected(self) -> bool:
        connected: bool = self._client.is_connected
        return connected

    def wait(self, count: int) -> list[Any]:
        wait_until(lambda: len(self.got) >= count)
        return list(self.got)

    def close(self) -> None:
        self._do(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()
