"""Singletons, daemons and timers against a sidecar in memory."""

import asyncio
import unittest
from typing import Callable

from shardwise_client import Entered, Period, ShardwiseError
from tests.fake_sidecar import PATIENCE, FakeSidecar, key_in
from tests.test_lease import until


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
