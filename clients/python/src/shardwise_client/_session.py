"""One lease: renews it, follows its grants, and reports what is finished, until it ends."""

import asyncio
import logging
from typing import Any, Callable

from ._answers import LeaseAnswer
from ._causes import Causes
from ._clock import pause_of, set_within
from ._errors import LeaseEnded, Problem, ShardwiseError, Unavailable
from ._holdings import Holdings
from ._lease_calls import LeaseCalls
from ._offers import Offers, names_of

_log = logging.getLogger("shardwise_client")
# A timer of the loop may stand still during a suspend, so the clock is read at least this often, in seconds.
_POLL_EVERY = 0.2
_RETRY_FIRST, _RETRY_LONGEST = 0.05, 1.0
# What is granted for a shorter time than the lease is renewed so many times in it, but not more often than so, in seconds.
_RENEWALS, _RENEW_MIN = 3, 0.1
_FINISHED_AT_ONCE = 4_096
_GATHER = 0.01
# The status of an answer to a request that took too long to arrive.
_TOO_SLOW = 408


class Session:
    """A lease that was opened by a question sent at `asked`."""

    def __init__(self, calls: LeaseCalls, holdings: Holdings, offers: Offers, ttl: float, answer: LeaseAnswer, asked: float,
                 ready: asyncio.Event) -> None:  # fmt: skip
        self.id, self._calls, self._holdings, self._offers = answer["id"], calls, holdings, offers
        self._every = ttl / 3
        self._table = holdings.begin(ttl)
        self._table.renewed(asked, answer["valid_ms"], answer["version"])
        # `ready` is set when the first table has been read; `at_once` when the next renewal cannot wait.
        self._ready, self._unreported, self._at_once = ready, asyncio.Event(), asyncio.Event()
        holdings.on_unreported = self._unreported.set
        # Called when the stream of grants is refused or breaks.
        self.on_no_grants: Callable[[ShardwiseError], None] = lambda _: None
        self.causes = Causes(calls.place)

    async def run(self) -> None:
        """Runs until the lease has ended (`LeaseEnded`), or something is wrong that does not pass."""
        loops = [self._renew(), self._follow(), self._report(), self._offer(), self._watch()]
        tasks = [asyncio.ensure_future(loop) for loop in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            errors = [error for error in (task.exception() for task in done if not task.cancelled()) if error is not None]
            # The end of the lease explains the other errors.
            raise next((error for error in errors if isinstance(error, LeaseEnded)), errors[0] if errors else Unavailable("a task of the lease has ended"))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._offers.restart()

    async def _renew(self) -> None:
        clock, next_at, tries = self._holdings.clock, self._holdings.clock() + self._every, 0
        while True:
            await set_within(self._at_once, next_at - clock())
            self._at_once.clear()
            asked = clock()
            try:
                answer = await self._calls.renew(self.id, self._table.version, within=self._every)
            except ShardwiseError as error:
                _raise_unless_it_passes(error)
                self.causes.failed("the lease was not renewed, and it ends unless a renewal is answered in time", error)
                next_at = clock() + max(min(error.retry_after, self._every), pause_of(tries, _RETRY_FIRST, min(_RETRY_LONGEST, self._every)))
                tries += 1
                continue
            self.causes.succeeded()
            self._table.renewed(asked, answer["valid_ms"], answer["version"])
            self._holdings.look()
            next_at, tries = asked + self._pause(answer["valid_ms"] / 1000), 0

    def _pause(self, valid: float) -> float:
        """From one renewal to the next. The sidecar may hold its slots for a shorter time than the lease lasts: Consul grants half a TTL."""
        return min(self._every, max(valid / _RENEWALS, _RENEW_MIN)) if valid > 0 else self._every

    async def _follow(self) -> None:
        tries = 0
        while True:
            asked, lines = self._holdings.clock(), self._calls.grants(self.id)
            try:
                is_first = True
                async for line in lines:
                    self._read(line, asked, is_first)
                    is_first, tries = False, 0
            except ShardwiseError as error:
                _raise_unless_it_passes(error)
                self.on_no_grants(error)
                _log.debug("the stream of grants is broken: %s", error)
            finally:
                await lines.aclose()
            await asyncio.sleep(pause_of(tries, _RETRY_FIRST, _RETRY_LONGEST))
            tries += 1

    def _read(self, line: dict[str, Any], asked: float, is_first: bool) -> None:
        kind = line.get("type")
        if kind == "ended":
            raise LeaseEnded(str(line.get("why") or "the sidecar has ended it"))
        if is_first and kind != "all":
            raise Unavailable(f"a stream of grants begins with all of them, not with {kind}")
        # A stream that is far behind sends all of them again.
        changes = self._table.whole(line, asked) if kind == "all" else self._table.line(line)
        self._holdings.changed(changes)
        self._ready.set()
        if changes.granted and not self._table.may_begin(self._holdings.clock()):
            # While nothing was held, no answer had a deadline.
            self._at_once.set()

    async def _report(self) -> None:
        unreported, tries = self._holdings.unreported, 0
        while True:
            await self._unreported.wait()
            self._unreported.clear()
            while unreported:
                batch = unreported[:_FINISHED_AT_ONCE]
                try:
                    await self._calls.finished(self.id, batch, within=max(1.0, self._every))
                except ShardwiseError as error:
                    _raise_unless_it_passes(error)
                    _log.debug("finished work was not reported: %s", error)
                    await asyncio.sleep(pause_of(tries, _RETRY_FIRST, _RETRY_LONGEST))
                    tries += 1
                    continue
                tries = 0
                del unreported[: len(batch)]
                self._table.answered(batch, self._holdings.clock())

    async def _offer(self) -> None:
        tries = 0
        while True:
            request = self._offers.request()
            if request is None:
                await self._offers.changed()
                # What is offered at the same time goes into one request.
                await asyncio.sleep(_GATHER)
                continue
            try:
                await self._calls.offer(self.id, names_of(request), within=max(1.0, self._every))
            except ShardwiseError as error:
                if isinstance(error, LeaseEnded):
                    raise
                if passes(error):
                    await asyncio.sleep(pause_of(tries, _RETRY_FIRST, _RETRY_LONGEST))
                    tries += 1
                else:
                    # A refused name is no reason to give up what is held.
                    self._offers.refused(request, error)
                continue
            tries = 0
            self._offers.accepted(request)

    async def _watch(self) -> None:
        """Cancels work in time when no renewal is answered."""
        while True:
            self._holdings.look()
            left = self._table.stop_at - self._holdings.clock()
            await asyncio.sleep(min(left, _POLL_EVERY) if left > 0 else _POLL_EVERY)


def passes(error: ShardwiseError) -> bool:
    """Whether a request of a lease is worth another try."""
    return error.passes or isinstance(error, Problem) and (error.status >= 500 or error.status == _TOO_SLOW)


def _raise_unless_it_passes(error: ShardwiseError) -> None:
    if isinstance(error, LeaseEnded) or not passes(error):
        raise error

