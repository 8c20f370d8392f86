"""The table of grants and the work under it, with time as an argument."""

import threading
import unittest
from typing import Any, Callable, Optional

from shardwise_client import Hold, Lost, NotHeld, Unavailable
from shardwise_client._errors import LeaseEnded
from shardwise_client._holdings import Holdings
from shardwise_client._table import Changes, GrantTable, Period
from tests.fake_sidecar import SLOTS, key_in

TTL = 5.0


def grant(number: int, slot: Optional[int] = None, name: Optional[str] = None, *, epoch: int = 1, finish: bool = False,
          period: Optional[dict[str, int]] = None) -> dict[str, Any]:  # fmt: skip
    return {"grant": number, "slot": slot, "name": name, "epoch": epoch, "period": period, "finish": finish}


def line(kind: str, version: int, *grants: dict[str, Any], valid_ms: int = 5_000, slots: int = SLOTS) -> dict[str, Any]:
    return {"type": kind, "version": version, "valid_ms": valid_ms, "slots": slots, "grants": list(grants)}


def numbers(changes: Changes) -> list[list[int]]:
    return [[each.number for each in grants] for grants in changes]


class Tables(unittest.TestCase):
    def setUp(self) -> None:
        self.table = GrantTable(TTL)

    def test_lines_change_it(self) -> None:
        table = self.table
        self.assertFalse(table.is_live(0.0))
        everything = line("all", 3, grant(1, 5), grant(2, 6, finish=True), grant(3, name="singleton/leader"))
        self.assertEqual(numbers(table.whole(everything, 10.0)), [[1, 2, 3], [2], []])
        self.assertEqual((table.version, [slot for slot in range(SLOTS) if table.open_slots[slot]]), (3, [5]))
        more = line("granted", 4, grant(4, 7, epoch=9), grant(5, name="timer/t", period={"due_ms": 60_000, "number": 1}))
        self.assertEqual(numbers(table.line(more)), [[4, 5], [], []])
        timer, slot = table.grant("timer/t"), table.grant(7)
        assert timer is not None and slot is not None
        self.assertEqual((timer.period, slot.epoch), (Period(60_000, 1), 9))
        self.assertEqual(numbers(table.line(line("finish", 5, grant(1, 5, finish=True), grant(99, 40)))), [[], [1], []])
        self.assertEqual(table.open_slots[5], 0)
        self.assertIsNotNone(table.grant(5), "it may be worked in until it is finished")
        self.assertEqual(numbers(table.line(line("lost", 6, grant(1, 5), grant(4, 7), grant(98, 7)))), [[], [], [1, 4]])
        self.assertIsNone(table.grant(5))
        self.assertEqual(numbers(table.line(line("alive", 6))), [[], [], []])
        self.assertEqual(numbers(table.whole(line("all", 9, grant(2, 6, finish=True), grant(8, 5)), 11.0)), [[8], [], [3, 5]])
        self.assertEqual(numbers(table.line(line("granted", 10, grant(9, 5, epoch=12)))), [[9], [], [8]], "a new number for what is held")

    def test_a_deadline_counts_from_the_question(self) -> None:
        table = self.table
        table.whole(line("all", 1, valid_ms=4_000), 10.0)
        self.assertTrue(table.is_live(13.999) and not table.is_live(14.0))
        self.assertTrue(table.may_begin(13.9) and not table.may_begin(13.96), "work needs a moment to end")
        table.line(line("alive", 1, valid_ms=60_000))
        self.assertEqual(table.deadline, 14.0, "later lines prove nothing about time")
        table.renewed(12.0, 5_000, 1)
        self.assertEqual(table.deadline, 17.0)
        table.renewed(11.0, 5_000, 1)
        self.assertEqual(table.deadline, 17.0, "an older answer shortens nothing that was promised")
        self.assertFalse(table.is_live(17.0))
        table.renewed(15.0, 5_000, 1)
        self.assertTrue(table.is_live(19.0), "a late answer is a shorter grant")

    def test_a_renewal_extends_only_the_version_that_it_names(self) -> None:
        table = self.table
        table.whole(line("all", 7, grant(1, 5)), 10.0)
        # Slot 5 was lost at version 8, which this table has not heard.
        self.assertFalse(table.renewed(12.0, 5_000, 8))
        self.assertEqual(table.deadline, 15.0)
        self.assertFalse(table.renewed(13.0, 5_000, 9))
        table.line(line("lost", 8, grant(1, 5)))
        self.assertEqual(table.deadline, 17.0)
        table.whole(line("all", 9, valid_ms=100), 13.5)
        self.assertEqual(table.deadline, 18.0)
        for version in range(100, 200):
            table.renewed(14.0, 5_000, version)
        self.assertLessEqual(len(table._pending), 32)

    def test_what_was_reported_as_finished_is_not_held(self) -> None:
        table = self.table
        table.whole(line("all", 1, grant(1, 5, finish=True)), 10.0)
        held = table.grant(5)
        assert held is not None
        table.finished([held])
        self.assertIsNone(table.grant(5))
        table.line(line("granted", 2, grant(1, 5)))
        table.whole(line("all", 3, grant(1, 5)), 11.0)
        self.assertIsNone(table.grant(5), "the question came before the sidecar has heard it")
        table.answered([1], 12.0)
        table.whole(line("all", 4, grant(1, 5)), 11.9)
        self.assertIsNone(table.grant(5))
        self.assertEqual(numbers(table.whole(line("all", 5, grant(1, 5, finish=True)), 12.1)), [[1], [1], []], "it has heard it and says otherwise")
        self.assertEqual(numbers(table.line(line("granted", 6, grant(2, 5)))), [[2], [], [1]], "the handover was called off")
        self.assertEqual(table.open_slots[5], 1)
        table.answered([], 1_000.0)
        self.assertEqual(table._reported, {})

    def test_what_is_to_finish_stays_so(self) -> None:
        self.table.whole(line("all", 1, grant(1, 5, finish=True)), 10.0)
        self.assertEqual(numbers(self.table.whole(line("all", 2, grant(1, 5)), 11.0)), [[], [], []])
        self.assertEqual(self.table.open_slots[5], 0)

    def test_what_cannot_be_understood_changes_nothing(self) -> None:
        self.table.whole(line("all", 1, grant(1, 5)), 10.0)
        bad: list[dict[str, Any]] = [
            {"type": "granted", "version": 2}, line("granted", 2, grant(2, SLOTS)), line("granted", 2, grant(2, -1)), line("granted", 2, grant(2)),
            line("granted", 2, grant(2, 3, "timer/t")), line("granted", 2, {"grant": 2}), line("granted", 2, grant(2, 3), slots=2 * SLOTS),
            line("granted", 2, grant(2, 3), slots=0), line("lost", 2, grant(1, 5), {}),
        ]  # fmt: skip
        for each in bad:
            with self.assertRaises(Unavailable, msg=each):
                self.table.line(each)
            self.assertEqual((list(self.table.by_resource), self.table.version), ([5], 1), each)
        with self.assertRaises(Unavailable):
            self.table.whole(line("all", 2, slots=70_000), 11.0)


class Work(unittest.TestCase):
    """Holdings, with a clock that stands."""

    def setUp(self) -> None:
        self.now = 100.0
        self.holdings = Holdings(lambda: self.now)
        self.cancelled: list[str] = []
        self.changes = 0

        def changed() -> None:
            self.changes += 1

        self.holdings.listen(changed)
        self.begin()

    def begin(self) -> None:
        self.table = self.holdings.begin(TTL)
        self.holdings.changed(self.table.whole(line("all", 1, grant(1, 5, epoch=7), grant(2, 6), grant(3, name="singleton/leader")), self.now))

    def line_arrives(self, kind: str, *grants: dict[str, Any]) -> None:
        self.holdings.changed(self.table.line(line(kind, self.table.version + 1, *grants)))

    def enter(self, slot: int, key: str = "k", on_finish: Optional[Callable[[], None]] = None) -> Hold[threading.Event]:
        return self.holdings.enter(slot, key, threading.Event, lambda: self.cancelled.append(key), on_finish)

    def test_what_is_owned(self) -> None:
        keys = [key_in(4), key_in(5), key_in(6), key_in(5)]
        self.assertEqual((self.holdings.owned(keys), self.holdings.state), ([keys[1], keys[2], keys[3]], "active"))
        self.line_arrives("finish", grant(2, 6, finish=True))
        self.assertEqual(self.holdings.owned(keys), [keys[1], keys[3]])
        self.now += TTL
        self.assertEqual((self.holdings.owned(keys), self.holdings.state), ([], "expired"))
        self.holdings.end("x")
        self.assertEqual((self.holdings.owned(keys), self.holdings.state), ([], "opening"))
        self.holdings.end("x", LeaseEnded("for good"))
        self.assertEqual(self.holdings.state, "ended")
        for _ in range(3):
            with self.assertRaisesRegex(LeaseEnded, "for good"):
                self.holdings.owned(keys)

    def test_a_hold_has_its_fence_and_reads_the_clock(self) -> None:
        hold = self.enter(5)
        self.assertEqual((hold.fence, hold.resource, hold.epoch, hold.is_held), ((5, 7), "slot/5", 7, True))
        self.assertEqual((hold.deadline, self.table.deadline), (self.now + TTL, self.now + TTL))
        hold.check()
        self.now += TTL
        self.assertFalse(hold.is_held)
        with self.assertRaisesRegex(Lost, "not renewed"):
            hold.check()
        leader = None
        self.table.renewed(self.now, 5_000, 1)
        leader = self.holdings.enter("singleton/leader", "singleton/leader", threading.Event, lambda: None)
        self.assertEqual((leader.resource, leader.epoch), ("name/singleton/leader", 1))
        with self.assertRaises(TypeError):
            leader.fence  # noqa: B018

    def test_who_may_enter(self) -> None:
        with self.assertRaisesRegex(NotHeld, "not held"):
            self.enter(7)
        self.line_arrives("finish", grant(1, 5, finish=True))
        with self.assertRaisesRegex(NotHeld, "not held"):
            self.enter(5)
        hold = self.enter(6)
        self.line_arrives("finish", grant(2, 6, finish=True))
        with self.assertRaisesRegex(NotHeld, "handed over"):
            self.enter(6)
        self.assertTrue(hold.is_held)
        self.now += TTL - 0.01
        with self.assertRaisesRegex(NotHeld, "expired"):
            self.enter(6)

    def test_finished_is_said_when_the_last_work_ends(self) -> None:
        said = []
        self.holdings.on_unreported = lambda: said.append(list(self.holdings.unreported))
        self.line_arrives("finish", grant(1, 5, finish=True))
        self.assertEqual(said, [[1]], "at once where nothing works")
        asked: list[str] = []
        holds = [self.enter(6, key, lambda key=key: asked.append(key)) for key in "abc"]  # type: ignore[misc]
        self.line_arrives("finish", grant(2, 6, finish=True))
        self.line_arrives("finish", grant(2, 6, finish=True))
        self.assertEqual((sorted(asked), [hold.finish.is_set() for hold in holds], self.cancelled), (["a", "b", "c"], [True] * 3, []))
        for hold in holds[:2]:
            self.holdings.leave(hold)
        self.assertEqual(len(said), 1)
        self.assertTrue(holds[2].is_held, "until it is finished")
        self.holdings.leave(holds[2])
        self.assertEqual(said[1:], [[1, 2]])
        self.assertEqual(self.table.grant(6), None)
        # The handover was called off: the same epoch, another number.
        self.line_arrives("granted", grant(9, 6))
        self.assertEqual(self.enter(6).epoch, 1)

    def test_what_is_lost_is_cancelled_and_nothing_else(self) -> None:
        five, six = self.enter(5, "five"), self.enter(6, "six")
        self.line_arrives("lost", grant(1, 5))
        self.assertEqual((self.cancelled, five.is_held, six.is_held, five.finish.is_set()), (["five"], False, True, True))
        self.line_arrives("granted", grant(7, 5, epoch=8))
        with self.assertRaisesRegex(NotHeld, "not ended yet"):
            self.enter(5)
        changes = self.changes
        self.holdings.leave(five)
        self.assertGreater(self.changes, changes, "others may begin")
        self.assertEqual((self.enter(5).epoch, self.holdings.in_flight()), (8, 2))
        self.assertEqual(self.holdings.unreported, [1], "the sidecar waits until the lost work has ended")
        self.line_arrives("lost", grant(2, 6))
        self.holdings.leave(six)
        self.line_arrives("lost", grant(7, 5))
        self.line_arrives("granted", grant(8, 7))
        self.line_arrives("lost", grant(8, 7))
        self.assertEqual(self.holdings.unreported, [1, 2, 8], "at once where nothing works")

    def test_all_is_cancelled_before_the_deadline(self) -> None:
        hold, tenure = self.enter(5), self.holdings.tenure
        self.now = self.table.stop_at - 0.001
        self.holdings.look()
        self.assertEqual(self.cancelled, [])
        self.now = self.table.stop_at
        self.holdings.look()
        self.holdings.look()
        self.assertEqual((self.cancelled, self.holdings.tenure), (["k"], tenure + 1))
        self.assertLess(self.now, self.table.deadline)
        self.holdings.leave(hold)
        # The sidecar had renewed, and its answer was late: what was granted holds again.
        changes = self.changes
        self.table.renewed(self.now, 5_000, 1)
        self.holdings.look()
        self.assertEqual((self.changes, self.enter(5).is_held, hold.is_held), (changes + 1, True, False), "an old hold stays lost")

    def test_the_end_of_a_lease_cancels_all(self) -> None:
        hold = self.enter(5)
        self.holdings.end("it was renewed too late")
        self.assertEqual((self.cancelled, hold.is_held, hold.deadline), (["k"], False, float("-inf")))
        with self.assertRaisesRegex(Lost, "renewed too late"):
            hold.check()
        with self.assertRaisesRegex(NotHeld, "opening"):
            self.enter(5)
        self.begin()
        with self.assertRaisesRegex(NotHeld, "not ended yet"):
            self.enter(5)
        self.holdings.leave(hold)
        self.assertEqual(self.enter(5).epoch, 7)

    def test_a_lease_without_grants_is_active(self) -> None:
        self.table = self.holdings.begin(TTL)
        self.table.renewed(self.now, 0, 1)
        self.holdings.changed(self.table.whole(line("all", 1, valid_ms=0), self.now))
        self.assertEqual((self.holdings.state, self.holdings.owned([key_in(5)])), ("active", []))
        self.line_arrives("granted", grant(1, 5))
        self.assertEqual((self.holdings.state, self.holdings.owned([key_in(5)])), ("expired", []), "until it is renewed")
        self.table.renewed(self.now, 5_000, 2)
        self.assertEqual((self.holdings.state, self.holdings.owned([key_in(5)])), ("active", [key_in(5)]))
        self.now += TTL
        self.assertEqual(self.holdings.state, "expired")

    def test_names_are_released(self) -> None:
        grant_ = self.table.grant("singleton/leader")
        assert grant_ is not None
        self.holdings.release(grant_._replace(number=99))
        self.assertEqual(self.holdings.unreported, [])
        leader = self.holdings.enter("singleton/leader", "singleton/leader", threading.Event, lambda: None)
        self.holdings.release(grant_)
        self.assertEqual((self.holdings.unreported, leader.finish.is_set()), ([], True))
        # A table that was read meanwhile does not know that yet.
        self.holdings.changed(self.table.whole(line("all", 2, grant(3, name="singleton/leader")), self.now))
        self.holdings.leave(leader)
        self.assertEqual(self.holdings.unreported[-1:], [3])
