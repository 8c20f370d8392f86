"""The lease of this worker: what it holds while it renews, and the work under it."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Callable, Optional, TypeVar

from ._answers import LeaseAnswer
from ._causes import Causes
from ._clock import Clock, now, pause_of, set_within
from ._entered import Entering
from ._errors import LeaseEnded, NotHeld, Problem, ShardwiseError, Unavailable
from ._holdings import Holdings
from ._lease_calls import LeaseCalls
from ._names import DaemonWork, NamedRun, NamedWork, NameRuns, TimerWork, daemons_offer, timer_offer
from ._offers import Offer
from ._runs import OnFinish, OwnedRun, RebalanceRun, Run, SlotChange, Work
from ._session import Session, passes
from ._slots import list_of

_log = logging.getLogger("shardwise_client")
_TTL_MIN, _TTL_MAX = 1.0, 60.0
# While another lease is live it is asked for at least this often; it may be ended before its time. In seconds.
_ASK_EVERY, _END_WITHIN = 1.0, 2.0
# How long one question may take, and how long a lease lasts that is no reason to wait before the next one.
_OPEN_WITHIN, _LASTS_WELL = 5.0, 10.0
R = TypeVar("R", bound=Run)


class Lease:
    """See `Client.lease`. Everything here answers from memory, by this worker's own clock; past the deadline nothing is owned."""

    def __init__(self, calls: LeaseCalls, ttl: float, *, reopen: bool, on_ended: Optional[Callable[[LeaseEnded], object]], within: float,
                 clock: Clock = now, shortest: float = _TTL_MIN) -> None:  # fmt: skip
        if not shortest <= ttl <= _TTL_MAX:
            raise ShardwiseError(f"the ttl of a lease is {_TTL_MIN:.0f} to {_TTL_MAX:.0f} seconds, not {ttl}")
        self._calls, self._ttl, self._reopen, self._on_ended, self._within = calls, ttl, reopen, on_ended, within
        # Internal, for the synchronous face.
        self.holdings = Holdings(clock)
        self.names = NameRuns(self.holdings)
        self._session: Optional[Session] = None
        self._main: Optional[asyncio.Task[None]] = None
        self._runs: set[Run] = set()
        self._last_error: Optional[ShardwiseError] = None
        self._causes = Causes(calls.place)

    async def __aenter__(self) -> "Lease":
        if self._main is not None:
            raise ShardwiseError("this lease was opened already: call lease() again")
        # Here and not before, as an event belongs to the running loop before Python 3.10.
        self._ready = asyncio.Event()
        self._main, ready = asyncio.ensure_future(self._live()), asyncio.ensure_future(self._ready.wait())
        self._main.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            await asyncio.wait({self._main, ready}, timeout=self._within, return_when=asyncio.FIRST_COMPLETED)
            if self._main.done():
                self._main.result()
            if not self._ready.is_set():
                raise self._last_error or Unavailable(f"there is no lease within {self._within:.0f} s")
        except BaseException:
            await self.close()
            raise
        finally:
            ready.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def state(self) -> str:
        """`active`, or why nothing is owned: `expired` (no renewal was answered in time), `opening` (the last lease has ended, and there is no other
        yet), or `ended` (for good)."""
        return self.holdings.state

    @property
    def id(self) -> Optional[str]:
        """The id of the live lease, for other processes of this worker (`Client.enter`); `None` while there is none."""
        return None if self.holdings.table is None or self._session is None else self._session.id

    def owned(self, keys: Iterable[str]) -> list[str]:
        """The keys that this worker owns now, in their order, without a request. None while `state` is not `active`; `LeaseEnded` once there will
        be no lease any more. Keys whose slot is being handed over are not in it: nothing new begins there."""
        return self.holdings.owned(list_of(keys))

    def owns(self, key: str) -> bool:
        """Whether this worker owns the key now, without a request."""
        return bool(self.holdings.owned([key]))

    def enter(self, key: str, *, ask: bool = False) -> Entering[asyncio.Event]:
        """`async with lease.enter(key) as entered`: work on a key that this worker holds, else `NotHeld`. The slot moves to another member once the
        block has ended. `entered.fence` is for your own writes. If the slot is lost, the task is cancelled and the block ends with `Lost`.

        Answers from memory; with `ask` the sidecar is asked first as well."""

        return Entering(self.holdings, lambda: self.holdings.slot(key), key, asyncio.Event, before=(lambda: self.confirm(key)) if ask else None)

    def run_owned(self, keys: Iterable[str], work: Work, *, on_finish: OnFinish = "cancel") -> OwnedRun:
        """Runs `work(key, entered)` in a task for each key that is owned: it begins when the key is gained, and is cancelled when it is lost or must
        be handed over. With `on_finish="ask"` work that must be handed over is not cancelled but sees `entered.finish`.

        Work that ends by itself is not begun again before the key is lost and regained; work that fails is, after 0.5 to 30 s."""
        return self.running(OwnedRun(self.holdings, keys, work, on_finish))

    def on_rebalance(self, callback: Callable[[SlotChange], object], keys: Optional[Iterable[str]] = None) -> RebalanceRun:
        """Calls `callback`, a function or a coroutine function, with the slots that were gained and lost; first with those that are owned already.
        With `keys` it gets how many of them are owned."""
        return self.running(RebalanceRun(self.holdings, callback, keys))

    def singleton(self, name: str, work: NamedWork, *, on_finish: OnFinish = "cancel") -> NamedRun:
        """Runs `work(entered)` on one member of the group at a time. All members offer the same name."""
        return self.running(self.names.run(Offer("singletons", name), lambda _number, _period, entered: work(entered), on_finish))

    def daemons(self, set: str, work: DaemonWork, count: Optional[int] = None, *, on_finish: OnFinish = "cancel") -> NamedRun:
        """Runs `work(number, entered)` for each daemon of that set that this worker holds. The group keeps their number; `count` is the number unless
        the group has one already. Without any there are no daemons."""
        offer = daemons_offer(set, count)
        return self.running(self.names.run(offer, lambda number, _period, entered: work(number, entered), on_finish))

    def timer(self, name: str, every: float, work: TimerWork, phase: float = 0.0, *, on_finish: OnFinish = "cancel") -> NamedRun:
        """Runs `work(period, entered)` once in each period of `every` seconds since the start of 1970 (UTC), shifted by `phase`, on the member that
        holds the timer. A period is fired once, or not at all."""
        offer = timer_offer(name, every, phase)
        return self.running(self.names.run(offer, lambda _number, period, entered: work(period, entered), on_finish))

    async def close(self) -> None:
        """Cancels all work, waits until it has ended or the lease would have, and ends the lease: others get its slots at once."""
        if self._main is None:
            return
        holdings, over = self.holdings, LeaseEnded("it was closed")
        table, session = holdings.table, self._session
        left = 0.0 if table is None else max(0.0, table.deadline - holdings.clock())
        holdings.close()
        # Their work is still held while it ends.
        stopping = {asyncio.ensure_future(run.stop()) for run in self._runs if run.is_work}
        if stopping:
            await asyncio.wait(stopping, timeout=left)
        if holdings.over is None:
            holdings.refuse(over)
        is_idle = await self._idle(left)
        self._main.cancel()
        await asyncio.wait({self._main})
        if is_idle and session is not None and table is not None and holdings.table is table:
            with suppress(ShardwiseError):
                await self._calls.end(session.id, _END_WITHIN)
        holdings.end("it was closed", over)
        stopping |= {asyncio.ensure_future(run.wait_end()) for run in self._runs}
        if stopping:
            await asyncio.wait(stopping, timeout=_END_WITHIN)

    async def confirm(self, key: str) -> None:
        """Internal: asks the sidecar whether the key is held."""
        session = self._session
        held = [] if session is None else await self._calls.enter(session.id, [key], min(self._ttl / 3, _OPEN_WITHIN))
        if not any(answer["key"] == key for answer in held):
            raise NotHeld(f"{key!r} is not held by this worker: its sidecar says so")

    async def _idle(self, seconds: float) -> bool:
        """Waits until nothing is in flight."""
        ended = asyncio.Event()
        self.holdings.listen(ended.set)
        try:
            until = self.holdings.clock() + seconds
            while self.holdings.in_flight() and (left := until - self.holdings.clock()) > 0:
                ended.clear()
                await set_within(ended, left)
            return not self.holdings.in_flight()
        finally:
            self.holdings.unlisten(ended.set)

    def running(self, run: R) -> R:
        """Internal: this run ends with the lease."""
        self._runs = {each for each in self._runs if not each.is_over} | {run}
        return run

    async def _live(self) -> None:
        """Opens leases, one after the other."""
        tries = 0
        try:
            while True:
                answer, asked = await self._opened()
                self._last_error = None
                self._causes.succeeded()
                self._session = session = Session(self._calls, self.holdings, self.names.offers, self._ttl, answer, asked, self._ready)
                session.on_no_grants, session.causes = self._failed, self._causes
                try:
                    await session.run()
                except LeaseEnded as ended:
                    self.holdings.end(ended.why, None if self._reopen else ended)
                    self._report_end(ended)
                    if not self._reopen:
                        raise
                tries = 0 if self.holdings.clock() - asked > _LASTS_WELL else tries + 1
                await asyncio.sleep(pause_of(tries) if tries > 1 else 0)
        except Exception as error:
            over = error if isinstance(error, ShardwiseError) else ShardwiseError(f"the lease has failed: {error!r}")
            self.holdings.end(str(over), over)
            if self._ready.is_set():
                _log.error("nothing is held any more: %s", over, exc_info=None if over is error else error)
            raise over from error

    async def _opened(self) -> tuple[LeaseAnswer, float]:
        tries = 0
        while True:
            asked = self.holdings.clock()
            try:
                return await self._calls.open(round(self._ttl * 1000), _OPEN_WITHIN), asked
            except ShardwiseError as error:
                is_taken = isinstance(error, Problem) and error.kind == "lease-taken"
                if not is_taken and not passes(error):
                    raise
                self._failed(error)
                self._causes.failed("there is no lease yet", error)
                await asyncio.sleep(min(_ASK_EVERY, max(error.retry_after, pause_of(tries))))
                tries += 1

    def _failed(self, error: ShardwiseError) -> None:
        """This is why there is no lease yet."""
        self._last_error = error

    def _report_end(self, ended: LeaseEnded) -> None:
        _log.warning("%s (%s); all work under it is cancelled", ended, self._causes.summary())
        if self._on_ended is not None:
            try:
                self._on_ended(ended)
            except Exception:
                _log.exception("a callback of on_ended failed")
