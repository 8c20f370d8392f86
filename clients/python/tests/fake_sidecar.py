"""The lease calls of a sidecar in memory, for what one that runs cannot be made to do: silence, late answers, and grants one by one."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any, Optional, Union

from shardwise_client import LeaseEnded, ShardwiseError, Unavailable
from shardwise_client._answers import EnteredKey, LeaseAnswer
from shardwise_client._lease import Lease
from shardwise_client._slots import hash_of, slot_of

PATIENCE = 20.0
SLOTS = 64
# Of leases that are to hold for a whole test, in seconds: a busy machine may not run this process for a while.
TTL = 2.0
# Tests end leases, and their log is of no interest.
logging.getLogger("shardwise_client").addHandler(logging.NullHandler())


class Taken(ShardwiseError):
    passes = True


class FakeSidecar:
    """One policy of a sidecar. `is_silent`: nothing is answered; `seconds`: each answer is so late; `is_cut`: the stream breaks and does not come back,
    and `cut` is the error."""

    place = "memory://sidecar/workers"

    def __init__(self) -> None:
        self.lease: Optional[str] = None
        self.version, self.opened, self.renewed, self.streams = 0, 0, 0, 0
        self.grants_now: dict[int, dict[str, Any]] = {}
        self.finished_numbers: list[int] = []
        self.names: dict[str, Any] = {}
        # Each list of names that was sent; those with one of `bad_names` are refused, and those with more than `names_most` of a kind.
        self.offered: list[dict[str, Any]] = []
        self.bad_names: set[str] = set()
        self.names_most = 64
        # The group's numbers of daemons.
        self.counts: dict[str, int] = {}
        self.seen: list[int] = []
        self.is_silent, self.is_cut, self.seconds = False, False, 0.0
        self.cut: ShardwiseError = Unavailable("cut")
        self._last, self._ttl_ms = 0, 0
        self._lines: list[asyncio.Queue[dict[str, Any]]] = []

    def client(self, ttl: float = TTL, **options: Any) -> Lease:
        return Lease(self, ttl, **{"reopen": True, "on_ended": None, "within": PATIENCE, "shortest": 0.05, **options})

    # What the sidecar does by itself.

    def grant(self, what: Union[int, str], epoch: int = 1, period: Optional[dict[str, int]] = None) -> int:
        self._last += 1
        slot, name = (what, None) if isinstance(what, int) else (None, what)
        self.grants_now[self._last] = {"grant": self._last, "slot": slot, "name": name, "epoch": epoch, "period": period, "finish": False}
        self._send_change("granted", self._last)
        return self._last

    def grant_all(self, epoch: int = 1) -> None:
        for slot in range(SLOTS):
            self.grant(slot, epoch)

    def ask(self, number: int) -> None:
        self.grants_now[number]["finish"] = True
        self._send_change("finish", number)

    def lose(self, number: int) -> None:
        lost = self.grants_now.pop(number)
        self.version += 1
        self._send("lost", [lost])

    def end_lease(self, why: str = "it was renewed too late") -> None:
        self.lease = None
        self.grants_now.clear()
        self._send("ended", [], why=why)
        self._lines.clear()

    def send_all(self) -> None:
        """As to a reader that is far behind."""
        self._send("all", list(self.grants_now.values()))

    def break_streams(self) -> None:
        self._send("break", [])
        self._lines.clear()

    # The calls.

    async def open(self, ttl_ms: int, within: float) -> LeaseAnswer:
        await self._answers(within)
        if self.lease is not None:
            raise Taken("409 lease-taken")
        self.opened += 1
        self.lease, self._ttl_ms = f"{self.opened:032x}", ttl_ms
        self.version += 1
        return self._lease()

    async def renew(self, lease: str, seen: int, within: float) -> LeaseAnswer:
        self._is_live(lease)
        answer = self._lease()
        self.seen.append(seen)
        self.renewed += 1
        await self._answers(within)
        return answer

    async def end(self, lease: str, within: float) -> None:
        self._is_live(lease)
        self.end_lease("it was ended")

    async def grants(self, lease: str) -> AsyncGenerator[dict[str, Any], None]:
        await self._answers(PATIENCE)
        self._is_live(lease)
        if self.is_cut:
            raise self.cut
        self.streams += 1
        lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._lines.append(lines)
        yield self._line("all", list(self.grants_now.values()))
        while True:
            line = await lines.get()
            if line["type"] == "break":
                raise Unavailable("broken")
            yield line

    async def finished(self, lease: str, grants: list[int], within: float) -> int:
        await self._answers(within)
        self._is_live(lease)
        gone = [number for number in grants if (grant := self.grants_now.get(number)) and (grant["finish"] or grant["name"])]
        self.finished_numbers += gone
        for number in gone:
            self.lose(number)
        return len(gone)

    async def enter(self, lease: str, keys: list[str], within: float) -> list[EnteredKey]:
        await self._answers(within)
        self._is_live(lease)
        slots = {grant["slot"]: grant for grant in self.grants_now.values() if not grant["finish"]}
        found = [(key, slots[slot]) for key in keys if (slot := slot_of(hash_of(key), SLOTS)) in slots]
        return [{"key": key, "slot": grant["slot"], "epoch": grant["epoch"], "valid_ms": self._ttl_ms} for key, grant in found]

    async def offer(self, lease: str, names: dict[str, Any], within: float) -> None:
        await self._answers(within)
        self._is_live(lease)
        self.offered.append(names)
        texts = {str(name) for kind in ("singletons", "daemons") for name in names[kind]} | {timer["name"] for timer in names["timers"]}
        if texts & self.bad_names or any(len(names[kind]) > self.names_most for kind in ("singletons", "daemons", "timers")):
            raise ShardwiseError(f"400 bad-request: {sorted(texts & self.bad_names) or 'too many'}")
        self.names = names
        for name, count in names.get("counts", {}).items():
            self.counts.setdefault(name, count)

    async def _answers(self, within: float) -> None:
        until = time.monotonic() + within
        while self.is_silent:
            await asyncio.sleep(0.005)
            if time.monotonic() > until:
                raise Unavailable("silent")
        await asyncio.sleep(self.seconds)

    def _is_live(self, lease: str) -> None:
        if lease != self.lease:
            raise LeaseEnded("410 lease-ended")

    def _lease(self) -> LeaseAnswer:
        return {"id": self.lease or "", "ttl_ms": self._ttl_ms, "valid_ms": self._valid_ms(), "version": self.version}

    def _valid_ms(self) -> int:
        # While nothing is held there is no deadline.
        return self._ttl_ms if self.grants_now else 0

    def _line(self, kind: str, grants: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": kind, "version": self.version, "valid_ms": self._valid_ms(), "slots": SLOTS, "grants": [dict(grant) for grant in grants]}

    def _send_change(self, kind: str, number: int) -> None:
        self.version += 1
        self._send(kind, [self.grants_now[number]])

    def _send(self, kind: str, grants: list[dict[str, Any]], **more: str) -> None:
        if not self.is_silent:
            for lines in self._lines:
                lines.put_nowait({**self._line(kind, grants), **more})


class Lateness:
    """How much later than asked this loop wakes a task at most, measured beside a test: what the machine itself is late."""

    def __init__(self) -> None:
        self.worst = 0.0

    async def __aenter__(self) -> "Lateness":
        self._task = asyncio.ensure_future(self._measures())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _measures(self) -> None:
        while True:
            asked = time.monotonic()
            await asyncio.sleep(0.01)
            self.worst = max(self.worst, time.monotonic() - asked - 0.01)


def slot(key: str) -> int:
    return slot_of(hash_of(key), SLOTS)


def key_in(slot_: int) -> str:
    return next(key for key in map("key-{}".format, range(100_000)) if slot(key) == slot_)
