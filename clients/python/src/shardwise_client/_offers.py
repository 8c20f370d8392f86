"""The names that this worker offers to hold: singletons, sets of daemons, timers."""

import asyncio
from typing import Any, NamedTuple, Optional

from ._errors import ShardwiseError


class Offer(NamedTuple):
    """One of `singletons`, `daemons` and `timers`, and its form in a request."""

    kind: str
    name: str
    every_ms: int = 0
    phase_ms: int = 0

    def as_json(self) -> object:
        return {"name": self.name, "every_ms": self.every_ms, "phase_ms": self.phase_ms} if self.kind == "timers" else self.name

    @property
    def prefix(self) -> str:
        """How the names of its grants begin; after those of daemons comes a number."""
        kind = self.kind[:-1]
        return f"{kind}/{self.name}" if self.kind != "daemons" else f"{kind}/{self.name}/" if self.name else f"{kind}/"

    def number_in(self, name: str) -> Optional[int]:
        """The number of a daemon of this set in the name of a grant, 0 for another kind; `None` if the grant is not of this offer."""
        if self.kind != "daemons":
            return 0 if name == self.prefix else None
        rest = name[len(self.prefix) :] if name.startswith(self.prefix) else ""
        return int(rest) if rest.isascii() and rest.isdigit() else None


class Offers:
    """All offers of one worker. A session sends them whenever their version has changed."""

    def __init__(self) -> None:
        # 0: there has never been an offer, and nothing is sent.
        self.version = 0
        self._answered = 0
        self._offers: set[Offer] = set()
        self._changed: list[asyncio.Future[None]] = []

    def add(self, offer: Offer) -> None:
        if any((each.kind, each.name) == (offer.kind, offer.name) for each in self._offers):
            raise ShardwiseError(f"{offer.prefix} is offered already: stop its run first")
        self._offers.add(offer)
        self._change()

    def remove(self, offer: Offer) -> None:
        if offer in self._offers:
            self._offers.remove(offer)
            self._change()

    def names(self) -> dict[str, Any]:
        """All offers, as the sidecar takes them."""
        return {kind: [offer.as_json() for offer in sorted(self._offers) if offer.kind == kind] for kind in ("singletons", "daemons", "timers")}

    async def next(self, version: int) -> None:
        """Waits until there is another version than that."""
        while self.version == version:
            await self._wait()

    async def settled(self) -> None:
        """Waits until the sidecar has answered the present version."""
        version = self.version
        while self._answered < version:
            await self._wait()

    def accepted(self, version: int) -> None:
        """The sidecar has answered that version."""
        self._answered = max(self._answered, version)
        self._wake()

    def _change(self) -> None:
        self.version += 1
        self._wake()

    async def _wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.append(future)
        await future

    def _wake(self) -> None:
        waiting, self._changed = self._changed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
