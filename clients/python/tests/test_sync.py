"""The synchronous face, against a sidecar in memory."""

import json
import os
import signal
import threading
import time
import unittest
import warnings
from typing import Callable, Optional
from unittest import mock

from shardwise_client import LeaseEnded, Lost, NotHeld, Period, ShardwiseError, SlotChange, sync
from shardwise_client._sync_loop import Loop
from tests.fake_sidecar import PATIENCE, SLOTS, FakeSidecar, key_in, slot

KEYS = [f"tenant-{n}" for n in range(20)]


def until(what: str, condition: Callable[[], object]) -> None:
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > PATIENCE:
            raise AssertionError(f"waited {PATIENCE} s in vain: {what}")
        time.sleep(0.002)


def in_fork(calls: "dict[str, Callable[[], object]]") -> "dict[str, str]":
    """How each call ends in a forked process: `forked` if it raises that error."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        # Since Python 3.12 a fork warns where threads run, which is what this is about.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))
        ends = {}
        for name, call in calls.items():
            try:
                ends[name] = f"answered {call()!r:.100}"
            except BaseException as error:
                ends[name] = "forked" if isinstance(error, ShardwiseError) and "forked" in str(error) else repr(error)
        os.write(writes, json.dumps(ends).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    ended: dict[str, str] = json.loads(answer)
    return ended


class Blocking(unittest.TestCase):
    def setUp(self) -> None:
        self.loop = Loop()
        self.addCleanup(self.loop.close)
        self.sidecar = self.loop.run(FakeSidecar)

    def lease(self, reopen: bool = True) -> sync.Lease:
        return sync.Lease(self.loop, lambda: self.sidecar.client(reopen=reopen))

    def in_loop(self, call: Callable[[], Optional[int]]) -> int:
        return self.loop.run(call) or 0

    def test_work_under_a_lease(self) -> None:
        number = self.in_loop(lambda: self.sidecar.grant(5))
        with self.lease() as lease:
            self.assertEqual((lease.state, lease.id), ("active", self.sidecar.lease))
            self.assertEqual(lease.owned(KEYS), [key for key in KEYS if slot(key) == 5])
            self.assertTrue(lease.owns(key_in(5)) and not lease.owns(key_in(6)))
            with self.assertRaises(TypeError):
                lease.owned("tenant-7")
            with self.assertRaises(NotHeld):
                with lease.enter(key_in(6)):
                    pass
            with lease.enter(key_in(5), ask=True) as entered:
                self.assertEqual((entered.fence, entered.is_held), ((5, 1), True))
                self.in_loop(lambda: self.sidecar.ask(number))
                self.assertTrue(entered.finish.wait(PATIENCE))
                entered.check()
                self.assertEqual(self.sidecar.finished_numbers, [])
            until("it is handed over", lambda: self.sidecar.finished_numbers == [number])
            number = self.in_loop(lambda: self.sidecar.grant(5, 2))
            until("it is there again", lambda: lease.owns(key_in(5)))
            with self.assertRaisesRegex(Lost, "slot 5"):
                with lease.enter(key_in(5)) as entered:
                    self.in_loop(lambda: self.sidecar.lose(number))
                    self.assertTrue(entered.lost.wait(PATIENCE))
                    with self.assertRaises(Lost):
                        entered.check()
        self.assertIsNone(self.sidecar.lease)
        with self.assertRaises(LeaseEnded):
            lease.owned(KEYS)

    def test_silence(self) -> None:
        self.in_loop(self.sidecar.grant_all)
        with self.lease() as lease:
            with self.assertRaises(Lost):
                with lease.enter("a") as entered:
                    self.sidecar.is_silent = True
                    self.assertTrue(entered.lost.wait(PATIENCE))
                    self.assertFalse(entered.is_held)
            self.assertEqual(lease.state, "expired")
            self.sidecar.is_silent = False
            until("it is answered", lambda: lease.owned(KEYS) == KEYS)

    def test_threads_for_owned_keys(self) -> None:
        self.in_loop(self.sidecar.grant_all)
        at_work, changes = set[str](), list[SlotChange]()

        def works(key: str, entered: sync.Entered) -> None:
            at_work.add(key)
            entered.finish.wait(PATIENCE)
            at_work.discard(key)

        with self.lease() as lease:
            lease.on_rebalance(changes.append, KEYS)
            with lease.run_owned(KEYS, works) as run:
                until("all are worked on", lambda: at_work == set(KEYS) and len(run.running) == len(KEYS))
                run.set_keys(KEYS[:2])
                until("two are", lambda: at_work == set(KEYS[:2]))
                self.sidecar.is_silent = True
                until("none is", lambda: not at_work)
                self.sidecar.is_silent = False
                until("two are again", lambda: at_work == set(KEYS[:2]))
            self.assertEqual(at_work, set())
            self.assertEqual((changes[0].slots_owned, changes[0].keys_owned), (SLOTS, len(KEYS)))

    def test_names(self) -> None:
        steps: list[object] = []

        def leads(entered: sync.Entered) -> None:
            steps.append(entered.resource)
            entered.finish.wait(PATIENCE)

        def daemon(number: int, entered: sync.Entered) -> None:
            steps.append(number)
            entered.finish.wait(PATIENCE)

        def job(period: Period, _entered: sync.Entered) -> None:
            steps.append(period)

        with self.lease() as lease:
            with lease.singleton("leader", leads):
                lease.daemons("x", daemon, count=4)
                lease.timer("t", 60, job)
                until("all are offered", lambda: len(self.sidecar.names.get("timers", [])) == 1)
                leader = self.in_loop(lambda: self.sidecar.grant("singleton/leader"))
                until("it leads", lambda: steps == ["name/singleton/leader"])
                self.in_loop(lambda: self.sidecar.grant("daemon/x/3"))
                until("it is there", lambda: steps[1:] == [3])
                self.assertEqual(self.sidecar.counts, {"x": 4})
                self.in_loop(lambda: self.sidecar.grant("timer/t", period={"due_ms": 1, "number": 2}))
                until("it is fired", lambda: steps[2:] == [(1, 2)])
            until("it is let go", lambda: leader in self.sidecar.finished_numbers)

    def test_a_refused_name(self) -> None:
        self.sidecar.bad_names = {"bad"}
        with self.lease() as lease, self.assertLogs("shardwise_client", "ERROR"):
            with self.assertRaisesRegex(ShardwiseError, "400 bad-request"):
                lease.singleton("bad", lambda _: None).wait()

    def test_the_only_lease(self) -> None:
        with self.lease(reopen=False) as lease:
            run = lease.on_rebalance(lambda _: None)
            self.in_loop(self.sidecar.end_lease)
            with self.assertRaises(LeaseEnded):
                run.wait()

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_forked_process_has_no_lease(self) -> None:
        self.in_loop(self.sidecar.grant_all)
        key = KEYS[0]
        with self.lease() as lease:
            run = lease.run_owned([], lambda *_: None)
            other = lease.on_rebalance(lambda _: None)
            calls: dict[str, Callable[[], object]] = {
                "__enter__": lease.__enter__, "close": lease.close, "state": lambda: lease.state, "id": lambda: lease.id,
                "owned": lambda: lease.owned(KEYS), "owns": lambda: lease.owns(key), "enter": lambda: lease.enter(key),
                "run_owned": lambda: lease.run_owned([], lambda *_: None), "on_rebalance": lambda: lease.on_rebalance(print),
                "singleton": lambda: lease.singleton("s", print), "daemons": lambda: lease.daemons("d", print),
                "timer": lambda: lease.timer("t", 60, print),
            }  # fmt: skip
            public = {name for name in vars(sync.Lease) if not name.startswith("_")}
            self.assertEqual(public - set(calls), set(), "all are tried")
            calls.update({"run.stop": run.stop, "run.wait": other.wait, "run.running": lambda: run.running, "run.set_keys": lambda: run.set_keys([])})
            with lease.enter(key) as entered:
                calls["entered.check"] = entered.check
                self.assertEqual(in_fork(calls), {name: "forked" for name in calls})
                self.assertEqual(in_fork({"is_held": lambda: entered.is_held}), {"is_held": "answered False"})
                entered.check()
            self.assertEqual(lease.owned(KEYS), KEYS, "the process that forked keeps all")

    def test_what_would_wait_for_ever_is_an_error(self) -> None:
        async def inside() -> None:
            self.loop.run(lambda: None)

        with self.assertRaisesRegex(ShardwiseError, "another thread"):
            self.loop.call(inside())
        with mock.patch.object(os, "getpid", lambda: -1), self.assertRaisesRegex(ShardwiseError, "forked"):
            self.loop.run(lambda: None)
        self.loop.close()
        self.assertFalse(any(thread.name == "shardwise-client" and thread is self.loop._thread for thread in threading.enumerate()))
        with self.assertRaisesRegex(ShardwiseError, "closed"):
            self.loop.run(lambda: None)
