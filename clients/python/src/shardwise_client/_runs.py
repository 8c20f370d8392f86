"""One task for each thing that this worker holds: started when it is gained, cancelled when it is lost."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import Any, Callable, Literal, NamedTuple, Optional

from ._clock import pause_of
from ._entered import Entered, Entering
from ._errors import Lost, NotHeld, ShardwiseError
from ._hold import Hold
from ._holdings import Holdings
from ._slots import texts_of
from ._table import Grant, Resource

_log = logging.getLogger("shardwise_client")
# Work that fails is begun again after a pause; work that ran for so long before starts with the first pause again. In seconds.
_PAUSE_FIRST, _PAUSE_LONGEST, _RUNS_WELL = 0.5, 30.0, 60.0

# What happens to work that must be handed over: its task is cancelled at once, or only `finish` is set, and the work ends by itself.
OnFinish = Literal["cancel", "ask"]
Work = Callable[[str, Entered], Awaitable[object]]
# What makes the events of what is entered: of asyncio, or of threads.
Event = Callable[[], Any]


def check_on_finish(on_finish: str) -> None:
    if on_finish not in ("cancel", "ask"):
        raise ShardwiseError(f'on_finish is "cancel" or "ask", not {on_finish!r}')


class Run:
    """Work in the background, until `stop`, the end of its block, or the end of the lease."""

    # Whether it holds something while it works.
    is_work = True

    def __init__(self, holdings: Holdings, on_finish: OnFinish, event: Event = asyncio.Event) -> None:
        check_on_finish(on_finish)
        self._holdings, self._cancels, self._event = holdings, on_finish == "cancel", event
        self._changed = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Work that has ended by itself is not begun again under the same grant.
        self._done: dict[str, Grant] = {}
        self._main = asyncio.ensure_future(self._settles())
        self._main.add_done_callback(_report)

    async def __aenter__(self) -> "Run":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Cancels all work and waits until it has ended."""
        self._main.cancel()
        await asyncio.wait({self._main})

    async def wait(self) -> None:
        """Waits until the run has been stopped. Raises `LeaseEnded`, or what else was wrong, if nothing will be held any more."""
        await self.wait_end()
        self._holdings.raise_if_over()

    async def wait_end(self) -> None:
        """Waits until the run has ended. A cancellation of the caller does not stop it."""
        await asyncio.wait({self._main})

    @property
    def is_over(self) -> bool:
        """Whether it has been stopped, and all its work has ended."""
        return self._main.done()

    @property
    def running(self) -> list[str]:
        """What is being worked on now."""
        return list(self._tasks)

    def _items(self) -> dict[str, tuple[Resource, Grant]]:
        """What should be worked on now."""
        raise NotImplementedError

    def _wanted(self, item: str) -> bool:
        raise NotImplementedError

    async def _work_on(self, item: str, grant: Grant, entered: Hold[Any]) -> None:
        raise NotImplementedError

    def _is_done(self, done: Grant, grant: Grant) -> bool:
        """Whether work that has ended by itself under the one grant is not begun again under the other."""
        return done == grant

    async def _settles(self) -> None:
        self._holdings.listen(self._changed.set)
        try:
            while self._holdings.over is None:
                self._changed.clear()
                self._settle()
                await self._changed.wait()
        finally:
            self._holdings.unlisten(self._changed.set)
            await self._stopped()

    async def _stopped(self) -> None:
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        while tasks:
            _, tasks = await asyncio.wait(tasks)

    def _settle(self) -> None:
        for item, task in self._tasks.items():
            if not self._wanted(item):
                task.cancel()
        items = self._items()
        self._done = {item: done for item, done in self._done.items() if item in items and self._is_done(done, items[item][1])}
        for item, (resource, grant) in items.items():
            if item not in self._tasks and item not in self._done and not self._holdings.is_busy(resource):
                task = asyncio.ensure_future(self._keep(item, resource, grant))
                self._tasks[item] = task
                task.add_done_callback(lambda task, item=item: self._over(item, task))  # type: ignore[misc]

    def _over(self, item: str, task: "asyncio.Task[None]") -> None:
        del self._tasks[item]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work on %r has ended with an error", item, exc_info=error)
        self._changed.set()

    async def _keep(self, item: str, resource: Resource, grant: Grant) -> None:
        """Works under that grant until the work ends, or the grant is lost. Work that fails is begun again."""
        tries, loop = 0, asyncio.get_running_loop()
        while True:
            begun = loop.time()
            failure: Optional[BaseException] = None
            try:
                async with Entering(self._holdings, lambda: resource, item, self._event, cancel_to_finish=self._cancels) as entered:
                    if entered.grant != grant:
                        return
                    try:
                        await self._work_on(item, grant, entered)
                    except Exception as error:
                        failure = error
                    except asyncio.CancelledError as error:
                        # Work that cancels itself has failed; before Python 3.11 it looks like a task that is cancelled.
                        if getattr(asyncio.current_task(), "cancelling", lambda: 1)():
                            raise
                        failure = error
            except (NotHeld, Lost):
                return
            if failure is None:
                self._done[item] = grant
                return
            if grant.period is not None:
                _log.error("the job of %r failed; the next period is fired as usual", item, exc_info=failure)
                return
            tries = 0 if loop.time() - begun > _RUNS_WELL else tries
            pause = pause_of(tries, _PAUSE_FIRST, _PAUSE_LONGEST)
            _log.error("work on %r failed; it is begun again in %.1f s", item, pause, exc_info=failure)
            await asyncio.sleep(pause)
            tries += 1


def _report(main: "asyncio.Task[None]") -> None:
    if not main.cancelled() and (error := main.exception()) is not None:
        _log.error("a run has ended with an error", exc_info=error)


class OwnedRun(Run):
    """The tasks of one `lease.run_owned`."""

    def __init__(self, holdings: Holdings, keys: Iterable[str], work: Callable[[str, Any], Awaitable[object]], on_finish: OnFinish,
                 event: Event = asyncio.Event) -> None:  # fmt: skip
        # Before the run begins, as these may be refused.
        self._keys, self._work = dict.fromkeys(texts_of(keys)), work
        super().__init__(holdings, on_finish, event)

    async def __aenter__(self) -> "OwnedRun":
        return self

    def set_keys(self, keys: Iterable[str]) -> None:
        """Replaces the keys: cancels work on removed ones, and starts work on new ones that are owned."""
        self._keys = dict.fromkeys(texts_of(keys))
        self._changed.set()

    def _items(self) -> dict[str, tuple[Resource, Grant]]:
        grants = self._holdings.open_grants()
        slots = ((key, self._holdings.slot(key)) for key in self._keys) if grants else ()
        return {key: (slot, grants[slot]) for key, slot in slots if slot in grants}

    def _wanted(self, item: str) -> bool:
        return item in self._keys

    async def _work_on(self, item: str, grant: Grant, entered: Hold[Any]) -> None:
        await self._work(item, entered)


class SlotChange(NamedTuple):
    """What has changed since the last call. A slot that was lost and regained in between is in both lists, which are ascending."""

    gained: list[int]
    lost: list[int]
    # How many slots are owned now, and how many of the keys that were given.
    slots_owned: int
    keys_owned: Optional[int]


class RebalanceRun(Run):
    """Calls back after each change, one call at a time; changes meanwhile are merged."""

    is_work = False

    def __init__(self, holdings: Holdings, callback: Callable[[SlotChange], object], keys: Optional[Iterable[str]]) -> None:
        self._callback, self._keys = callback, None if keys is None else texts_of(keys)
        super().__init__(holdings, "cancel")
        self._known: dict[int, tuple[int, int]] = {}

    def set_keys(self, keys: Iterable[str]) -> None:
        """Replaces the keys that are counted."""
        self._keys = texts_of(keys)

    async def _settles(self) -> None:
        self._holdings.listen(self._changed.set)
        try:
            while True:
                self._changed.clear()
                is_over = self._holdings.over is not None
                await self._report_change()
                if is_over:
                    return
                await self._changed.wait()
        finally:
            self._holdings.unlisten(self._changed.set)

    async def _report_change(self) -> None:
        tenure, grants = self._holdings.tenure, self._holdings.open_grants()
        held = {slot: (tenure, grant.number) for slot, grant in grants.items() if isinstance(slot, int)}
        gained = sorted(slot for slot, by in held.items() if self._known.get(slot) != by)
        lost = sorted(slot for slot, by in self._known.items() if held.get(slot) != by)
        self._known = held
        if not gained and not lost:
            return
        owned = None if self._keys is None else sum(self._holdings.slot(key) in held for key in self._keys)
        try:
            answer: Any = self._callback(SlotChange(gained, lost, len(held), owned))
            if asyncio.iscoroutine(answer) or isinstance(answer, asyncio.Future):
                await answer
        except Exception:
            _log.exception("a callback of on_rebalance failed; it is called again at the next change")
