"""Singletons, daemons and timers against a sidecar in memory."""

import asyncio
import re
import time
import unittest
from typing import Any, Callable
from unittest import mock

from shardwise_client import Entered, Period, ShardwiseError, Unavailable, _names
from tests.fake_sidecar import PATIENCE, FakeSidecar, key_in
from tests.test_lease import until


async def for_ever(*_: object) -> None:
    await asyncio.sleep(PATIENCE)


class Names(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.sidecar = FakeSidecar()

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

    async def test_one_refused_name_is_withdrawn_and_the_others_go_on(self) -> None:
        self.sidecar.bad_names = {"bad", "worse"}
        with self.assertLogs("shardwise_client", "ERROR") as log:
            async with self.sidecar.client() as lease:
                # At the same time.
                good, bad, other = (lease.singleton(name, for_ever) for name in ("good", "bad", "other"))
                with self.assertRaisesRegex(ShardwiseError, "400 bad-request"):
                    await asyncio.wait_for(bad.wait(), PATIENCE)
                await until("the others are offered", lambda: self.sidecar.names.get("singletons") == ["good", "other"])
                self.sidecar.grant("singleton/good")
                await until("one works", lambda: good.running == ["singleton/good"])
                # Later, where the others are known already.
                sent = len(self.sidecar.offered)
                worse = lease.timer("worse", 60, for_ever)
                with self.assertRaisesRegex(ShardwiseError, "worse"):
                    await asyncio.wait_for(worse.wait(), PATIENCE)
                await worse.stop()
                last = lease.singleton("last", for_ever)
                await until("it is offered", lambda: self.sidecar.names["singletons"] == ["good", "last", "other"])
                self.assertLess(len(self.sidecar.offered) - sent, 4)
                self.assertEqual(([run.is_over for run in (good, other, last)], bad.is_over, worse.is_over), ([False] * 3, True, True))
                # Under the next lease they are offered again; the name that was refused may be, too.
                self.sidecar.bad_names = {"other"}
                lease.singleton("bad", for_ever)
                self.sidecar.end_lease()
                with self.assertRaisesRegex(ShardwiseError, "400 bad-request.*other"):
                    await asyncio.wait_for(other.wait(), PATIENCE)
                await until("the others are offered", lambda: self.sidecar.names["singletons"] == ["bad", "good", "last"])
                self.assertEqual((lease.state, self.sidecar.opened), ("active", 2))
        self.assertEqual(re.findall(r"refuses ([a-z/]+)", " ".join(log.output)), ["singleton/bad", "timer/worse", "singleton/other"])

    async def test_one_name_too_many_is_refused(self) -> None:
        with self.assertLogs("shardwise_client", "ERROR"):
            async with self.sidecar.client() as lease:
                runs = [lease.timer(f"t{number}", 60, for_ever) for number in range(65)]
                with self.assertRaisesRegex(ShardwiseError, "too many"):
                    await asyncio.wait_for(runs[-1].wait(), PATIENCE)
                await until("the others are offered", lambda: len(self.sidecar.names.get("timers", [])) == 64)
                self.assertFalse(any(run.is_over for run in runs[:-1]))

    async def test_closing_does_not_wait_for_names_that_are_sent_no_more(self) -> None:
        with mock.patch.object(_names, "_WITHDRAWN_WITHIN", PATIENCE):
            async with self.sidecar.client() as lease:
                run = lease.singleton("a", for_ever)
                await until("it is offered", lambda: self.sidecar.names.get("singletons") == ["a"])
                begun = time.monotonic()
        self.assertTrue(run.is_over)
        self.assertLess(time.monotonic() - begun, PATIENCE / 2)

    async def test_what_was_offered_without_an_answer_is_withdrawn(self) -> None:
        async with self.sidecar.client() as lease:
            lease.singleton("a", for_ever)
            await until("it is offered", lambda: self.sidecar.names.get("singletons") == ["a"])
            # It arrives, and its answer does not.
            with mock.patch.object(self.sidecar, "offer", self.unanswered):
                run = lease.singleton("b", for_ever)
                await until("it is offered", lambda: self.sidecar.names["singletons"] == ["a", "b"])
                await run.stop()
            await until("it is withdrawn", lambda: self.sidecar.names["singletons"] == ["a"])

    async def unanswered(self, _lease: str, names: dict[str, Any], within: float) -> None:
        self.sidecar.names = names
        raise Unavailable(f"no answer within {within} s")

    async def test_the_number_of_daemons(self) -> None:
        async with self.sidecar.client() as lease:
            lease.daemons("index", for_ever)
            await until("it is offered", lambda: self.sidecar.names.get("daemons") == ["index"])
            self.assertNotIn("counts", self.sidecar.names)
            self.sidecar.counts["there"] = 2
            runs = [lease.daemons("", for_ever, 3), lease.daemons("none", for_ever, count=0), lease.daemons("there", for_ever, count=5)]
            await until("they are offered", lambda: self.sidecar.names["daemons"] == ["", "index", "none", "there"])
            self.assertEqual(self.sidecar.names["counts"], {"": 3, "none": 0, "there": 5})
            self.assertEqual(self.sidecar.counts, {"": 3, "none": 0, "there": 2}, "what the group has already is kept")
            for count in (-1, 1_025):
                with self.assertRaisesRegex(ShardwiseError, "1,024"):
                    lease.daemons("other", for_ever, count)
            for run in runs:
                await run.stop()
            self.assertEqual(self.sidecar.names, {"singletons": [], "daemons": ["index"], "timers": []})
