"""The first examples of the pages, as written, against a sidecar in memory."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import shardwise_client
from shardwise_client import Fence
from shardwise_client._lease import Lease
from tests.fake_sidecar import FakeSidecar, slot
from tests.test_lease import until

ROOT = Path(__file__).resolve().parents[3]
KEYS = [f"tenant-{n}" for n in range(20)]


def example(page: str, heading: str) -> str:
    """The first Python example below a heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text[text.index(f"\n{heading}\n") :], re.DOTALL)
    assert found is not None
    return found[1]


class Examples(unittest.IsolatedAsyncioTestCase):
    async def runs(self, page: str, heading: str, times: int) -> list[str]:
        """Runs the example until each key was written so many times, under its fence; the tokens of its clients."""
        sidecar, written, tokens = FakeSidecar(), list[tuple[str, Fence]](), list[str]()
        sidecar.grant_all(epoch=3)

        class OfFake:
            """A client of that sidecar."""

            def __init__(self, _policy: str = "", *, token: str = "") -> None:
                tokens.append(token)

            async def __aenter__(self) -> "OfFake":
                return self

            async def __aexit__(self, *_: object) -> None:
                pass

            def lease(self, ttl: float) -> Lease:
                return sidecar.client(ttl)

        async def write(key: str, fence: Fence) -> None:
            written.append((key, fence))
            await asyncio.sleep(0.01)

        async def work(key: str, entered: shardwise_client.Entered) -> None:
            await write(key, entered.fence)

        space: dict[str, Any] = {"client": OfFake(), "write": write, "work": work, "tenants": KEYS, "keys": KEYS}
        with mock.patch.object(shardwise_client, "Client", OfFake):
            exec("async def example():\n" + textwrap.indent(example(page, heading), "    "), space)
            begun: Callable[[], Any] = space["example"]
            running = asyncio.ensure_future(begun())
            try:
                await until("all is written", lambda: all(written.count((key, Fence(slot(key), 3))) >= times for key in KEYS) or running.done())
                self.assertFalse(running.done(), running.done() and running.exception())
            finally:
                running.cancel()
                await asyncio.wait({running})
        return tokens

    async def test_the_how_to(self) -> None:
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "worker.token").write_text("secret-of-the-test\n")
            os.chdir(folder)
            try:
                tokens = await self.runs("docs/howto/other-languages.md", "## Python", 1)
            finally:
                os.chdir(before)
        self.assertEqual(tokens[-1], "secret-of-the-test")

    def test_without_arguments_an_example_prints_its_usage(self) -> None:
        wrong: list[list[str]] = [[], ["run", "workers"], ["strange", "workers", "http://127.0.0.1:1", "8000", "more"]]
        for name in ("worker.py", "alert_monitor.py"):
            for arguments in wrong:
                command = [sys.executable, str(ROOT / "clients/python/examples" / name), *arguments]
                ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
                self.assertTrue(ran.returncode == 1 and ran.stderr.startswith(f"usage: python {name} ") and ran.stderr.count("\n") == 1, ran)

    async def test_the_readme(self) -> None:
        await self.runs("clients/python/README.md", "## Exclusive ownership", 2)
