"""The example worker, with work that ends."""

import asyncio
import unittest
from typing import Any
from unittest import mock

import worker
from shardwise_client import Client
from tests.common import PATIENCE, Proxy, client, eventually

KEYS = [f"tenant-{n}" for n in range(40)]


class Work(unittest.IsolatedAsyncioTestCase):
    async def test_what_fails_is_told_and_what_is_over_is_begun_again(self) -> None:
        told: list[tuple[str, dict[str, str]]] = []

        def report(did: str, **more: str) -> None:
            told.append((did, more))

        async def work(_client: Client, key: str) -> None:
            if int(key.rpartition("-")[2]) % 2 == 0:
                raise RuntimeError(f"no {key}")

        def keys(did: str) -> list[str]:
            return sorted(more["key"] for each, more in told if each == did)

        async with Proxy() as proxy, client(proxy.url) as follower:
            with mock.patch.object(worker, "report", report):
                following = asyncio.create_task(worker.follow(follower, KEYS, work))

                async def are_over(times: int) -> bool:
                    if following.done():
                        following.result()
                    return len(keys("began")) > 0 and all(keys("began").count(key) >= times for key in keys("began")) and keys("began") == keys("ended")

                await eventually("the work is over", lambda: are_over(1))
                mine = sorted(set(keys("began")))
                self.assertTrue(set(keys("failed")) == {key for key in mine if int(key.rpartition("-")[2]) % 2 == 0} != set())
                self.assertIn(("failed", {"key": keys("failed")[0], "why": repr(RuntimeError(f"no {keys('failed')[0]}"))}), told)
                proxy.cut()
                proxy.is_cut = False
                await eventually("it is begun again with the next event", lambda: are_over(2))
                lost: list[dict[str, Any]] = [more for did, more in told if did == "lost"]
                self.assertTrue(lost and all(more["why"] for more in lost))
                following.cancel()
                await asyncio.wait({following}, timeout=PATIENCE)
                self.assertTrue(following.cancelled())
