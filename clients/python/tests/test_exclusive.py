"""Leases under exclusive ownership, with sidecars that run."""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Callable

from shardwise_client import (
    Client,
    Entered,
    HeldRequest,
    Lease,
    LeaseEnded,
    Lost,
    NotHeld,
    OwnedRequest,
    Problem,
    Request,
    RequestHandlers,
    RequestServer,
    SlotChange,
    To,
    Unknown,
    sync,
)
from shardwise_client._clock import now
from tests.fake_sidecar import Lateness
from tests.sidecars import PATIENCE, ROOT, SLOTS, TOKEN, WithSidecars, free_port

KEYS = [f"tenant {n} größe/.." for n in range(200)]
# A dead worker's slots are with others after its lease and this, in seconds; a busy machine is slower by what it is late itself.
TAKEOVER = 1.0


async def until(what: str, condition: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(f"waited {PATIENCE} s in vain: {what}")
        await asyncio.sleep(0.005)


def shared(*leases: Lease) -> bool:
    """Whether each key is owned once, and each worker owns some."""
    owned = [lease.owned(KEYS) for lease in leases]
    return all(owned) and sorted(key for keys in owned for key in keys) == sorted(KEYS)


class Exclusive(WithSidecars):
    def run_here(self, test: "Coroutine[Any, Any, None]") -> None:
        asyncio.run(test)

    def test_two_workers_share_the_keys_and_hand_them_over(self) -> None:
        self.run_here(self.share())

    async def share(self) -> None:
        one, two = self.sidecar("one"), self.sidecar("two")
        async with Client("workers", one.url) as client, Client("workers", two.url) as other:
            changes: list[SlotChange] = []
            async with client.lease(ttl=2.0) as first:
                first.on_rebalance(changes.append, KEYS)
                await until("one owns all", lambda: first.owned(KEYS) == KEYS)
                with self.assertRaises(Problem) as caught:
                    async with client.lease(within=2.0):
                        pass
                self.assertEqual((caught.exception.status, caught.exception.kind), (409, "lease-taken"))
                async with other.lease(ttl=2.0) as second:
                    await until("both share", lambda: shared(first, second))
                    # A change is reported a moment later.
                    await until("it is reported", lambda: changes[-1].keys_owned == len(first.owned(KEYS)) and changes[-1].slots_owned < SLOTS)
                    key = second.owned(KEYS)[0]
                    with self.assertRaises(NotHeld):
                        async with first.enter(key):
                            pass
                    async with second.enter(key, ask=True) as entered:
                        entered.check()
                        slot, epoch = entered.fence
                        # Another member reads the claims a moment later.
                        limit = time.monotonic() + PATIENCE
                        while (owner := await client.owner(key))["holder"] != "two":
                            self.assertLess(time.monotonic(), limit, owner)
                        self.assertEqual((owner["slot"], owner["epoch"]), (slot, epoch))
                    while (holders := {held["holder"] for held in (await other.holders())["slots"]}) != {"one", "two"}:
                        self.assertLess(time.monotonic(), limit, holders)
                begun = time.monotonic()
                await until("the first one has all again", lambda: first.owned(KEYS) == KEYS)
                self.assertLess(time.monotonic() - begun, PATIENCE / 4, "a lease that was ended gives its slots up at once")
                async with first.enter(key) as entered:
                    self.assertGreater(entered.epoch, epoch)

    def test_handover_waits_for_the_work(self) -> None:
        self.run_here(self.waits())

    async def waits(self) -> None:
        one, two = self.sidecar("one"), self.sidecar("two")
        async with Client("workers", one.url) as client, Client("workers", two.url) as other, client.lease(ttl=2.0) as first:
            await until("one owns all", lambda: first.owned(KEYS) == KEYS)
            entered = {key: first.enter(key) for key in KEYS}
            holds = {key: await entering.__aenter__() for key, entering in entered.items()}
            async with other.lease(ttl=2.0) as second:
                await until("some are to go", lambda: any(hold.finish.is_set() for hold in holds.values()))
                going = [key for key, hold in holds.items() if hold.finish.is_set()]
                await asyncio.sleep(0.5)
                self.assertEqual((second.owned(KEYS), [holds[key].is_held for key in going]), ([], [True] * len(going)))
                for entering in entered.values():
                    await entering.__aexit__(None, None, None)
                begun = time.monotonic()
                await until("they are handed over", lambda: shared(first, second))
                self.assertLess(time.monotonic() - begun, PATIENCE / 4)

    def test_processes_share_a_lease(self) -> None:
        self.run_here(self.share_a_lease())

    async def share_a_lease(self) -> None:
        one = self.sidecar("one")
        async with Client("workers", one.url) as client, Client("workers", one.url) as other:
            async with client.lease(ttl=2.0) as lease:
                await until("it owns all", lambda: lease.owned(KEYS) == KEYS)
                id_ = lease.id or ""
                self.assertEqual(await other.owned(KEYS, lease=id_), (KEYS, "active"))
                async with lease.enter(KEYS[0]) as entered:
                    held = (await other.enter([KEYS[0], KEYS[1]], lease=id_))[0]
                    self.assertEqual((held["key"], held["slot"], held["epoch"]), (KEYS[0], *entered.fence))
                    self.assertTrue(0 < held["valid_ms"] <= 2_000)
            with self.assertRaises(LeaseEnded):
                await other.enter(KEYS[:1], lease=id_)

    def test_a_worker_that_loses_its_sidecar_stops_by_its_own_clock(self) -> None:
        self.run_here(self.stops())

    async def stops(self) -> None:
        one, two = self.sidecar("one"), self.sidecar("two")
        async with Client("workers", one.url) as client, Client("workers", two.url) as other:
            async with client.lease(ttl=1.5) as first, other.lease(ttl=1.5) as second:
                await until("both share", lambda: shared(first, second))
                key, ended = second.owned(KEYS)[0], list[float]()

                async def works() -> None:
                    async with second.enter(key):
                        try:
                            await asyncio.sleep(PATIENCE)
                        finally:
                            ended.append(now())

                working = asyncio.ensure_future(works())
                await asyncio.sleep(0)
                two.kill()
                killed = now()
                async with Lateness() as late:
                    await asyncio.wait({working}, timeout=PATIENCE)
                self.assertIsInstance(working.exception(), Lost)
                self.assertLess(ended[0] - killed, 1.5 + TAKEOVER + 3 * late.worst)
                self.assertEqual(second.owned(KEYS), [])
                await until("the other one takes over", lambda: first.owned(KEYS) == KEYS)

    def test_a_dead_workers_slots_are_taken_over(self) -> None:
        self.run_here(self.dies())

    async def dies(self) -> None:
        one, two = self.sidecar("one"), self.sidecar("two")
        async with Client("workers", one.url) as client, client.lease(ttl=1.0) as first:
            port = free_port()
            dies = self.program(str(ROOT / "clients/python/examples/alert_monitor.py"), "run", "workers", two.url, str(port))
            # In a thread: a loop that is blocked renews no lease.
            await asyncio.to_thread(dies.prints, "it works", lambda lines: any(line["did"] == "evaluated" for line in lines))
            dies.kill()
            begun = time.monotonic()
            await until("all are taken over", lambda: first.owned(KEYS) == KEYS)
            # The example's lease lasts 2 s.
            self.assertLess(time.monotonic() - begun, PATIENCE / 4)

    def test_a_sidecar_that_is_restarted_has_no_lease(self) -> None:
        self.run_here(self.restarts())

    async def restarts(self) -> None:
        port = free_port()
        one, ends = self.sidecar("one", port=port), list[LeaseEnded]()
        async with Client("workers", one.url) as client, client.lease(ttl=2.0, on_ended=ends.append) as lease:
            await until("it owns all", lambda: lease.owned(KEYS) == KEYS)
            async with lease.enter(KEYS[0]) as entered:
                epoch = entered.epoch
            one.kill()
            self.sidecar("one", port=port)
            await until("the lease has ended", lambda: ends)
            await until("it owns all again", lambda: lease.owned(KEYS) == KEYS)
            async with lease.enter(KEYS[0]) as entered:
                self.assertGreater(entered.epoch, epoch)

    def test_names(self) -> None:
        self.run_here(self.names())

    async def names(self) -> None:
        one, two = self.sidecar("one"), self.sidecar("two")
        leads: list[str] = []
        fired: list[int] = []

        def leader(of: str) -> Callable[[Entered], "Coroutine[Any, Any, None]"]:
            async def works(entered: Entered) -> None:
                self.assertEqual(entered.resource, "name/singleton/leader")
                leads.append(of)
                try:
                    await asyncio.sleep(PATIENCE)
                finally:
                    leads.remove(of)

            return works

        async def job(period: Any, _entered: Entered) -> None:
            fired.append(period.number)

        async with Client("workers", one.url) as client, Client("workers", two.url) as other, client.lease(ttl=2.0) as first:
            async with other.lease(ttl=2.0) as second:
                first.singleton("leader", leader("one"))
                second.singleton("leader", leader("two"))
                first.timer("tick", 1.0, job)
                second.timer("tick", 1.0, job)
                await until("one of them leads", lambda: leads)
                await until("the timer is fired", lambda: len(fired) >= 3)
                self.assertEqual(len(leads), 1)
                self.assertEqual(fired, sorted(set(fired)), "each period once")
            await until("the one that is left leads", lambda: leads == ["one"])

    def test_without_a_loop(self) -> None:
        one = self.sidecar("one")
        with sync.Client("workers", one.url) as client, client.lease(ttl=2.0) as lease:
            limit = time.monotonic() + PATIENCE
            while lease.owned(KEYS) != KEYS and time.monotonic() < limit:
                time.sleep(0.01)
            with lease.enter(KEYS[0], ask=True) as entered:
                entered.check()
                while client.owner(KEYS[0])["epoch"] != entered.epoch:
                    self.assertLess(time.monotonic(), limit, "the holder is shown")
            self.assertEqual({held["holder"] for held in client.holders()["slots"]}, {"one"})
            self.assertEqual(client.members()["members"][0]["instance_id"], "one")


class Requests(WithSidecars):
    def test_requests_come_to_the_worker(self) -> None:
        asyncio.run(self.come())

    async def come(self) -> None:
        handlers = RequestHandlers()

        @handlers.on_request("cache/flush")
        async def flush(request: Request) -> dict[str, Any]:
            return {"method": request.method, "body": request.json(), "args": request.args}

        @handlers.on_any("cache/size")
        def size(_: Request) -> str:
            return "7"

        tokens = ("--token-file", "token", "--peer-token-file", "peers")
        async with RequestServer(handlers, prefix="/hooks") as server:
            one = self.sidecar("one", *tokens)
            self.sidecar("two", *tokens, "--forward-to", server.url)
            async with Client("workers", one.url, token=TOKEN) as client:
                limit = time.monotonic() + PATIENCE
                while len((await client.members())["members"]) < 2 and time.monotonic() < limit:
                    await asyncio.sleep(0.02)
                answer = await client.instance("two", "cache/flush", method="POST", json=[1], query={"a": "b c"})
                self.assertEqual((answer.status, answer.instance, answer.json()), (200, "two", {"method": "POST", "body": [1], "args": {"a": "b c"}}))
                self.assertEqual((await client.instance("two", "cache/size")).status, 404, "it is not for one instance")
                answer = await client.any("cache/size", query={"instance": "two"})
                self.assertEqual((answer.is_ok, answer.text, answer.instance), (True, "7", "two"))
                status = await client.instance("two", "status")
                self.assertEqual(status.json()["instance_id"], "two", "without a handler the sidecar answers")
                with self.assertRaises(Problem) as caught:
                    await client.instance("nowhere", "status")
                self.assertEqual(caught.exception.kind, "unknown-instance")


class Owners(WithSidecars):
    """Two workers, each beside its sidecar, that answer requests to the keys that they hold."""

    async def workers(self, stack: AsyncExitStack) -> "tuple[list[Client], list[Lease], list[RequestHandlers]]":
        all_handlers = [RequestHandlers(), RequestHandlers()]
        servers = [await stack.enter_async_context(RequestServer(handlers)) for handlers in all_handlers]
        tokens = ("--token-file", "token", "--peer-token-file", "peers")
        sidecars = [self.sidecar(name, *tokens, "--forward-to", server.url) for name, server in zip(("one", "two"), servers)]
        self.last = sidecars[1]
        clients = [await stack.enter_async_context(Client("workers", sidecar.url, token=TOKEN)) for sidecar in sidecars]
        leases = [await stack.enter_async_context(client.lease(ttl=2.0)) for client in clients]
        await until("both share", lambda: shared(*leases))
        return clients, leases, all_handlers

    async def claimed(self, client: Client, key: str) -> None:
        """Waits until that sidecar routes the key by its claim: another member's claim is seen there a moment later."""
        limit = time.monotonic() + PATIENCE
        while True:
            with suppress(Problem):
                route = await client.route(key)
                self.assertEqual(route["key"], key)
                if route["why"] == "claim":
                    return
            self.assertLess(time.monotonic(), limit, f"{key} has no claim")
            await asyncio.sleep(0.005)

    def test_requests_to_keys_come_to_their_owner(self) -> None:
        asyncio.run(self.come_to_the_owner())

    async def come_to_the_owner(self) -> None:
        async with AsyncExitStack() as stack:
            clients, leases, all_handlers = await self.workers(stack)

            def answers(name: str) -> Callable[[OwnedRequest], "dict[str, Any]"]:
                def say(owned: OwnedRequest) -> "dict[str, Any]":
                    assert owned.entered is not None and owned.request.fence == owned.fence == owned.entered.fence
                    return {"by": name, "key": owned.key, "fence": owned.fence, "body": owned.request.json()}

                return say

            for name, lease, handlers in zip(("one", "two"), leases, all_handlers):
                handlers.on_owned("rooms/say", lease)(answers(name))
            for key in KEYS[:40]:
                owner = 0 if leases[0].owns(key) else 1
                async with leases[owner].enter(key) as entered:
                    fence = [*entered.fence]
                for client in clients:
                    await self.claimed(client, key)
                    answer = await client.ask(To.owner(key), "rooms/say", json=[1], within=PATIENCE)
                    name = ("one", "two")[owner]
                    self.assertEqual((answer.status, answer.instance), (200, name), answer.text)
                    self.assertEqual(answer.json(), {"by": name, "key": key, "fence": fence, "body": [1]})

            # Of a name that no member holds yet, the request waits for the first holder.
            @all_handlers[0].on_held("lead")
            async def lead(held: HeldRequest) -> "list[object]":
                return [held.name, held.epoch]

            asked = asyncio.ensure_future(clients[1].ask(To.holder("singleton/leader"), "lead", within=PATIENCE))
            epochs = list[int]()

            async def leads(entered: Entered) -> None:
                epochs.append(entered.epoch)
                await entered.finish.wait()

            leases[0].singleton("leader", leads)
            answer = await asked
            await until("it leads", lambda: epochs)
            self.assertEqual((answer.status, answer.json()), (200, ["singleton/leader", epochs[0]]), answer.text)

            # While the second one gives all up, no request is lost.
            async def asks(key: str) -> str:
                return str((await clients[0].ask(To.owner(key), "rooms/say", json=[2], within=PATIENCE)).json()["by"])

            asking = [asyncio.ensure_future(asks(key)) for key in KEYS]
            await leases[1].close()
            self.assertEqual(set(await asyncio.gather(*asking)) - {"one", "two"}, set())
            self.assertEqual({await asks(key) for key in KEYS}, {"one"})

    def test_a_caller_that_gives_up_ends_the_handler_and_a_dead_member_is_unknown(self) -> None:
        asyncio.run(self.gives_up())

    async def gives_up(self) -> None:
        async with AsyncExitStack() as stack:
            clients, leases, all_handlers = await self.workers(stack)
            begun, ended = list[str](), list[str]()

            async def slow(owned: OwnedRequest) -> str:
                begun.append(owned.key)
                try:
                    await asyncio.sleep(0 if owned.request.idempotency_key == "quick" else PATIENCE)
                finally:
                    ended.append(owned.key)
                return "done"

            for lease, handlers in zip(leases, all_handlers):
                handlers.on_owned("slow", lease)(slow)
            key = leases[1].owned(KEYS)[0]
            asking = asyncio.ensure_future(clients[0].ask(To.owner(key), "slow", body=b"", within=PATIENCE))
            await until("it is handled", lambda: begun)
            asking.cancel()
            await until("the handler has ended", lambda: ended)

            asking = asyncio.ensure_future(clients[0].ask(To.owner(key), "slow", body=b"", within=PATIENCE))
            await until("it is handled again", lambda: len(begun) == 2)
            self.last.kill()
            with self.assertRaises(Unknown):
                await asking
            answer = await clients[0].ask(To.owner(key), "slow", body=b"", within=PATIENCE, idempotency_key="quick")
            self.assertEqual((answer.text, answer.instance), ("done", "one"), "the next owner takes what comes later")


class Examples(WithSidecars):
    def test_the_django_command(self) -> None:
        one, tenants = self.sidecar("one"), self.place / "tenants"
        tenants.write_text("".join(f"{key}\n" for key in KEYS), encoding="utf-8")
        example = str(ROOT / "clients/python/examples/django_command.py")
        arguments = ["--policy", "workers", "--url", one.url, "--tenants", str(tenants), "--pause", "0.05"]
        command = self.program(example, *arguments)
        command.prints("all are reminded", lambda lines: all(any(f"reminded {key} under" in line["text"] for line in lines) for key in KEYS))
        self.assertEqual(command.ends(), 0, command.log.read_text())
