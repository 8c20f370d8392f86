"""What several tests need: two sidecars that run, and ways to them that fail.

SHARDWISE_ONE and SHARDWISE_OTHER are their addresses, SHARDWISE_TOKEN is the token of both; the policy is `workers`.
"""

import asyncio
import os
import re
import time
from collections.abc import Awaitable
from typing import Callable
from urllib.parse import urlsplit

from shardwise_client import Client

ONE, OTHER, TOKEN = (os.environ[f"SHARDWISE_{name}"] for name in ("ONE", "OTHER", "TOKEN"))
PATIENCE = 60.0


def client(url: str = ONE, *, token: str = TOKEN, policy: str = "workers", timeout: float = PATIENCE, attempts: int = 3,
           silence: float = 10.0) -> Client:  # fmt: skip
    return Client(policy, url, token=token, timeout=timeout, attempts=attempts, silence=silence)


async def eventually(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    until = time.monotonic() + PATIENCE
    while not await condition():
        if time.monotonic() > until:
            raise AssertionError(f"waited {PATIENCE} s in vain: {what}")
        await asyncio.sleep(0.02)


class Proxy:
    """A way to a sidecar that can be cut, refuse, keep silent, or swallow answers."""

    def __init__(self) -> None:
        self.requests, self.refusals = 0, 0
        self.is_cut, self.is_mute, self.swallows = False, False, False
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        self.is_cut = True
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.is_cut:
            writer.close()
            return
        self.requests += 1
        if self.is_mute:
            return
        if self.refusals > 0:
            self.refusals -= 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 503 Not Now\r\nretry-after: 0\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.close()
            return
        target = urlsplit(ONE)
        there, back = await asyncio.open_connection(target.hostname, target.port)
        self._writers.append(back)
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer, swallow=self.swallows), return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, swallow: bool = False) -> None:
        try:
            while (piece := await reader.read(65536)) and not swallow:
                if not self.is_mute:
                    writer.write(piece)
                    await writer.drain()
        finally:
            writer.close()


class Scripted:
    """Answers lists in these states one after the other, the last one for ever, each after so many seconds, as if every key were owned. A sidecar that
    runs cannot be made to change its state within one list."""

    def __init__(self, *states: str, seconds: float = 0.0) -> None:
        self.asked, self._states, self._seconds = 0, states, seconds

    async def __aenter__(self) -> "Scripted":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length = re.search(rb"\r\ncontent-length: *([0-9]+)", (await reader.readuntil(b"\r\n\r\n")).lower())
                assert length is not None
                body = await reader.readexactly(int(length[1]))
                self.asked += 1
                await asyncio.sleep(self._seconds)
                state = self._states[min(self.asked, len(self._states)) - 1]
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nshardwise-state: {state}\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
