"""A lease against a sidecar in memory that is silent, late, or takes away what it has granted."""

import asyncio
import sys
import time
import unittest
from collections.abc import AsyncGenerator
from typing import Any, Callable, Optional
from unittest import mock

from shardwise_client import Entered, LeaseEnded, Lost, NotHeld, ShardwiseError, Unavailable
from shardwise_client._clock import now
from shardwise_client._lease import Lease
from tests.fake_sidecar import PATIENCE, SLOTS, FakeSidecar, Lateness, Taken, key_in, slot

KEYS = [f"tenant-{n}" for n in range(40)]


async def until(what: str, condition: Callable[[], object]) -> None:
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > PATIENCE:
            raise AssertionError(f"waited {PATIENCE} s in vain: {what}")
        await asyncio.sleep(0.002)


class Busy(ShardwiseError):
    passes = True


async def silence(_lease: str) -> AsyncGenerator[dict[str, Any], None]:
    await asyncio.sleep(PATIENCE)
    yield {}


class Leases(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.sidecar = FakeSidecar()

    async def owns(self, lease: Lease, slots: int = SLOTS) -> None:
        await until(f"{slots} slots are owned", lambda: len(lease.holdings.open_grants()) == slots)

    async def test_it_is_opened_renewed_and_ended(self) -> None:
        self.sidecar.grant(5)
        lease = self.sidecar.client()
        self.assertEqual((lease.state, lease.id), ("opening", None))
        async with lease:
            self.assertEqual((lease.state, lease.id), ("active", self.sidecar.lease))
            mine = [key for key in KEYS if slot(key) == 5]
            self.assertEqual(lease.owned(KEYS), mine)
            self.assertEqual(lease.owned(key for key in KEYS), mine)
            self.assertTrue(lease.owns(key_in(5)) and not lease.owns(key_in(6)))
            self.sidecar.grant(6)
            await until("it is heard", lambda: lease.owns(key_in(6)))
            renewed = self.sidecar.renewed
            # Those from here on are asked for after the line was heard.
            await until("it is renewed", lambda: self.sidecar.renewed >= renewed + 2)
            self.assertEqual(self.sidecar.seen[-1], self.sidecar.version)
            for keys in ("tenant-7", b"tenant-7"):
                with self.assertRaises(TypeError):
                    lease.owned(keys)  # type: ignore[arg-type]
            with self.assertRaises(TypeError):
                lease.owns(7)  # type: ignore[arg-type]
        self.assertEqual((lease.state, lease.id, self.sidecar.lease), ("ended", None, None))
        with self.assertRaises(LeaseEnded):
            lease.owned(KEYS)
        with self.assertRaises(ShardwiseError):
            async with lease:
                pass
        await lease.close()

    async def test_the_first_grant_does_not_wait_for_the_next_renewal(self) -> None:
        async with self.sidecar.client(ttl=60.0) as lease:
            self.assertEqual((lease.state, lease.owned(KEYS)), ("active", []))
            self.sidecar.grant_all()
            await until("all is owned", lambda: lease.owned(KEYS) == KEYS)
            self.sidecar.grants_now.clear()
            self.sidecar.send_all()
            await until("nothing is", lambda: lease.owned(KEYS) == [])
            self.assertEqual((lease.state, self.sidecar.streams), ("active", 1))

    async def test_only_one_is_live(self) -> None:
        async with self.sidecar.client():
            waits = asyncio.ensure_future(self.sidecar.client().__aenter__())
            with self.assertRaises(ShardwiseError):
                async with self.sidecar.client(within=0.2):
                    pass
            self.assertFalse(waits.done())
        other = await asyncio.wait_for(waits, PATIENCE)
        self.assertEqual(other.state, "active")
        await other.close()
        self.sidecar.is_silent = True
        with self.assertRaises(Unavailable):
            async with self.sidecar.client(within=0.1):
                pass
        for ttl in (0.5, 61.0):
            with self.assertRaises(ShardwiseError):
                Lease(self.sidecar, ttl, reopen=True, on_ended=None, within=1.0)

    async def test_each_cause_is_logged_once(self) -> None:
        async with self.sidecar.client():
            with self.assertLogs("shardwise_client", "WARNING") as logged, mock.patch.object(self.sidecar, "open", wraps=self.sidecar.open) as opens:
                waits = asyncio.ensure_future(self.sidecar.client(within=PATIENCE).__aenter__())
                await until("it has asked three times", lambda: opens.call_count >= 3)
                waits.cancel()
                await asyncio.wait({waits})
            self.assertEqual(logged.output, [f"WARNING:shardwise_client:there is no lease yet: {self.sidecar.place}: 409 lease-taken"])
        async with self.sidecar.client(reopen=False) as lease:
            with self.assertLogs("shardwise_client", "WARNING") as logged:
                with mock.patch.object(self.sidecar, "renew", side_effect=Unavailable("refused")) as renews:
                    await until("two renewals have failed", lambda: renews.call_count >= 2)
                    self.sidecar.end_lease("it was not renewed in time")
                    await until("it has ended", lambda: lease.state == "ended")
            said = [record.getMessage() for record in logged.records if record.levelname == "WARNING"]
            last = f"(the last failure: {self.sidecar.place}: refused)"
            self.assertEqual(len(said), 2, said)
            self.assertTrue(said[0].startswith("the lease was not renewed, ") and said[0].endswith(f": {self.sidecar.place}: refused"), said)
            self.assertEqual(said[1], f"the lease has ended: it was not renewed in time {last}; all work under it is cancelled")

    async def test_a_lease_without_grants_says_why(self) -> None:
        async with self.sidecar.client() as lease:
            with self.assertRaisesRegex(Taken, "lease-taken"):
                async with self.sidecar.client(within=1.0):
                    pass
            # It is opened in time, but what it holds is never known.
            self.sidecar.is_cut, self.sidecar.cut = True, Busy("8 read it already")
            late = asyncio.ensure_future(self.sidecar.client(within=2.0).__aenter__())
            await asyncio.sleep(0.1)
            await lease.close()
            with self.assertRaisesRegex(Busy, "8 read it already"):
                await late
        self.sidecar.is_cut = False
        # What was wrong before it was opened does not explain why it is silent.
        async with self.sidecar.client() as lease:
            with mock.patch.object(self.sidecar, "grants", silence):
                late = asyncio.ensure_future(self.sidecar.client(within=2.0).__aenter__())
                await asyncio.sleep(0.1)
                await lease.close()
                with self.assertRaisesRegex(Unavailable, "no lease within"):
                    await late

    async def test_a_silent_sidecar_ends_all_by_the_own_clock(self) -> None:
        self.sidecar.grant_all()
        async with self.sidecar.client() as lease:
            await self.owns(lease)
            ended: list[float] = []
            held: list[Entered] = []

            async def works() -> None:
                async with lease.enter("a") as entered:
                    held.append(entered)
                    try:
                        await asyncio.sleep(PATIENCE)
                    finally:
                        ended.append(now())

            working = asyncio.ensure_future(works())
            await until("it works", lambda: held)
            self.sidecar.is_silent = True
            deadline = lease.holdings.table.deadline if lease.holdings.table else 0.0
            async with Lateness() as late:
                await asyncio.wait({working}, timeout=PATIENCE)
            with self.assertRaisesRegex(Lost, "not renewed"):
                working.result()
            # By way of the timer, the cancellation and the task, each of which the machine may run late.
            self.assertLessEqual(ended[0], deadline + 0.05 + 3 * late.worst)
            self.assertFalse(held[0].is_held or lease.owned(KEYS))
            self.assertEqual(lease.state, "expired")
            with self.assertRaisesRegex(NotHeld, "expired"):
                async with lease.enter("a"):
                    pass
            # It has not ended: with the next answer what was granted holds again, and what was lost stays lost.
            self.sidecar.is_silent = False
            await self.owns(lease)
            self.assertEqual((lease.owned(KEYS), self.sidecar.opened), (KEYS, 1))
            self.assertFalse(held[0].is_held)

    async def test_late_answers_are_shorter_grants(self) -> None:
        self.sidecar.grant_all()
        async with self.sidecar.client(ttl=1.2) as lease:
            self.sidecar.seconds = 0.25
            table = lease.holdings.table
            assert table is not None
            before, deadline = self.sidecar.renewed, table.deadline
            await until("two late answers have come", lambda: self.sidecar.renewed >= before + 2 and table.deadline > deadline)
            # At most a ttl after the question, which was sent before the answer.
            self.assertLessEqual(table.deadline, now() + 1.2 - 0.25)
            self.sidecar.seconds = 0.0

    async def test_a_loss_that_was_not_heard_ends_the_deadline(self) -> None:
        number = self.sidecar.grant(5)
        async with self.sidecar.client() as lease:
            await self.owns(lease, 1)
            self.sidecar.is_cut = True
            self.sidecar.break_streams()
            self.sidecar.lose(number)
            renewed = self.sidecar.renewed
            expired = "it is renewed under a version that it has not seen"
            await until(expired, lambda: lease.state == "expired" and self.sidecar.renewed > renewed)
            self.assertFalse(lease.owns(key_in(5)))
            self.sidecar.is_cut = False
            await until("the stream is there again", lambda: lease.state == "active")
            self.assertFalse(lease.owns(key_in(5)))

    async def test_a_slot_is_handed_over_once_its_work_has_ended(self) -> None:
        idle, busy = self.sidecar.grant(5), self.sidecar.grant(6)
        # Its next renewal is far away.
        async with self.sidecar.client(ttl=60.0) as lease:
            await self.owns(lease, 2)
            async with lease.enter(key_in(6)) as entered:
                begun = time.monotonic()
                self.sidecar.ask(idle)
                self.sidecar.ask(busy)
                await asyncio.wait_for(entered.finish.wait(), PATIENCE)
                await until("the idle one is finished at once", lambda: self.sidecar.finished_numbers == [idle])
                self.assertLess(time.monotonic() - begun, PATIENCE / 2)
                with self.assertRaisesRegex(NotHeld, "handed over"):
                    async with lease.enter(key_in(6)):
                        pass
                self.assertFalse(lease.owns(key_in(6)))
                entered.check()
                self.assertEqual(entered.fence, (6, 1))
            await until("the other one is finished", lambda: self.sidecar.finished_numbers == [idle, busy])
            self.sidecar.grant(6)
            await until("it may come again under the same epoch", lambda: lease.owns(key_in(6)))

    async def test_what_is_lost_cancels_the_task_that_entered(self) -> None:
        number, other = self.sidecar.grant(5), self.sidecar.grant(6)
        async with self.sidecar.client() as lease:
            await self.owns(lease, 2)
            steps: list[str] = []

            async def works() -> None:
                try:
                    async with lease.enter(key_in(6)):
                        async with lease.enter(key_in(5)):
                            steps.append("in")
                            await asyncio.sleep(PATIENCE)
                except Lost as lost:
                    steps.append(str(lost))
                # The task goes on: no cancellation is left over.
                await asyncio.sleep(0.01)
                steps.append("over")

            working = asyncio.ensure_future(works())
            await until("it works", lambda: steps)
            self.sidecar.lose(number)
            await asyncio.wait_for(working, PATIENCE)
            self.assertTrue(steps[0] == "in" and steps[2] == "over" and key_in(5) in steps[1] and "slot 5" in steps[1], steps)

            # Both at once.
            number = self.sidecar.grant(5, epoch=2)
            await until("it is there again", lambda: lease.owns(key_in(5)))
            steps.clear()
            working = asyncio.ensure_future(works())
            await until("it works", lambda: steps)
            self.sidecar.lose(number)
            self.sidecar.lose(other)
            await asyncio.wait_for(working, PATIENCE)
            self.assertEqual((steps[0], steps[-1], len(steps)), ("in", "over", 3))

    async def test_a_block_that_ends_well_was_held_to_its_end(self) -> None:
        number = self.sidecar.grant(5)
        async with self.sidecar.client() as lease:
            await self.owns(lease, 1)
            with self.assertRaises(Lost):
                async with lease.enter(key_in(5)) as entered:
                    self.sidecar.lose(number)
                    try:
                        await asyncio.sleep(PATIENCE)
                    except asyncio.CancelledError:
                        self.assertTrue(entered.lost.is_set())
            self.sidecar.grant(5, epoch=2)
            await until("it is there again", lambda: lease.owns(key_in(5)))
            with self.assertRaises(ZeroDivisionError):
                async with lease.enter(key_in(5)):
                    raise ZeroDivisionError
            async with lease.enter(key_in(5), ask=True):
                pass
            self.sidecar.grants_now.clear()
            with self.assertRaisesRegex(NotHeld, "sidecar says"):
                async with lease.enter(key_in(5), ask=True):
                    pass

    @unittest.skipIf(sys.version_info < (3, 11), "cancellations look the same")
    async def test_a_cancellation_of_others_is_never_swallowed(self) -> None:
        self.sidecar.grant(5)
        async with self.sidecar.client() as lease:
            await self.owns(lease, 1)
            for steps in (0, 1):
                entered: list[Entered] = []

                async def works(entered: list[Entered] = entered) -> None:
                    async with lease.enter(key_in(5)) as held:
                        entered.append(held)
                        await asyncio.sleep(PATIENCE)

                working = asyncio.ensure_future(works())
                await until("it works", lambda entered=entered: entered)  # type: ignore[misc]
                # Both at the same moment, in either order.
                entered[0].lose("it is a test")
                for _ in range(steps):
                    await asyncio.sleep(0)
                self.assertTrue(working.cancel())
                await asyncio.wait({working}, timeout=PATIENCE)
                self.assertTrue(working.cancelled())

    async def test_a_lease_that_ends_is_replaced(self) -> None:
        self.sidecar.grant_all()
        ends: list[LeaseEnded] = []
        async with self.sidecar.client(on_ended=ends.append) as lease:
            await self.owns(lease)
            with self.assertRaisesRegex(Lost, "renewed too late"):
                async with lease.enter("a"):
                    self.sidecar.end_lease()
                    await asyncio.sleep(PATIENCE)
            await until("there is another", lambda: lease.state == "active" and self.sidecar.opened == 2)
            self.assertEqual(([end.why for end in ends], lease.owned(KEYS)), (["it was renewed too late"], []))
            self.sidecar.grant_all(epoch=2)
            await self.owns(lease)
            async with lease.enter("a") as entered:
                self.assertEqual(entered.epoch, 2)
            # A sidecar that was restarted does not know the lease.
            self.sidecar.lease = None
            await until("there is a third one", lambda: self.sidecar.opened == 3)
        self.assertEqual(len(ends), 2)

    async def test_a_lease_may_be_the_only_one(self) -> None:
        self.sidecar.grant_all()
        async with self.sidecar.client(reopen=False) as lease:
            await self.owns(lease)
            run = lease.run_owned(["a"], self.works_for_ever)
            await until("it works", lambda: run.running)
            self.sidecar.end_lease()
            with self.assertRaises(LeaseEnded):
                await asyncio.wait_for(run.wait(), PATIENCE)
            self.assertEqual((run.running, lease.state, self.sidecar.opened), ([], "ended", 1))
            for asked in (lambda: lease.owned(KEYS), lambda: lease.singleton("x", self.works_for_ever)):
                with self.assertRaises(LeaseEnded):
                    asked()

    async def works_for_ever(self, *_: object) -> None:
        await asyncio.sleep(PATIENCE)

    async def test_work_that_does_not_end_blocks_its_slot_only(self) -> None:
        number = self.sidecar.grant(5)
        async with self.sidecar.client() as lease:
            await self.owns(lease, 1)
            let_go, begun = asyncio.Event(), asyncio.Event()

            async def stubborn() -> None:
                async with lease.enter(key_in(5)):
                    begun.set()
                    while not let_go.is_set():
                        try:
                            await let_go.wait()
                        except asyncio.CancelledError:
                            pass

            working = asyncio.ensure_future(stubborn())
            await asyncio.wait_for(begun.wait(), PATIENCE)
            self.sidecar.lose(number)
            self.sidecar.grant(5, epoch=2)
            self.sidecar.grant(6)
            await until("it is held again", lambda: lease.owns(key_in(6)))
            run = lease.run_owned([key_in(5), key_in(6)], self.works_for_ever)
            await until("the other one is worked on", lambda: run.running == [key_in(6)])
            with self.assertRaisesRegex(NotHeld, "not ended yet"):
                async with lease.enter(key_in(5)):
                    pass
            let_go.set()
            await until("both are worked on", lambda: len(run.running) == 2)
            await asyncio.wait({working})
            self.assertIsInstance(working.exception(), Lost)

    async def test_closing_waits_for_work(self) -> None:
        self.sidecar.grant_all()
        ended: list[tuple[Optional[str], bool]] = []

        async def works(key: str, entered: Entered) -> None:
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                await asyncio.sleep(0.05)
                ended.append((self.sidecar.lease, entered.is_held))

        async with self.sidecar.client() as lease:
            run = lease.run_owned(KEYS, works)
            await until("all are worked on", lambda: len(run.running) == len(KEYS))
            live = self.sidecar.lease
        self.assertEqual(ended, [(live, True)] * len(KEYS), "it was held until the last work had ended")
        self.assertIsNone(self.sidecar.lease)
