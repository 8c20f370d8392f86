"""Handlers of requests to keys, asked over HTTP as a sidecar does, under a lease of a sidecar in memory."""

import asyncio
import json
import threading
import time
import unittest
from typing import Any, Callable, Optional
from urllib.parse import quote

from shardwise_client import Fence, HeldRequest, Lease, NotHeld, OwnedRequest, RequestHandlers, RequestServer, ShardwiseError, sync
from shardwise_client._sync_loop import Loop
from tests.fake_sidecar import PATIENCE, FakeSidecar, key_in
from tests.test_requests import exchanged, read, request


async def eventually(what: str, condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"waited {PATIENCE} s in vain: {what}")
        await asyncio.sleep(0.002)


def to_key(key: Optional[str], fence: Optional[Fence] = None, more: str = "", path: str = "/say") -> bytes:
    headers = "" if key is None else f"shardwise-key: {quote(key, safe='')}\r\n"
    headers += "" if fence is None else f"shardwise-slot: {fence.slot}\r\nshardwise-epoch: {fence.epoch}\r\n"
    return request(path, "owner", "POST", b"hello", headers + more)


class Owners(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.handlers = RequestHandlers()
        await self.serve(self.handlers)

    async def serve(self, handlers: RequestHandlers) -> None:
        server = RequestServer(handlers)
        await server.__aenter__()
        self.addAsyncCleanup(server.close)
        self.port = int(server.url.rpartition(":")[2])

    async def asks(self, raw: bytes) -> "tuple[int, dict[str, str], Any]":
        status, headers, body = await exchanged(self.port, raw)
        return status, headers, json.loads(body) if "json" in headers["content-type"] else body

    async def lease(self, *slots: int) -> "tuple[FakeSidecar, Lease]":
        sidecar = FakeSidecar()
        for slot in slots:
            sidecar.grant(slot, epoch=7)
        lease = sidecar.client()
        await lease.__aenter__()
        self.addAsyncCleanup(lease.close)
        return sidecar, lease

    async def test_the_key_and_the_fence_of_the_sidecar(self) -> None:
        seen: list[OwnedRequest] = []

        @self.handlers.on_owned("say")
        async def say(owned: OwnedRequest) -> str:
            seen.append(owned)
            return "heard"

        for key, fence in (("room 7/größe\n%", Fence(3, 9)), ("", None)):
            status, headers, body = await self.asks(to_key(key, fence, "idempotency-key: k-1\r\n"))
            self.assertEqual((status, body), (200, b"heard"))
            owned = seen[-1]
            self.assertEqual((owned.key, owned.fence, owned.entered, owned.request.body), (key, fence, None, b"hello"))
            self.assertEqual((owned.request.idempotency_key, owned.request.to), ("k-1", "owner"))
        no_epoch = "shardwise-slot: 1\r\nshardwise-epoch: soon\r\n"
        for wrong in (to_key(None), to_key("%ff").replace(b"%25ff", b"%ff"), to_key("a", more=no_epoch), to_key("a", more="shardwise-key: b\r\n")):
            self.assertEqual((await self.asks(wrong))[0], 400, wrong)
        self.assertEqual((await self.asks(request("/say", "any")))[0], 404, "what is for a key never answers any")
        self.assertEqual((await self.asks(to_key("a", path="/shout")))[0], 404)
        self.assertEqual(len(seen), 2)

    async def test_the_name_and_the_epoch_of_the_sidecar(self) -> None:
        @self.handlers.on_held("lead")
        async def lead(held: HeldRequest) -> "list[object]":
            return [held.name, held.epoch, held.request.to]

        name = "shardwise-name: singleton%2Fleader\r\n"
        self.assertEqual((await self.asks(request("/lead", "holder", more=f"{name}shardwise-epoch: 9\r\n")))[2], ["singleton/leader", 9, "holder"])
        self.assertEqual((await self.asks(request("/lead", "holder", more=name)))[0], 400)
        self.assertEqual((await self.asks(to_key("a", path="/lead")))[0], 404, "what is for a name never answers a key")

    async def test_a_handler_works_under_the_lease(self) -> None:
        sidecar, lease = await self.lease(5)
        begun, release = asyncio.Event(), asyncio.Event()

        @self.handlers.on_owned("say", lease)
        async def say(owned: OwnedRequest) -> "list[object]":
            begun.set()
            await release.wait()
            assert owned.entered is not None
            owned.entered.check()
            return [owned.key, owned.fence]

        asking = asyncio.ensure_future(self.asks(to_key(key_in(5), Fence(5, 7))))
        await begun.wait()
        (number,) = sidecar.grants_now
        sidecar.ask(number)
        await eventually("it must be handed over", lambda: not lease.owns(key_in(5)))
        await asyncio.sleep(0.05)
        self.assertEqual(sidecar.finished_numbers, [], "the handover waits for the handler")
        release.set()
        self.assertEqual((await asking)[::2], (200, [key_in(5), [5, 7]]))
        await eventually("it is handed over", lambda: sidecar.finished_numbers == [number])

    async def test_what_is_not_held_is_refused_before_a_handler_sees_it(self) -> None:
        _, lease = await self.lease(5)
        seen: list[str] = []

        @self.handlers.on_owned("say", lease)
        async def say(owned: OwnedRequest) -> str:
            seen.append(owned.key)
            if owned.request.query == "nested":
                raise NotHeld("of the handler itself")
            return "heard"

        for raw in (to_key(key_in(6)), to_key(key_in(5), Fence(5, 8)), to_key(key_in(6), Fence(6, 7))):
            status, headers, problem = await self.asks(raw)
            self.assertEqual((status, headers["shardwise-peer"], problem["type"]), (421, "refused", "urn:shardwise:problem:not-mine"))
        self.assertEqual(seen, [])
        with self.assertLogs("shardwise_client", "ERROR"):
            status, headers, _ = await self.asks(to_key(key_in(5), path="/say?nested"))
        self.assertEqual((status, "shardwise-peer" in headers), (500, False), "the handler has seen it")
        await lease.close()
        self.assertEqual((await self.asks(to_key(key_in(5))))[0], 421)
        self.assertEqual(len(seen), 1)

    async def test_a_handler_that_loses_its_slot_is_cancelled(self) -> None:
        sidecar, lease = await self.lease(5)
        begun, cancelled = asyncio.Event(), asyncio.Event()

        @self.handlers.on_owned("say", lease)
        async def say(_: OwnedRequest) -> None:
            begun.set()
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                cancelled.set()

        asking = asyncio.ensure_future(self.asks(to_key(key_in(5))))
        await begun.wait()
        (number,) = sidecar.grants_now
        sidecar.lose(number)
        status, headers, problem = await asking
        self.assertEqual((status, problem["type"]), (502, "urn:shardwise:problem:worker"), "it may have been handled in part")
        self.assertTrue(cancelled.is_set() and "shardwise-peer" not in headers)

    async def test_a_caller_that_has_gone_ends_the_handler(self) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        @self.handlers.on_owned("say")
        async def say(_: OwnedRequest) -> None:
            begun.set()
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                ended.set()

        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(to_key("a"))
        await begun.wait()
        writer.close()
        await asyncio.wait_for(ended.wait(), PATIENCE)
        await eventually("nothing runs", lambda: self.handlers._at_once == 0)

    async def test_a_further_request_on_the_connection_waits_for_its_turn(self) -> None:
        release, seen = asyncio.Event(), list[str]()

        @self.handlers.on_owned("say")
        async def say(owned: OwnedRequest) -> str:
            seen.append(owned.key)
            await release.wait()
            return owned.key

        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(to_key("a") + to_key("b"))
        await eventually("the first is handled", lambda: seen == ["a"])
        await asyncio.sleep(0.05)
        self.assertEqual(seen, ["a"])
        release.set()
        self.assertEqual([(await asyncio.wait_for(read(reader), PATIENCE))[2] for _ in range(2)], [b"a", b"b"])
        writer.close()

    async def test_a_thread_keeps_its_slot_until_it_has_ended(self) -> None:
        sidecar, lease = await self.lease(5)
        handlers, begun, release = RequestHandlers(in_threads=True), threading.Event(), threading.Event()
        await self.serve(handlers)

        @handlers.on_owned("say", lease)
        def say(owned: OwnedRequest) -> "list[object]":
            begun.set()
            release.wait(PATIENCE)
            return [owned.key, owned.fence]

        asking = asyncio.ensure_future(self.asks(to_key(key_in(5))))
        await eventually("it works", begun.is_set)
        (number,) = sidecar.grants_now
        sidecar.ask(number)
        await asyncio.sleep(0.05)
        self.assertEqual(sidecar.finished_numbers, [])
        release.set()
        self.assertEqual((await asking)[::2], (200, [key_in(5), [5, 7]]))
        await eventually("it is handed over", lambda: sidecar.finished_numbers == [number])

    async def test_a_lease_of_the_face_without_a_loop_is_for_threads(self) -> None:
        def serves() -> "tuple[int, int]":
            loop = Loop()
            try:
                sidecar = loop.run(FakeSidecar)
                loop.run(lambda: sidecar.grant(5, epoch=7))
                with sync.Lease(loop, sidecar.client) as lease:
                    handlers = RequestHandlers(in_threads=True)

                    @handlers.on_owned("say", lease)
                    def say(owned: OwnedRequest) -> "list[object]":
                        return [owned.key, owned.fence]

                    with self.assertRaises(ShardwiseError):
                        RequestHandlers().on_owned("say", lease)(say)
                    with sync.RequestServer(handlers) as server:
                        port = int(server.url.rpartition(":")[2])
                        return asyncio.run(exchanged(port, to_key(key_in(5))))[0], asyncio.run(exchanged(port, to_key(key_in(6))))[0]
            finally:
                loop.close()

        self.assertEqual(await asyncio.to_thread(serves), (200, 421))
