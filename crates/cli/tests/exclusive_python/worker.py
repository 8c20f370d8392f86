"""A worker of the torture test: one piece of work in each slot that it holds, and a fenced table that all workers write to.

Its arguments: the URL of its sidecar, the file with one key for each slot, the fenced table, and the file for its lines, which
crates/testkit/src/stays describes. It leaves when its input ends.
"""

import asyncio
import itertools
import json
import logging
import os
import sqlite3
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from shardwise_client import Client

GROUP = "workers"
# In seconds.
LEASE, LEASED_WITHIN = 2.0, 180.0
# How often work looks whether it may go on, in seconds, and every which time it writes.
STEP, STEPS_A_WRITE = 0.04, 5
# How often late work tries to write while the table is busy, and how long each time: another process may be stopped inside a write.
LATE_TRIES, BUSY_MAX = 20, 0.3
# As docs/reference/fencing.md has it.
FENCE = """INSERT INTO shardwise_fence (group_name, resource, epoch) VALUES (?, ?, ?)
ON CONFLICT (group_name, resource) DO UPDATE SET epoch = excluded.epoch WHERE shardwise_fence.epoch <= excluded.epoch"""


def now():
    """The present moment on the clock of all lines, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def deadline_of(entered):
    """Until when this may be worked on unless the lease is renewed, in nanoseconds. The client shows it nowhere else."""
    return int(entered._table.deadline * 1e9)


class Log:
    """The lines of this worker, each in one write: nothing of them is lost when the process is killed."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, line, slot, epoch, **more):
        os.write(self._file, (json.dumps({"line": line, "slot": slot, "epoch": epoch, **more}) + "\n").encode())


class Table:
    """The fenced table. It is written to on threads, as a write may wait for another process."""

    def __init__(self, path, log):
        self._path, self._log = path, log
        self._threads, self._of_thread = ThreadPoolExecutor(2), threading.local()

    async def write(self, slot, epoch):
        """Writes a row under the fence; returns whether there was an answer. A write that has begun goes on if this is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._write, slot, epoch)

    def _write(self, slot, epoch):
        at = now()
        try:
            passed = self._try_write(slot, epoch)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            print(f"not written: {error}", flush=True)
            return False
        self._log.write("wrote", slot, epoch, at=at, done=now(), passed=passed)
        return True

    def _try_write(self, slot, epoch):
        db = self._connection()
        try:
            db.execute("BEGIN IMMEDIATE")
            passed = db.execute(FENCE, (GROUP, f"slot/{slot}", epoch)).rowcount == 1
            if passed:
                db.execute("INSERT INTO work (slot, epoch) VALUES (?, ?)", (slot, epoch))
                db.execute("COMMIT")
            return passed
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _connection(self):
        if not hasattr(self._of_thread, "db"):
            self._of_thread.db = sqlite3.connect(self._path, timeout=BUSY_MAX, isolation_level=None)
            self._of_thread.db.execute("PRAGMA synchronous = OFF")
        return self._of_thread.db


class Worker:
    def __init__(self, lease, keys, table, log):
        self._lease, self._keys, self._table, self._log = lease, keys, table, log

    async def work(self, key, entered):
        """Works for as long as the key is held. What is wrong here ends the process, and the test."""
        try:
            assert entered.fence.slot == self._keys.index(key), f"{key} is not in slot {entered.fence.slot}"
            # `finish` is set for lost work too. What looked lost is still held if a renewal was answered while this process was stopped.
            while not entered.finish.is_set():
                await self._stay(key, entered)
                if not entered.finish.is_set():
                    await asyncio.sleep(STEP)
        except Exception:
            traceback.print_exc()
            os._exit(1)

    async def _stay(self, key, entered):
        """Works until the slot is handed over, or is found to be lost, and writes down once how it ended."""
        slot, epoch = entered.fence
        at, deadline = self._read_hold(entered)
        if deadline is None:
            return
        self._log.write("enter", slot, epoch, at=at, until=deadline)
        try:
            await self._steps(entered, deadline)
        finally:
            at, until = self._read_hold(entered)
            if until is None:
                await self._work_late(key, entered)
            else:
                # What follows until the client says that it is finished does not wait for anything.
                self._log.write("leave", slot, epoch, at=at)

    async def _steps(self, entered, deadline):
        """Works until the slot must be handed over, or is not held. Every few steps it writes without asking anything first."""
        slot, epoch = entered.fence
        finish = asyncio.ensure_future(entered.finish.wait())
        try:
            for step in itertools.count():
                if step % STEPS_A_WRITE == 0:
                    await self._table.write(slot, epoch)
                await asyncio.wait({finish}, timeout=STEP)
                at, until = self._read_hold(entered)
                if until is None or entered.finish.is_set():
                    return
                if until > deadline:
                    deadline = until
                    self._log.write("held", slot, epoch, at=at, until=until)
        finally:
            finish.cancel()

    def _read_hold(self, entered):
        """The present moment, and the deadline if it was held then, else None. The deadline is read first, then the clock, and whether it
        is held is asked last: if it is held by then, it was at that moment."""
        until, at = deadline_of(entered), now()
        return at, max(until, at) if entered.is_held else None

    async def _work_late(self, key, entered):
        """The writes of code that was paused and asks nothing before it writes. The client cancels work when it notices the loss, which may be
        before or after the work has noticed it: the writes go on all the same, and the cancellation counts after them."""
        slot, epoch = entered.fence
        # What has passed its deadline is not owned either, unless it was lost and granted again meanwhile.
        owns = not entered.lost.is_set() and self._lease.owns(key)
        self._log.write("lost", slot, epoch, at=now(), owns=owns)
        writes, cancelled = asyncio.ensure_future(self._write_late(slot, epoch)), None
        while not writes.done():
            try:
                await asyncio.wait({writes})
            except asyncio.CancelledError as error:
                cancelled = error
        writes.result()
        if cancelled is not None:
            raise cancelled

    async def _write_late(self, slot, epoch):
        for _ in range(LATE_TRIES):
            if await self._table.write(slot, epoch):
                return


def input_ends():
    """An event that is set when the input of this process ends."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def read():
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, daemon=True).start()
    return ended


async def main(url, keys_file, table, lines):
    with open(keys_file) as file:
        keys = json.load(file)
    log, ended = Log(lines), input_ends()
    async with Client(GROUP, url) as client, client.lease(ttl=LEASE, within=LEASED_WITHIN) as lease:
        run = lease.run_owned(keys, Worker(lease, keys, Table(table, log), log).work, on_finish="ask")
        over, left = asyncio.ensure_future(run.wait()), asyncio.ensure_future(ended.wait())
        await asyncio.wait({over, left}, return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            over.result()
            raise SystemExit("the run has ended by itself")
        await run.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("shardwise_client").setLevel(logging.DEBUG)
    asyncio.run(main(*sys.argv[1:]))
