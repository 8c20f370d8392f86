"""The client against two sidecars of one group that run: `cargo test -p shardwise-cli --test clients` starts them and runs this."""

import asyncio
import time
import unittest
from collections.abc import AsyncIterator, Awaitable
from typing import Optional

from shardwise_client import Client, Event, NotOwning, Problem, ShardwiseError, Unavailable
from tests.common import ONE, OTHER, PATIENCE, TOKEN, Proxy, Scripted, client, eventually

# Each is alone in its part of a list.
LONG = [f"{n}" * 600_000 for n in range(5)]


class Answers(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.one, self.other = client(ONE), client(OTHER)
        self.addAsyncCleanup(self.one.close)
        self.addAsyncCleanup(self.other.close)
        await eventually("both share the slots", self.is_shared)

    async def is_shared(self) -> bool:
        shares = [(await each.ownership())["slots_owned"] or 0 for each in (self.one, self.other)]
        return sum(shares) == 256 and min(shares) > 0

    async def test_lists_are_shared_whole_and_in_parts(self) -> None:
        # Some three parts.
        keys = [f'tenant-{n} "größe" \u2028 \U0001f4a1 \\' for n in range(30_000)]
        mine, theirs = await self.one.owned(keys), await self.other.owned(keys)
        self.assertEqual((mine.state, theirs.state), ("active", "active"))
        owned = set(mine.keys)
        self.assertTrue(len(mine.keys) > 5_000 and len(theirs.keys) > 5_000)
        self.assertEqual(mine.keys, [key for key in keys if key in owned], "in their order")
        self.assertEqual(theirs.keys, [key for key in keys if key not in owned], "each key has one owner")
        self.assertEqual([key async for key in self.one.owned_stream(keys)], mine.keys)

        async def slowly() -> AsyncIterator[str]:
            for key in keys:
                yield key

        self.assertEqual([key async for key in self.one.owned_stream(slowly())], mine.keys)
        self.assertEqual((await self.one.owned([])), ([], "active"))
        self.assertEqual([key async for key in self.one.owned_stream([])], [])

    async def test_a_text_is_no_list(self) -> None:
        for keys in ("tenant-7", b"tenant-7"):
            with self.assertRaisesRegex(TypeError, "one"):
                await self.one.owned(keys)  # type: ignore[arg-type]
            with self.assertRaises(TypeError):
                await self.one.owned_stream(keys).__anext__()  # type: ignore[arg-type]

    async def test_a_list_has_one_deadline(self) -> None:
        async with Scripted("active", seconds=0.5) as slow:
            async with client(slow.url, timeout=1.2) as hasty:
                begun = time.monotonic()
                with self.assertRaises(Unavailable):
                    await hasty.owned(LONG)
                self.assertTrue(time.monotonic() - begun < PATIENCE / 2 and slow.asked < len(LONG), slow.asked)
            async with client(slow.url) as patient:
                self.assertEqual(await patient.owned(LONG), (LONG, "active"))

    async def test_a_list_ends_with_the_first_state_in_which_nothing_is_owned(self) -> None:
        for state in ("created", "joining", "draining", "left", "fenced", "refused", "unassigned"):
            async with Scripted("active", "stale", state, "active") as changing, client(changing.url) as asking:
                self.assertEqual(await asking.owned(LONG), ([], state))
                self.assertEqual(changing.asked, 3)
            async with Scripted("active", "unsharded", state, "active") as changing, client(changing.url) as asking:
                mine = []
                with self.assertRaises(NotOwning) as caught:
                    async for key in asking.owned_stream(LONG):
                        mine.append(key)
                self.assertEqual((mine, caught.exception.state, caught.exception.passes), (LONG[:2], state, True))
                self.assertIn(state, str(caught.exception))
                self.assertEqual(changing.asked, 3)

    async def test_owners_of_any_key(self) -> None:
        id_ = (await self.one.ownership())["instance_id"]
        for key in ["tenant-7", "größe /../\0", "..", ".", "a/../b", "%2e%2E", "a?b=c#d&e+f", "", " ", "\u2028\U0001f4a1", "k" * 50_000]:
            here, there = await self.one.owner(key), await self.other.owner(key)
            self.assertEqual((here["key"], here["owner"], here["slot"]), (key, there["owner"], there["slot"]))
            self.assertEqual((here["mine"], there["mine"]), (here["owner"] == id_, here["owner"] != id_))
            self.assertEqual((await self.one.owned([key])).keys, [key] if here["mine"] else [])
            explained = await self.other.explain(key)
            self.assertEqual((explained["slot"], explained["owner"] and explained["owner"]["instance_id"]), (here["slot"], here["owner"]))
            if len(key) < 50_000:
                route = await self.one.route(key)
                self.assertEqual((route["key"], route["pick"], route["set"]), (key, here["owner"], [here["owner"]]))
        with self.assertRaises(ShardwiseError):
            await self.one.owner("k" * 70_000)

    async def test_the_group_and_what_would_move(self) -> None:
        ownership, group = await self.one.ownership(), await self.one.members()
        self.assertEqual((ownership["policy"], ownership["state"], ownership["slots"]), ("workers", "active", 256))
        self.assertGreater(ownership["owned_for_ms"] or 0, 0)
        self.assertEqual(sum(member["slots"] or 0 for member in group["members"]), 256)
        self.assertIn(ownership["instance_id"], [member["instance_id"] for member in group["members"]])
        plan = await self.one.plan(join=[("new", 2)], leave=[ownership["instance_id"]])
        self.assertTrue(plan["after"]["members"] == 2 and plan["moved_share"] > 0.3 and plan["moves"][0]["share"] > 0)
        self.assertEqual((await self.one.plan())["moves"], [])

    async def test_refusals_are_problems(self) -> None:
        async def refused(status: int, kind: str, asked: Awaitable[object]) -> Problem:
            with self.assertRaises(Problem) as caught:
                await asked
            problem = caught.exception
            self.assertEqual((problem.status, problem.kind, problem.passes), (status, kind, False))
            self.assertTrue(problem.title and problem.detail and problem.detail in str(problem))
            return problem

        async with client(token="not-the-right-token") as stranger, client(policy="no/such") as lost:
            await refused(401, "unauthorized", stranger.ownership())
            await refused(401, "unauthorized", stranger.rebalances().__anext__())
            await refused(404, "not-found", lost.owned(["a"]))
        await refused(404, "unknown-instance", self.one.plan(leave=["nobody"]))
        await refused(404, "unknown-instance", self.one.drain("nobody"))
        await refused(400, "bad-key", self.one.owned(["a", "k" * 70_000]))

    async def test_a_token_is_sent_well_and_never_shown(self) -> None:
        async with client(token=f"{TOKEN}\n") as of_a_file:
            self.assertEqual((await of_a_file.ownership())["policy"], "workers")
        for token in (f"{TOKEN}\n\n", f"a\n{TOKEN}", f"größe{TOKEN}", f"{TOKEN}\0", f"{TOKEN} ", ""):
            with self.assertRaises(ShardwiseError) as caught:
                client(token=token)
            self.assertFalse(caught.exception.passes)
            self.assertNotIn(TOKEN, repr(caught.exception) + str(caught.exception))

    async def test_a_wrong_url_is_no_outage(self) -> None:
        for url in ("", "127.0.0.1:8087", "localhost:8087", "ftp://host", "unix:///run/it", "http://", "http:///v1", "http://host:99999", "http://host:0",
                    "http://host:secret", "http://name:secret@host", "http://host/?secret", "http://host#secret", "http://[::1"):  # fmt: skip
            with self.assertRaises(ShardwiseError, msg=url) as caught:
                Client("workers", url)
            self.assertFalse(caught.exception.passes)
            self.assertNotIn("secret", repr(caught.exception) + str(caught.exception))
        for url in (f"{ONE}/", f"{ONE}//"):
            async with client(url) as asking:
                self.assertEqual((await asking.ownership())["policy"], "workers")
        # httpx takes what it cannot send for trouble of the network.
        with self.assertRaises(ShardwiseError) as caught:
            await self.one.rebalances("two\nlines").__anext__()
        self.assertFalse(caught.exception.passes)

    async def test_who_does_not_answer_is_unavailable_in_time(self) -> None:
        async with Proxy() as proxy:
            proxy.is_mute = True
            async with client(proxy.url, timeout=0.5) as deaf:
                for asked in (deaf.owner("a"), deaf.drain("nobody")):
                    begun = time.monotonic()
                    with self.assertRaises(Unavailable) as caught:
                        await asked
                    self.assertTrue(caught.exception.passes and time.monotonic() - begun < PATIENCE / 2)
        async with client(proxy.url) as nobody:
            with self.assertRaises(Unavailable):
                await nobody.ownership()

    async def test_a_cancellation_is_never_lost(self) -> None:
        async with Proxy() as proxy:
            pass
        for url in (ONE, proxy.url):
            for steps in range(60):
                # A connection is made anew each time, and the cancellation comes one step later each time.
                async with Client("workers", url, token=TOKEN, verify=False, attempts=2) as asked:
                    task = asyncio.create_task(asked.owner("a"))
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    if task.cancel():
                        await asyncio.wait({task}, timeout=PATIENCE)
                        self.assertTrue(task.cancelled(), f"after {steps} steps at {url}")
                    else:
                        task.exception()

    async def test_only_what_is_safe_is_tried_again(self) -> None:
        async with Proxy() as proxy, client(proxy.url) as patient, client(proxy.url, attempts=2) as hasty:
            proxy.refusals = 2
            self.assertEqual((await patient.owner("a"))["key"], "a")
            self.assertEqual(proxy.requests, 3)
        async with Proxy() as proxy, client(proxy.url) as patient, client(proxy.url, attempts=2) as hasty:
            proxy.refusals = 2
            with self.assertRaises(Problem) as caught:
                await hasty.owned(["a"])
            self.assertEqual((caught.exception.status, caught.exception.passes, proxy.requests), (503, True, 2))
            proxy.refusals = 1
            with self.assertRaises(Problem):
                await patient.drain("nobody")
            self.assertEqual(proxy.requests, 3, "a wish is not told twice")
        async with Proxy() as proxy, client(proxy.url) as patient:
            proxy.swallows = True
            with self.assertRaises(Unavailable):
                await patient.undrain("nobody")
            self.assertEqual(proxy.requests, 1, "a wish that may have arrived is not told twice")
            with self.assertRaises(Unavailable):
                await patient.owner("a")
            self.assertEqual(proxy.requests, 4)

    async def test_followers_go_on_behind_a_break(self) -> None:
        theirs = (await self.other.ownership())["instance_id"]
        async with Proxy() as proxy, client(proxy.url) as follower:
            events = follower.rebalances()

            async def comes(kind: str) -> Event:
                event = await asyncio.wait_for(events.__anext__(), PATIENCE)
                self.assertEqual(event.kind, kind, event)
                return event

            async def until(slots: int) -> list[str]:
                ids, owned = [], -1
                while owned != slots:
                    rebalance = (await comes("rebalance")).rebalance
                    assert rebalance is not None
                    ids.append(rebalance["id"])
                    owned = rebalance["slots_owned"] or 0
                return ids

            await comes("gap")
            share = (await self.one.ownership())["slots_owned"] or 0
            self.assertEqual(await self.one.drain(theirs), {"instance_id": theirs, "drained": True, "changed": True})
            seen = await until(256)
            proxy.cut()
            lost = await comes("lost")
            self.assertTrue(lost.error is not None and lost.error.passes and str(lost.error))
            self.assertTrue((await self.one.undrain(theirs))["changed"])
            await eventually("both share the slots again", self.is_shared)
            proxy.is_cut = False
            await comes("gap")
            missed = await until(share)
            numbers = [int(id_.rpartition("-")[2]) for id_ in seen + missed]
            self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))), "nothing twice, nothing missed")
            await events.aclose()
            again = await self.first(follower, seen[0], 1)
            self.assertEqual([event.rebalance and event.rebalance["id"] for event in again], [(seen + missed)[1]])
        stranger = await self.first(self.one, "of-another-life", 2)
        self.assertEqual([event.kind for event in stranger], ["gap", "rebalance"])

    async def test_followers_notice_a_sidecar_that_goes_mute(self) -> None:
        async with Proxy() as proxy, client(proxy.url, silence=3.0) as follower:
            events = follower.rebalances("of-another-life")

            async def next_but(kind: str) -> Event:
                while (event := await asyncio.wait_for(events.__anext__(), PATIENCE)).kind == kind:
                    pass
                return event

            self.assertEqual((await next_but("gap")).kind, "rebalance")
            proxy.is_mute = True
            lost = await next_but("rebalance")
            self.assertEqual(lost.kind, "lost", lost)
            self.assertIsInstance(lost.error, Unavailable)
            self.assertIn("Timeout", str(lost.error))
            proxy.cut()
            proxy.is_mute = proxy.is_cut = False
            self.assertEqual((await asyncio.wait_for(events.__anext__(), PATIENCE)).kind, "gap")
            await events.aclose()

    async def test_what_is_lost_says_why(self) -> None:
        async with Client("workers", ONE.replace("http:", "https:"), token=TOKEN) as wrong:
            event = (await self.first(wrong, None, 1))[0]
            self.assertEqual(event.kind, "lost")
            self.assertIn("SSL", str(event.error))
        async with Proxy() as proxy, client(proxy.url) as busy:
            proxy.refusals = 1
            event = (await self.first(busy, None, 1))[0]
            self.assertTrue(event.kind == "lost" and isinstance(event.error, Problem) and event.error.status == 503, event)

    @staticmethod
    async def first(follower: Client, last: Optional[str], count: int) -> list[Event]:
        events = follower.rebalances(last)
        seen = [await asyncio.wait_for(events.__anext__(), PATIENCE) for _ in range(count)]
        await events.aclose()
        return seen
