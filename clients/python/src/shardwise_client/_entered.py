"""`async with lease.enter(key)`: work that is cancelled when its key is lost."""

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Callable, Generic, Optional

from ._hold import E, Hold
from ._holdings import Holdings
from ._table import Resource

# What `async with lease.enter(key) as entered` gives.
Entered = Hold[asyncio.Event]


class Entering(Generic[E]):
    """Holds what was entered during the block. If it is lost, the task that entered is cancelled, and the block ends with `Lost`. Leaving the block
    without an error means that it was held to the end."""

    def __init__(self, holdings: Holdings, resource: Callable[[], Resource], key: str, event: Callable[[], E], *,
                 before: Optional[Callable[[], Awaitable[Any]]] = None, cancel_to_finish: bool = False) -> None:  # fmt: skip
        self._holdings, self._resource, self._key, self._event = holdings, resource, key, event
        self._before, self._cancel_to_finish = before, cancel_to_finish
        self._hold: Optional[Hold[E]] = None
        self._task: Optional[asyncio.Task[Any]] = None
        # How many cancellations the task had before, and whether one of them is ours.
        self._earlier, self._is_cancelled = 0, False

    async def __aenter__(self) -> Hold[E]:
        if self._hold is not None:
            raise RuntimeError("this was entered already: call enter() again")
        if self._before is not None:
            await self._before()
        self._task, loop = asyncio.current_task(), asyncio.get_running_loop()

        # Not at once: a task cannot be cancelled while it runs.
        def stop() -> None:
            loop.call_soon(self._stop)

        def ask() -> None:
            loop.call_soon(self._ask)

        self._hold = self._holdings.enter(self._resource(), self._key, self._event, stop, ask if self._cancel_to_finish else None)
        if self._task is not None and hasattr(self._task, "cancelling"):
            self._earlier = self._task.cancelling()
        return self._hold

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], _trace: Optional[TracebackType]) -> None:
        hold, task, self._task = self._hold, self._task, None
        if hold is None or task is None:
            return
        is_held = hold.is_held
        self._holdings.leave(hold)
        is_ours = self._is_cancelled
        # Before Python 3.11 a cancellation by others at the same time looks the same.
        if self._is_cancelled and hasattr(task, "uncancel"):
            is_ours = task.uncancel() <= self._earlier
        is_cancellation = kind is not None and issubclass(kind, asyncio.CancelledError)
        if kind is None and not is_held or is_cancellation and is_ours:
            raise hold.lost_error() from error

    def _stop(self) -> None:
        """It is lost."""
        if self._task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()

    def _ask(self) -> None:
        """It must be handed over: the task is cancelled as if by its owner."""
        if self._task is not None:
            self._task.cancel()
