"""Sidecars that run, for tests of exclusive ownership. SHARDWISE_BIN is the program; without it the one that `cargo build` makes is taken.

Each test has its own place: settings, tokens, and the file of the `local` backend.
"""

import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Optional

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(os.environ.get("SHARDWISE_BIN") or ROOT / "target" / "debug" / "shardwise")
PATIENCE = 60.0
TOKEN = "correct-horse-battery-staple"
SLOTS = 64
SETTINGS = f"""[default.resilience.sharding.discovery]
ttl = "2s"
[default.resilience.sharding.policies.workers]
group_name = "workers"
ownership = "exclusive"
slots = {SLOTS}
"""


def free_port() -> int:
    """A port below those that the system gives out by itself, so that no other program takes it while no server is there."""
    for port in random.sample(range(10_000, 12_000), 100):
        with socket.socket() as bound, suppress(OSError):
            bound.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class Program:
    """A process whose output is JSON lines; other lines are kept as texts."""

    def __init__(self, command: list[str], folder: Path, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDWISE", "OTEL_")) and name != "RUST_LOG"}
        self.log = folder / f"{threading.get_ident()}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, env={**kept, "TMPDIR": str(folder), **environment})
        self.lines: list[dict[str, Any]] = []
        self._is_over = False
        self._read: queue.SimpleQueue[Optional[bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._reads, daemon=True).start()

    def _reads(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            for line in out:
                self._read.put(line)
        self._read.put(None)

    def prints(self, what: str, condition: Callable[[list[dict[str, Any]]], object]) -> None:
        """Waits until its output so far meets the condition."""
        until = time.monotonic() + PATIENCE
        while True:
            self.catch_up()
            if condition(self.lines):
                return
            if time.monotonic() > until or self._is_over:
                raise AssertionError(f"waited in vain: {what}; {self.lines[-5:]}\n{self.log.read_text()[-2000:]}")
            time.sleep(0.005)

    def catch_up(self) -> None:
        while not self._read.empty():
            line = self._read.get()
            self._is_over = line is None
            if line is not None:
                self.lines.append(json.loads(line) if line.startswith(b"{") else {"text": line.decode()})

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def ends(self) -> int:
        """Ends it as a service manager does."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


class Sidecar(Program):
    """A member of the policy `workers`."""

    def __init__(self, place: Path, name: str, *arguments: str, port: int = 0) -> None:
        super().__init__([str(BIN), "serve", "--policy", "workers", "--id", name, "--listen", f"127.0.0.1:{port}", *arguments], place)
        self.prints("it listens", lambda lines: any("listening" in line for line in lines))
        self.url = "http://" + next(line["listening"] for line in self.lines if "listening" in line)


@unittest.skipUnless(BIN.is_file() or "SHARDWISE_BIN" in os.environ, f"{BIN} is not built")
class WithSidecars(unittest.TestCase):
    """Tests that start sidecars in a place that is removed afterwards."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="shardwise-python-")
        self.addCleanup(folder.cleanup)
        self.place = Path(folder.name)
        self._settles("settings.toml", SETTINGS)
        self._settles("token", TOKEN + "\n")
        self._settles("peers", TOKEN[::-1] + "\n")
        self._programs: list[Program] = []
        self.addCleanup(self._end)

    def _settles(self, name: str, text: str) -> None:
        (self.place / name).write_text(text, encoding="utf-8")

    def _end(self) -> None:
        for program in self._programs:
            program.kill()

    def sidecar(self, name: str, *arguments: str, port: int = 0) -> Sidecar:
        sidecar = Sidecar(self.place, name, *arguments, port=port)
        self._programs.append(sidecar)
        return sidecar

    def program(self, *arguments: str, **environment: str) -> Program:
        """A Python program that uses the client."""
        path = os.pathsep.join(filter(None, [str(ROOT / "clients/python/src"), os.environ.get("PYTHONPATH", "")]))
        program = Program([sys.executable, *arguments], self.place, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **environment)
        self._programs.append(program)
        return program
