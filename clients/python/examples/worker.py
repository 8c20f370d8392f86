"""A worker that works on the keys that its sidecar says it owns: `python worker.py POLICY URL KEYS_FILE`.

It follows the rebalances. After each it queries its keys again, starts the new ones and stops those that it has lost. Before each piece of work it
asks whether it still owns the key. While the sidecar does not answer it does nothing. Work that failed or ended is started again after the next
event; failures are printed. Replace `work` by yours. It prints what it does as JSON lines.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Callable

from shardwise_client import Client, ShardwiseError

PIECE_SECONDS = 0.2
Work = Callable[[Client, str], Coroutine[Any, Any, None]]


def report(did: str, **more: str) -> None:
    print(json.dumps({"did": did, **more}), flush=True)


async def work(client: Client, key: str) -> None:
    """Works on one key while this worker owns it, and asks before each piece of work."""
    while True:
        # A sidecar that does not answer means no.
        with suppress(ShardwiseError):
            if (await client.owner(key))["mine"]:
                report("worked", key=key)
        await asyncio.sleep(PIECE_SECONDS)


class Tasks:
    """The running task of each key. A task that has ended is removed; a failure is printed."""

    def __init__(self, client: Client, work: Work) -> None:
        self._client, self._work = client, work
        self._running: dict[str, asyncio.Task[None]] = {}

    async def only(self, keys: set[str]) -> None:
        """Stops the work on all other keys and waits until it has ended; then starts what is not running."""
        ending = [task for key, task in self._running.items() if key not in keys]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for key in keys - set(self._running):
            report("began", key=key)
            self._running[key] = asyncio.create_task(self._work(self._client, key))
            self._running[key].add_done_callback(partial(self._over, key))

    def _over(self, key: str, task: "asyncio.Task[None]") -> None:
        del self._running[key]
        if not task.cancelled() and (error := task.exception()):
            report("failed", key=key, why=repr(error))
        report("ended", key=key)


async def ask(client: Client, tasks: Tasks, keys: list[str]) -> None:
    """Runs tasks for the keys that this worker owns now, and for no others."""
    while True:
        try:
            await tasks.only(set((await client.owned(keys)).keys))
            return
        except ShardwiseError as error:
            if not error.passes:
                raise
            await tasks.only(set())
            await asyncio.sleep(PIECE_SECONDS)


async def follow(client: Client, keys: list[str], work: Work) -> None:
    tasks = Tasks(client, work)
    try:
        async for event in client.rebalances():
            if event.kind == "lost":
                report("lost", why=str(event.error))
                await tasks.only(set())
            else:
                await ask(client, tasks, keys)
    finally:
        await tasks.only(set())


async def main() -> None:
    if len(sys.argv) != 4:
        sys.exit("usage: python worker.py POLICY URL KEYS_FILE")
    policy, url, file = sys.argv[1:]
    # Only a line feed ends a line: a key may contain other line separators.
    keys = [key for key in Path(file).read_text(encoding="utf-8").split("\n") if key]
    async with Client(policy, url) as client:
        following = asyncio.create_task(follow(client, keys, work))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, following.cancel)
        with suppress(asyncio.CancelledError):
            await following


if __name__ == "__main__":
    asyncio.run(main())
