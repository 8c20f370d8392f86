"""Singletons, daemons and timers: work under a name that one member of the group holds at a time."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, Callable, Optional

from ._entered import Entered
from ._errors import ShardwiseError
from ._hold import Hold
from ._holdings import Holdings
from ._offers import Offer, Offers
from ._runs import Event, OnFinish, Run, check_on_finish
from ._table import Grant, Period, Resource

_log = logging.getLogger("shardwise_client")
# How long a stopped run waits until the sidecar knows that its name is not offered any more, in seconds.
_WITHDRAWN_WITHIN = 1.0
_NO_PERIOD = Period(0, 0)
_DAEMONS_MAX = 1_024
_EVERY_MIN, _EVERY_MAX = 1.0, 366 * 86_400.0

NamedWork = Callable[[Entered], Awaitable[object]]
DaemonWork = Callable[[int, Entered], Awaitable[object]]
# It takes the number of a daemon, the period of a timer, and what was entered.
AnyNamedWork = Callable[[int, Period, Any], Awaitable[object]]
TimerWork = Callable[[Period, Entered], Awaitable[object]]


class NamedRun(Run):
    """The tasks of one singleton, set of daemons, or timer."""

    def __init__(self, names: "NameRuns", offer: Offer, work: AnyNamedWork, on_finish: OnFinish, event: Event = asyncio.Event) -> None:
        check_on_finish(on_finish)
        names.add(offer, self)
        super().__init__(names.holdings, on_finish, event)
        self._names, self._offer, self._named_work = names, offer, work
        # The grants of a timer whose job was begun: no period is fired twice.
        self._fired: set[Grant] = set()
        self._refusal: Optional[ShardwiseError] = None

    async def stop(self) -> None:
        """Withdraws the offer, cancels the work and waits until it has ended; then another member gets the name."""
        self._names.offers.remove(self._offer)
        if self._holdings.over is None:
            withdrawn = asyncio.ensure_future(self._names.offers.withdrawn(self._offer))
            try:
                await asyncio.wait({withdrawn}, timeout=_WITHDRAWN_WITHIN)
            finally:
                withdrawn.cancel()
        await super().stop()

    async def wait(self) -> None:
        """Waits until the run has been stopped. Raises the sidecar's error if it refuses the name, and `LeaseEnded`, or what else was wrong, if nothing
        will be held any more."""
        await self.wait_end()
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        await super().wait()

    def refuse(self, error: ShardwiseError) -> None:
        """Internal: the sidecar refuses the name, so the run ends."""
        self._refusal = error
        self._main.cancel()

    async def _stopped(self) -> None:
        self._names.offers.remove(self._offer)
        await super()._stopped()
        self._names.remove(self._offer)

    def _items(self) -> dict[str, tuple[Resource, Grant]]:
        grants = self._holdings.open_grants()
        return {
            name: (name, grant)
            for name, grant in grants.items()
            if isinstance(name, str) and self._offer.number_in(name) is not None and grant not in self._fired
        }

    def _wanted(self, item: str) -> bool:
        return True

    async def _work_on(self, item: str, grant: Grant, entered: Hold[Any]) -> None:
        number = self._offer.number_in(item) or 0
        if grant.period is None:
            await self._named_work(number, _NO_PERIOD, entered)
            return
        self._fired.add(grant)
        try:
            await self._named_work(number, grant.period, entered)
        finally:
            # One period is one grant, and its job is over, however it ended.
            self._holdings.release(grant)

    def _settle(self) -> None:
        self._fired &= set(self._holdings.all_grants().values())
        super()._settle()

    def _is_done(self, done: Grant, grant: Grant) -> bool:
        # Until the name is claimed again.
        return done.epoch == grant.epoch


class NameRuns:
    """All runs of names under one lease."""

    def __init__(self, holdings: Holdings) -> None:
        self.holdings, self.offers = holdings, Offers()
        self._runs: dict[Offer, NamedRun] = {}
        self.offers.on_refused = self._refused
        holdings.listen(self._release_unwanted)

    def add(self, offer: Offer, run: NamedRun) -> None:
        self.holdings.raise_if_over()
        if not offer.name and offer.kind != "daemons":
            raise ShardwiseError(f"one of the {offer.kind} has a name")
        self.offers.add(offer)
        self._runs[offer] = run

    def remove(self, offer: Offer) -> None:
        self._runs.pop(offer, None)
        self._release_unwanted()

    def run(self, offer: Offer, work: AnyNamedWork, on_finish: OnFinish, event: Event = asyncio.Event) -> NamedRun:
        return NamedRun(self, offer, work, on_finish, event)

    def _refused(self, offer: Offer, error: ShardwiseError) -> None:
        _log.error("the sidecar refuses %s, so its run ends: %s", offer.prefix, error)
        self._runs[offer].refuse(error)

    def _release_unwanted(self) -> None:
        """A name that nothing here works under goes to another member."""
        for name, grant in self.holdings.open_grants().items():
            if isinstance(name, str) and all(offer.number_in(name) is None for offer in self._runs):
                self.holdings.release(grant)


def daemons_offer(name: str, count: Optional[int]) -> Offer:
    """A set of daemons, and how many it has unless the group has a number already."""
    if count is not None and not 0 <= count <= _DAEMONS_MAX:
        raise ShardwiseError(f"daemons {name!r}: a set has 0 to {_DAEMONS_MAX:,} daemons: count={count}")
    return Offer("daemons", name, daemons=count)


def timer_offer(name: str, every: float, phase: float) -> Offer:
    """A timer; both times are in seconds."""
    if not _EVERY_MIN <= every <= _EVERY_MAX or not 0 <= phase < every:
        raise ShardwiseError(f"timer {name!r}: a period has 1 s to 366 days, and its phase is shorter: every={every}, phase={phase}")
    return Offer("timers", name, round(every * 1000), round(phase * 1000))
