"""The lease of a worker, with calls that block."""

import asyncio
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Callable, Generic, Optional, TypeVar

from . import _lease
from ._hold import Hold
from ._names import daemons_offer, timer_offer
from ._offers import Offer
from ._runs import OwnedRun as _OwnedRun
from ._runs import RebalanceRun, SlotChange
from ._runs import Run as _Run
from ._slots import texts_of
from ._sync_loop import Loop, in_thread
from ._table import Period

# What `with lease.enter(key) as entered` gives.
Entered = Hold[threading.Event]
R = TypeVar("R", bound=_Run)


class Entering:
    """Holds what was entered during the block. A thread cannot be cancelled: long work calls `entered.check()` or waits for `entered.finish`. A block
    in which it was lost ends with `Lost`."""

    def __init__(self, loop: Loop, lease: _lease.Lease, key: str, ask: bool) -> None:
        self._loop, self._lease, self._key, self._asks = loop, lease, key, ask
        self._hold: Optional[Entered] = None

    def __enter__(self) -> Entered:
        async def entered() -> Entered:
            if self._asks:
                await self._lease.confirm(self._key)
            holdings = self._lease.holdings
            return holdings.enter(holdings.slot(self._key), self._key, threading.Event, _nothing)

        if self._hold is not None:
            raise RuntimeError("this was entered already: call enter() again")
        self._hold = self._loop.call(entered())
        return self._hold

    def __exit__(self, kind: Optional[type[BaseException]], _error: Optional[BaseException], _trace: Optional[TracebackType]) -> None:
        hold = self._hold
        if hold is None:
            return
        is_held = hold.is_held
        self._loop.run(lambda: self._lease.holdings.leave(hold))
        if kind is None and not is_held:
            raise hold.lost_error()


class Run(Generic[R]):
    """Work in the background, until `stop`, the end of its block, or the end of the lease."""

    def __init__(self, loop: Loop, run: R) -> None:
        self._loop, self._run = loop, run

    def __enter__(self) -> "Run[R]":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Asks all work to finish and waits until it has ended."""
        self._loop.call(self._run.stop())

    def wait(self) -> None:
        """Waits until the run has been stopped. Raises the sidecar's error if it refuses the name, and `LeaseEnded`, or what else was wrong, if nothing
        will be held any more."""
        self._loop.call(self._run.wait())

    @property
    def running(self) -> list[str]:
        """What is being worked on now."""
        return self._loop.run(lambda: self._run.running)


class OwnedRun(Run[_OwnedRun]):
    """The threads of one `lease.run_owned`."""

    def __enter__(self) -> "OwnedRun":
        return self

    def set_keys(self, keys: Iterable[str]) -> None:
        """Replaces the keys: asks work on removed ones to finish, and starts work on new ones that are owned."""
        texts = texts_of(keys)
        self._loop.run(lambda: self._run.set_keys(texts))


class Lease:
    """See `shardwise_client.Lease`. Work runs in threads; one that must be handed over is asked to finish. In a forked process all of this raises."""

    def __init__(self, loop: Loop, make: Callable[[], _lease.Lease]) -> None:
        self._loop, self._made = loop, loop.run(make)

    @property
    def _lease(self) -> _lease.Lease:
        # In a forked process it would answer from what it held before the fork.
        self._loop.raise_if_forked()
        return self._made

    def __enter__(self) -> "Lease":
        self._loop.call(self._lease.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Asks all work to finish, waits until it has ended or the lease would have, and ends the lease."""
        self._loop.call(self._lease.close())

    @property
    def state(self) -> str:
        """`active`, or why nothing is owned: `expired`, `opening` or `ended`."""
        return self._lease.state

    @property
    def id(self) -> Optional[str]:
        """The id of the live lease, for other processes of this worker (`Client.enter`); `None` while there is none."""
        return self._lease.id

    def owned(self, keys: Iterable[str]) -> list[str]:
        """The keys that this worker owns now, in their order, without a request."""
        return self._lease.owned(keys)

    def owns(self, key: str) -> bool:
        """Whether this worker owns the key now, without a request."""
        return self._lease.owns(key)

    def enter(self, key: str, *, ask: bool = False) -> Entering:
        """`with lease.enter(key) as entered`: work on a key that this worker holds, else `NotHeld`."""
        return Entering(self._loop, self._lease, key, ask)

    def run_owned(self, keys: Iterable[str], work: Callable[[str, Entered], object]) -> OwnedRun:
        """Runs `work(key, entered)` in a thread for each key that is owned. The thread has to end when `entered.finish` is set."""
        texts = texts_of(keys)

        async def threaded(key: str, entered: Entered) -> None:
            await in_thread(entered, lambda: work(key, entered))

        return OwnedRun(self._loop, self._started(lambda: _OwnedRun(self._lease.holdings, texts, threaded, "ask", threading.Event)))

    def on_rebalance(self, callback: Callable[[SlotChange], object], keys: Optional[Iterable[str]] = None) -> Run[RebalanceRun]:
        """Calls `callback` in a thread with the slots that were gained and lost; first with those that are owned already."""
        texts = None if keys is None else texts_of(keys)

        async def threaded(change: SlotChange) -> None:
            await asyncio.to_thread(callback, change)

        return Run(self._loop, self._started(lambda: RebalanceRun(self._lease.holdings, threaded, texts)))

    def singleton(self, name: str, work: Callable[[Entered], object]) -> Run[Any]:
        """Runs `work(entered)` in a thread, on one member of the group at a time."""
        return self._named(Offer("singletons", name), lambda _number, _period, entered: work(entered))

    def daemons(self, set: str, work: Callable[[int, Entered], object], count: Optional[int] = None) -> Run[Any]:
        """Runs `work(number, entered)` in a thread for each daemon of that set that this worker holds. The group keeps their number; `count` is the
        number unless the group has one already. Without any there are no daemons."""
        return self._named(daemons_offer(set, count), lambda number, _period, entered: work(number, entered))

    def timer(self, name: str, every: float, work: Callable[[Period, Entered], object], phase: float = 0.0) -> Run[Any]:
        """Runs `work(period, entered)` in a thread once in each period of `every` seconds, on the member that holds the timer."""
        return self._named(timer_offer(name, every, phase), lambda _number, period, entered: work(period, entered))

    def _named(self, offer: Offer, work: Callable[[int, Period, Entered], object]) -> Run[Any]:
        async def threaded(number: int, period: Period, entered: Entered) -> None:
            await in_thread(entered, lambda: work(number, period, entered))

        return Run(self._loop, self._started(lambda: self._lease.names.run(offer, threaded, "ask", threading.Event)))

    def _started(self, make: Callable[[], R]) -> R:
        return self._loop.run(lambda: self._lease.running(make()))


def _nothing() -> None:
    pass
