"""Work for each owned key, and callbacks, against a sidecar in memory."""

import asyncio
import sys
import unittest

from shardwise_client import Entered, ShardwiseError, SlotChange
from tests.fake_sidecar import PATIENCE, SLOTS, FakeSidecar, key_in, slot
from tests.test_lease import KEYS, until


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

    async def test_rebalances_are_called_back(self) -> None:
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
