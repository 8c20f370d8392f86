"""An event loop in a background thread, for programs without one."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Callable, Optional, TypeVar

from ._errors import ShardwiseError
from ._hold import Hold

T = TypeVar("T")
# How long the thread may take to end, in seconds.
_ENDS_WITHIN = 5.0


class Loop:
    """The loop. Any other thread may call."""

    def __init__(self) -> None:
        self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
        self._thread = threading.Thread(target=self._run, name="shardwise-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._ended())
            self._loop.close()

    async def _ended(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ENDS_WITHIN / 2)
        await self._loop.shutdown_asyncgens()

    @property
    def is_running(self) -> bool:
        """Whether it can be called; not in another process after a fork."""
        return os.getpid() == self._pid and self._thread.is_alive()

    def raise_if_forked(self) -> None:
        """Raises in a process that was forked after the client was made: it has no such thread, and what it has read is a copy that grows old."""
        if os.getpid() != self._pid:
            raise ShardwiseError("this process was forked after the client was made, and threads do not survive a fork: make a client after it")

    def call(self, coroutine: "Coroutine[Any, Any, T]") -> T:
        """Runs it in the loop and waits for its result. An interrupt of the waiting thread cancels it."""
        try:
            self.raise_if_forked()
            if threading.current_thread() is self._thread:
                raise ShardwiseError("a callback in the client's thread cannot wait for the client: use another thread")
            if not self._thread.is_alive():
                raise ShardwiseError("this client is closed")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def run(self, function: Callable[[], T]) -> T:
        """Calls it in the loop and waits for its result."""

        async def called() -> T:
            return function()

        return self.call(called())

    def close(self) -> None:
        """Ends the thread."""
        if self.is_running:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_ENDS_WITHIN)


async def in_thread(hold: Hold[threading.Event], work: Callable[[], object]) -> None:
    """Runs `work` in a separate thread and waits until it has ended. A thread cannot be cancelled: it is asked to finish instead."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end(error: Optional[BaseException]) -> None:
        if not ended.done():
            ended.set_result(None) if error is None else ended.set_exception(error)

    def run() -> None:
        error: Optional[BaseException] = None
        try:
            work()
        except BaseException as raised:
            # StopIteration cannot be the result of a future.
            error = RuntimeError(repr(raised)) if isinstance(raised, StopIteration) or not isinstance(raised, Exception) else raised
        # Without a loop the program ends.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(end, error)

    threading.Thread(target=run, name=f"shardwise {hold.key:.40}", daemon=True).start()
    is_cancelled = False
    while not ended.done():
        try:
            await asyncio.wait({ended})
        except asyncio.CancelledError:
            is_cancelled = True
            hold.ask_to_finish()
    if is_cancelled:
        ended.exception()
        raise asyncio.CancelledError
    ended.result()
