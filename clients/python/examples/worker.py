"""A worker that does what its sidecar says is its own: `python worker.py POLICY URL KEYS_FILE`.

It follows the rebalances. With each it asks anew what is its own, begins what is new and stops what has gone; and before each piece of work it asks
whether the key is still its own. While the sidecar cannot be heard it does nothing. Replace `work` by yours. It prints what it does as JSON lines.
"""

import asyncio
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path

from shardwise_client import Client, ShardwiseError

PIECE_SECONDS = 0.2


def tell(did: str, key: str) -> None:
    print(json.dumps({"did": did, "key": key}), flush=True)


async def work(client: Client, key: str) -> None:
    """Works on one key for as long as it is ours: piece by piece, and never a piece without asking."""
    tell("began", key)
    try:
        while True:
            # A sidecar that does not answer means no.
            with suppress(ShardwiseError):
                if (await client.owner(key))["mine"]:
                    tell("worked", key)
            await asyncio.sleep(PIECE_SECONDS)
    finally:
        tell("ended", key)


async def end(tasks: dict[str, "asyncio.Task[None]"], keys: set[str]) -> None:
    """Ends the work on these keys and waits for it."""
    ending = [tasks.pop(key) for key in keys]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def ask(client: Client, tasks: dict[str, "asyncio.Task[None]"], keys: list[str]) -> None:
    """Has those of the keys worked on that are ours now, and no others."""
    while True:
        try:
            mine = set((await client.owned(keys)).keys)
            break
        except ShardwiseError as error:
            if not error.passes:
                raise
            await end(tasks, set(tasks))
            await asyncio.sleep(PIECE_SECONDS)
    await end(tasks, set(tasks) - mine)
    for key in mine - set(tasks):
        tasks[key] = asyncio.create_task(work(client, key))


async def follow(client: Client, keys: list[str]) -> None:
    tasks: dict[str, asyncio.Task[None]] = {}
    try:
        async for event in client.rebalances():
            if event.kind == "lost":
                await end(tasks, set(tasks))
            else:
                await ask(client, tasks, keys)
    finally:
        await end(tasks, set(tasks))


async def main() -> None:
    policy, url, file = sys.argv[1:4]
    # A key may have any sign that ends lines elsewhere.
    keys = [key for key in Path(file).read_text(encoding="utf-8").split("\n") if key]
    async with Client(policy, url) as client:
        following = asyncio.create_task(follow(client, keys))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, following.cancel)
        with suppress(asyncio.CancelledError):
            await following


if __name__ == "__main__":
    asyncio.run(main())
