"""A lease against a sidecar in memory that is silent, late, or takes away what it has granted."""

import asyncio
import sys
import time
import unittest
from collections.abc import AsyncGenerator
from typing import Any, Callable, Optional
from unittest import mock

from shardwise_client import Entered, LeaseEnded, Lost, NotHeld, Period, ShardwiseError, SlotChange, Unavailable
from shardwise_client._clock import now
from shardwise_client._lease import Lease
from tests.fake_sidecar import PATIENCE, SLOTS, FakeSidecar, Taken, key_in, slot

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
            await until("it is renewed", lambda: self.sidecar.renewed >= 3)
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

    async def test_a_lease_without_grants_says_why(self) -> None:
        async with self.sidecar.client() as lease:
            with self.assertRaisesRegex(Taken, "lease-taken"):
                async with self.sidecar.client(within=0.2):
                    pass
            # It is opened in time, but what it holds is never known.
            self.sidecar.is_cut, self.sidecar.cut = True, Busy("8 read it already")
            late = asyncio.ensure_future(self.sidecar.client(within=0.6).__aenter__())
            await asyncio.sleep(0.1)
            await lease.close()
            with self.assertRaisesRegex(Busy, "8 read it already"):
                await late
        self.sidecar.is_cut = False
        # What was wrong before it was opened does not explain why it is silent.
        async with self.sidecar.client() as lease:
            with mock.patch.object(self.sidecar, "grants", silence):
                late = asyncio.ensure_future(self.sidecar.client(within=0.6).__aenter__())
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
            await asyncio.wait({working}, timeout=PATIENCE)
            with self.assertRaisesRegex(Lost, "not renewed"):
                working.result()
            self.assertLessEqual(ended[0], deadline + 0.05, "a busy machine may be late")
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
            await until("it is renewed under a version that it has not seen", lambda: lease.state == "expired")
            self.assertGreater(self.sidecar.renewed, renewed)
            self.assertFalse(lease.owns(key_in(5)))
            self.sidecar.is_cut = False
            await until("the stream is there again", lambda: lease.state == "active")
            self.assertFalse(lease.owns(key_in(5)))

    async def test_a_slot_is_handed_over_once_its_work_has_ended(self) -> None:
        idle, busy = self.sidecar.grant(5), self.sidecar.grant(6)
        async with self.sidecar.client() as lease:
            await self.owns(lease, 2)
            async with lease.enter(key_in(6)) as entered:
                begun = time.monotonic()
                self.sidecar.ask(idle)
                self.sidecar.ask(busy)
                await asyncio.wait_for(entered.finish.wait(), PATIENCE)
                await until("the idle one is finished at once", lambda: self.sidecar.finished_numbers == [idle])
                self.assertLess(time.monotonic() - begun, 0.5)
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


class Runs(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.sidecar = FakeSidecar()
        self.at_work: set[str] = set()
        self.began: list[str] = []

    async def works(self, key: str, _entered: Entered) -> None:
        assert key not in self.at_work, f"{key} twice"
        self.at_work.add(key)
        self.began.append(key)
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            self.at_work.discard(key)

    async def test_each_owned_key_has_one_task(self) -> None:
        numbers = [self.sidecar.grant(slot_) for slot_ in range(SLOTS // 2)]
        async with self.sidecar.client() as lease, lease.run_owned(KEYS, self.works) as run:
            mine = {key for key in KEYS if slot(key) < SLOTS // 2}
            await until("mine are worked on", lambda: self.at_work == mine)
            self.sidecar.grant_all(epoch=2)
            await until("all are", lambda: self.at_work == set(KEYS))
            self.assertEqual(sorted(run.running), sorted(KEYS))
            run.set_keys([*KEYS[:3], "new"])
            await until("the keys are replaced", lambda: self.at_work == {*KEYS[:3], "new"})
            with self.assertRaises(TypeError):
                run.set_keys("abc")
            # Handed over: cancelled at once, finished, and begun again when the handover is called off.
            number = next(number for number, grant in self.sidecar.grants_now.items() if grant["slot"] == slot("new") and number not in numbers)
            self.sidecar.ask(number)
            await until("it is finished", lambda: number in self.sidecar.finished_numbers and "new" not in self.at_work)
            self.sidecar.grant(slot("new"), epoch=2)
            await until("it is begun again", lambda: "new" in self.at_work)
            self.sidecar.end_lease()
            await until("all is stopped", lambda: not self.at_work and self.sidecar.opened == 2)
            self.sidecar.grant_all(epoch=3)
            await until("all is begun again", lambda: len(self.at_work) == 4)
        self.assertEqual(self.at_work, set())

    async def test_silence_stops_all_and_an_answer_starts_it_again(self) -> None:
        self.sidecar.grant_all()
        async with self.sidecar.client() as lease, lease.run_owned(KEYS, self.works):
            await until("all are worked on", lambda: self.at_work == set(KEYS))
            self.sidecar.is_silent = True
            await until("nothing is", lambda: not self.at_work)
            self.assertEqual(lease.state, "expired")
            self.sidecar.is_silent = False
            await until("all are again", lambda: self.at_work == set(KEYS))

    async def test_work_that_fails_is_begun_again_and_work_that_ends_is_not(self) -> None:
        self.sidecar.grant_all()
        begun: dict[str, int] = {"fails": 0, "ends": 0, "cancels": 0}

        async def works(key: str, _entered: Entered) -> None:
            begun[key] += 1
            if key == "fails":
                raise RuntimeError("no")
            if key == "cancels":
                raise asyncio.CancelledError

        fails = ["fails", "ends"] if sys.version_info < (3, 11) else list(begun)
        with self.assertLogs("shardwise_client", "ERROR"):
            async with self.sidecar.client() as lease, lease.run_owned(fails, works):
                await until("it is begun again", lambda: begun["fails"] >= 2)
                self.assertEqual(begun["ends"], 1)
                self.assertLess(begun["cancels"], 5, "with pauses")
                number = next(number for number, grant in self.sidecar.grants_now.items() if grant["slot"] == slot("ends"))
                self.sidecar.lose(number)
                self.sidecar.grant(slot("ends"), epoch=2)
                await until("it was lost and regained", lambda: begun["ends"] == 2)

    async def test_keys_that_are_refused_start_nothing(self) -> None:
        async with self.sidecar.client() as lease:
            before, keys = asyncio.all_tasks(), ["a", "k" * 65_537]
            for start in (lambda: lease.run_owned(keys, self.works), lambda: lease.on_rebalance(print, keys)):
                with self.assertRaisesRegex(ShardwiseError, "65,536 bytes"):
                    start()
            self.assertEqual(asyncio.all_tasks(), before)

    async def test_work_may_be_asked_instead_of_cancelled(self) -> None:
        number = self.sidecar.grant(5)
        steps: list[str] = []

        async def works(_key: str, entered: Entered) -> None:
            steps.append("begun")
            await entered.finish.wait()
            await asyncio.sleep(0.02)
            steps.append("ended" if entered.is_held else "lost")

        async with self.sidecar.client() as lease, lease.run_owned([key_in(5)], works, on_finish="ask"):
            await until("it works", lambda: steps)
            self.sidecar.ask(number)
            await until("it is finished", lambda: self.sidecar.finished_numbers == [number])
            self.assertEqual(steps, ["begun", "ended"])
            with self.assertRaises(ShardwiseError):
                lease.run_owned([], works, on_finish="never")  # type: ignore[arg-type]

    async def test_rebalances_are_told(self) -> None:
        first, heard = self.sidecar.grant(5), list[SlotChange]()
        keys = [key_in(5), key_in(6), key_in(6)]

        async def callback(change: SlotChange) -> None:
            heard.append(change)
            if len(heard) == 1:
                raise RuntimeError("it is called again")

        with self.assertLogs("shardwise_client", "ERROR"):
            async with self.sidecar.client() as lease:
                lease.on_rebalance(callback, keys)
                await until("what is owned already", lambda: heard == [([5], [], 1, 1)])
                self.sidecar.grant(6)
                await until("what is gained", lambda: heard[1:] == [([6], [], 2, 3)])
                self.sidecar.ask(first)
                await until("what is to go", lambda: heard[2:] == [([], [5], 1, 2)])
                self.sidecar.is_silent = True
                await until("what has expired", lambda: heard[3:] == [([], [6], 0, 0)])
                self.sidecar.is_silent = False
                await until("what is back", lambda: heard[4:] == [([6], [], 1, 2)])
        await until("the end", lambda: heard[5:] == [([], [6], 0, 0)])

    async def test_singletons(self) -> None:
        steps: list[str] = []

        async def leads(entered: Entered) -> None:
            steps.append(f"{entered.resource} {entered.epoch}")
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                steps.append("over")

        async with self.sidecar.client() as lease:
            run = lease.singleton("leader", leads)
            with self.assertRaises(ShardwiseError):
                lease.singleton("leader", leads)
            await until("it is offered", lambda: self.sidecar.names.get("singletons") == ["leader"])
            number = self.sidecar.grant("singleton/leader", epoch=4)
            await until("it leads", lambda: steps == ["name/singleton/leader 4"])
            self.sidecar.ask(number)
            await until("it is handed over", lambda: steps[1:] == ["over"] and self.sidecar.finished_numbers == [number])
            self.sidecar.grant("singleton/leader", epoch=9)
            await until("it leads again", lambda: steps[2:] == ["name/singleton/leader 9"])
            self.sidecar.end_lease()
            await until("it is offered anew", lambda: self.sidecar.opened == 2 and steps[3:] == ["over"])
            self.sidecar.names = {}
            await until("with the next lease", lambda: lease.state == "active")
            last = self.sidecar.grant("singleton/leader", epoch=11)
            await until("it leads again", lambda: len(steps) == 5)
            await asyncio.wait_for(run.stop(), PATIENCE)
            self.assertEqual((self.sidecar.names["singletons"], steps[5:]), ([], ["over"]))
            await until("the name is let go", lambda: last in self.sidecar.finished_numbers)

    async def test_a_singleton_that_ends_well_is_done(self) -> None:
        begun: list[int] = []

        async def works(entered: Entered) -> None:
            begun.append(entered.epoch)

        async with self.sidecar.client() as lease:
            lease.singleton("once", works)
            number = self.sidecar.grant("singleton/once")
            await until("it has run", lambda: begun == [1])
            self.sidecar.grant(3)
            await until("something else has changed", lambda: lease.owns(key_in(3)))
            self.assertEqual((begun, number in self.sidecar.finished_numbers), ([1], False), "it keeps the name, so that no other member does it again")

    async def test_daemons(self) -> None:
        numbers: set[tuple[str, int]] = set()

        def daemon(set_: str) -> Callable[[int, Entered], "asyncio.Future[None]"]:
            async def works(number: int, entered: Entered) -> None:
                numbers.add((set_, number))
                try:
                    await asyncio.sleep(PATIENCE)
                finally:
                    numbers.discard((set_, number))

            return works  # type: ignore[return-value]

        async with self.sidecar.client() as lease:
            lease.daemons("", daemon(""))
            lease.daemons("index", daemon("index"))
            await until("they are offered", lambda: self.sidecar.names.get("daemons") == ["", "index"])
            grants = {name: self.sidecar.grant(name) for name in ("daemon/0", "daemon/12", "daemon/index/3", "daemon/other/1")}
            await until("they work", lambda: numbers == {("", 0), ("", 12), ("index", 3)})
            await until("what is not offered is let go", lambda: self.sidecar.finished_numbers == [grants["daemon/other/1"]])
            self.sidecar.ask(grants["daemon/12"])
            await until("it ends", lambda: numbers == {("", 0), ("index", 3)})

    async def test_a_period_of_a_timer_is_fired_once(self) -> None:
        fired: list[Period] = []
        holds = asyncio.Event()

        async def job(period: Period, _entered: Entered) -> None:
            fired.append(period)
            if period.number == 2:
                raise RuntimeError("the next one is fired nevertheless")
            if period.number == 3:
                await holds.wait()

        with self.assertLogs("shardwise_client", "ERROR"):
            async with self.sidecar.client() as lease:
                lease.timer("report", 60, job, phase=1.5)
                for every, phase in ((0.5, 0), (60, 60), (60, -1), (10**9, 0)):
                    with self.assertRaises(ShardwiseError):
                        lease.timer("other", every, job, phase=phase)
                await until("it is offered", lambda: self.sidecar.names.get("timers") == [{"name": "report", "every_ms": 60_000, "phase_ms": 1_500}])
                for number in (1, 2):
                    grant = self.sidecar.grant("timer/report", period={"due_ms": number * 60_000, "number": number})
                    await until("it is finished", lambda grant=grant: grant in self.sidecar.finished_numbers)  # type: ignore[misc]
                grant = self.sidecar.grant("timer/report", period={"due_ms": 180_000, "number": 3})
                await until("it has begun", lambda: len(fired) == 3)
                self.sidecar.is_silent = True
                await until("it is cancelled", lambda: lease.state == "expired")
                self.sidecar.is_silent = False
                await until("it is over", lambda: grant in self.sidecar.finished_numbers)
                self.sidecar.break_streams()
                await until("the table is read anew", lambda: self.sidecar.streams >= 2 and lease.state == "active")
        self.assertEqual(fired, [(60_000, 1), (120_000, 2), (180_000, 3)])
