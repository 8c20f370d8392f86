"""A worker that does what its sidecar says is its own: `python worker.py POLICY URL KEYS_FILE`.

It follows the rebalances. With each it asks anew what is its own, begins what is new and stops what has gone; and before each piece of work it asks
whether the key is still its own. While the sidecar cannot be heard it does nothing. Work that fails is told, and begun again with the next event, as
is work that has come to its end. Replace `work` by yours. It prints what it does as JSON lines.
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


def tell(did: str, **more: str) -> None:
    print(json.dumps({"did": did, **more}), flush=True)


async def work(client: Client, key: str) -> None:
    """Works on one key for as long as it is ours: piece by piece, and never a piece without asking."""
    while True:
        # A sidecar that does not answer means no.
        with suppress(ShardwiseError):
            if (await client.owner(key))["mine"]:
                tell("worked", key=key)
        await asyncio.sleep(PIECE_SECONDS)


class Tasks:
    """The keys that are worked on. A task that is over is dropped, and told if it failed."""

    def __init__(self, client: Client, work: Work) -> None:
        self._client, self._work = client, work
        self._running: dict[str, asyncio.Task[None]] = {}

    async def only(self, keys: set[str]) -> None:
        """Ends the work on all other keys and waits for it; then begins what is not begun yet."""
        ending = [task for key, task in self._running.items() if key not in keys]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for key in keys - set(self._running):
            tell("began", key=key)
            self._running[key] = asyncio.create_task(self._work(self._client, key))
            self._running[key].add_done_callback(partial(self._over, key))

    def _over(self, key: str, task: "asyncio.Task[None]") -> None:
        del self._running[key]
        if not task.cancelled() and (error := task.exception()):
            tell("failed", key=key, why=repr(error))
        tell("ended", key=key)


async def ask(client: Client, tasks: Tasks, keys: list[str]) -> None:
    """Has those of the keys worked on that are ours now, and no others."""
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
                tell("lost", why=str(event.error))
                await tasks.only(set())
            else:
                await ask(client, tasks, keys)
    finally:
        await tasks.only(set())


async def main() -> None:
    policy, url, file = sys.argv[1:4]
    # A key may have any sign that ends lines elsewhere.
    keys = [key for key in Path(file).read_text(encoding="utf-8").split("\n") if key]
    async with Client(policy, url) as client:
        following = asyncio.create_task(follow(client, keys, work))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, following.cancel)
        with suppress(asyncio.CancelledError):
            await following


if __name__ == "__main__":
    asyncio.run(main())
