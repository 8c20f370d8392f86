"""What the client sends, and how it reads what comes from a sidecar in pieces."""

import asyncio
import json
import socket
import unittest
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Optional

import httpx

from shardwise_client import Client, LeaseEnded, Problem, ShardwiseError, Unavailable, sync
from shardwise_client._clock import now, pause_of
from shardwise_client._lease_calls import _lines
from shardwise_client._session import passes


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class Lines(unittest.IsolatedAsyncioTestCase):
    async def read(self, *parts: bytes) -> list[dict[str, Any]]:
        return [line async for line in _lines(pieces(*parts))]

    async def test_lines_may_come_in_any_pieces(self) -> None:
        text = '{"a": "\u2028"}\n\n{"b": 2}\n'.encode()
        expected = [{"a": "\u2028"}, {"b": 2}]
        for cut in range(len(text)):
            self.assertEqual(await self.read(text[:cut], text[cut:]), expected, cut)

    async def test_what_is_no_line_is_an_outage(self) -> None:
        for part in (b"<html>\n", b"[]\n", b"\xff\n", b"x" * (16 * 1024 * 1024 + 1)):
            with self.assertRaises(Unavailable):
                await self.read(part)

    def test_what_is_worth_another_try(self) -> None:
        for status, is_worth in ((400, False), (403, False), (404, False), (408, True), (409, False), (429, True), (500, True), (503, True)):
            self.assertEqual(passes(Problem(httpx.Response(status))), is_worth, status)
        self.assertEqual((passes(Unavailable("away")), passes(ShardwiseError("wrong"))), (True, False))


class Gone(unittest.IsolatedAsyncioTestCase):
    async def test_where_no_sidecar_runs_the_error_says_what_to_start(self) -> None:
        # Another process may take the port before it is asked.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        async with Client("workers", url, attempts=1) as client:
            with self.assertRaisesRegex(Unavailable, "does not answer: .*; start `shardwise serve`"):
                await client.ownership()


class Asked(NamedTuple):
    method: str
    path: str
    lease: Optional[str]
    body: Any


class Scripted:
    """Answers each request with the next status and value, and keeps what was asked."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self.asked: list[Asked] = []
        self._answers = list(answers)

    async def __aenter__(self) -> "Scripted":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        method, path, _ = head.split(" ")
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.asked.append(Asked(method, path, headers.get("shardwise-lease"), body))
        status, value = self._answers.pop(0)
        kind = "application/json" if status == 200 else "application/problem+json"
        answer = json.dumps(value)
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nshardwise-state: active\r\nretry-after: 0\r\nconnection: close\r\n"
                     f"content-length: {len(answer)}\r\n\r\n{answer}".encode())  # fmt: skip
        await writer.drain()
        writer.close()


def problem(kind: str) -> dict[str, str]:
    return {"type": f"urn:shardwise:problem:{kind}", "title": "No", "detail": "it was renewed too late"}


class OtherProcesses(unittest.IsolatedAsyncioTestCase):
    """A process that does not keep the lease, and has its id."""

    async def test_it_asks_before_each_piece_of_work(self) -> None:
        held = [{"key": "a", "slot": 7, "epoch": 3, "valid_ms": 2_000}]
        async with Scripted((200, held), (503, problem("busy")), (200, []), (410, problem("lease-ended")), (409, problem("conflict"))) as sidecar:
            async with Client("workers", sidecar.url) as client:
                self.assertEqual(await client.enter(["a", "b"], lease="1f"), held)
                self.assertEqual(await client.enter((key for key in "b"), lease="1f"), [])
                with self.assertRaisesRegex(LeaseEnded, "renewed too late"):
                    await client.enter(["a"], lease="1f")
                with self.assertRaises(Problem):
                    await client.enter(["a"], lease="1f")
                with self.assertRaises(TypeError):
                    await client.enter("a", lease="1f")
        path = "/v1/policies/workers/enter"
        self.assertEqual([asked.body for asked in sidecar.asked], [{"keys": keys} for keys in (["a", "b"], ["b"], ["b"], ["a"], ["a"])])
        self.assertEqual({asked[:3] for asked in sidecar.asked}, {("POST", path, "1f")})

    async def test_it_filters_lists(self) -> None:
        answers = [(200, ["a"]), (200, ["a"]), (410, problem("lease-ended")), (409, problem("lease-missing")), (410, problem("lease-ended"))]
        async with Scripted(*answers) as sidecar, Client("workers", sidecar.url) as client:
            self.assertEqual(await client.owned(["a", "b"], lease="1f"), (["a"], "active"))
            self.assertEqual([key async for key in client.owned_stream(["a"], lease="1f")], ["a"])
            with self.assertRaises(LeaseEnded):
                await client.owned(["a"], lease="1f")
            with self.assertRaises(Problem):
                await client.owned(["a"])
            with self.assertRaises(LeaseEnded):
                await client.owned_stream(["a"], lease="1f").__anext__()
        self.assertEqual([asked.lease for asked in sidecar.asked], ["1f", "1f", "1f", None, "1f"])

    async def test_without_a_loop(self) -> None:
        held = [{"key": "a", "slot": 7, "epoch": 3, "valid_ms": 2_000}]
        async with Scripted((200, ["a"]), (200, held)) as sidecar:

            def asks() -> None:
                with sync.Client("workers", sidecar.url) as client:
                    self.assertEqual(client.owned(["a", "b"], lease="1f").keys, ["a"])
                    self.assertEqual(client.enter(iter(["a"]), lease="1f"), held)

            await asyncio.to_thread(asks)
        self.assertEqual([(asked.lease, asked.body) for asked in sidecar.asked], [("1f", ["a", "b"]), ("1f", {"keys": ["a"]})])


class Clocks(unittest.TestCase):
    def test_the_clock_goes_on_and_pauses_have_a_limit(self) -> None:
        first = now()
        self.assertTrue(first <= now() < first + 60)
        self.assertTrue(all(0.05 <= pause_of(tries) <= 5.0 for tries in (0, 1, 5, 100, 10_000)))
