"""How the client reads what comes from a sidecar in pieces."""

import unittest
from collections.abc import AsyncIterator
from typing import Any

import httpx

from shardwise_client import Problem, ShardwiseError, Unavailable
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


class Clocks(unittest.TestCase):
    def test_the_clock_goes_on_and_pauses_have_a_limit(self) -> None:
        first = now()
        self.assertTrue(first <= now() < first + 60)
        self.assertTrue(all(0.05 <= pause_of(tries) <= 5.0 for tries in (0, 1, 5, 100, 10_000)))
