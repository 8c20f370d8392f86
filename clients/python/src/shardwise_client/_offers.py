"""The names that this worker offers to hold: singletons, sets of daemons, timers."""

import asyncio
import logging
from typing import Any, Callable, NamedTuple, Optional

from ._errors import ShardwiseError

_log = logging.getLogger("shardwise_client")


class Offer(NamedTuple):
    """One of `singletons`, `daemons` and `timers`, and its form in a request."""

    kind: str
    name: str
    every_ms: int = 0
    phase_ms: int = 0
    # How many daemons the set has, unless the group has a number already.
    daemons: Optional[int] = None

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


def names_of(offers: list[Offer]) -> dict[str, Any]:
    """The offers as the sidecar takes them."""
    names: dict[str, Any] = {kind: [offer.as_json() for offer in sorted(offers) if offer.kind == kind] for kind in ("singletons", "daemons", "timers")}
    counts = {offer.name: offer.daemons for offer in sorted(offers) if offer.daemons is not None}
    return {**names, "counts": counts} if counts else names


class Offers:
    """All offers of one worker. A session sends them whenever they differ from what the sidecar knows.

    A request replaces all earlier ones, and the sidecar accepts or refuses it as a whole. So after a refusal offers are added one by one, and only
    those that are refused alone are withdrawn.
    """

    def __init__(self) -> None:
        # Called for each offer that the sidecar has refused.
        self.on_refused: Callable[[Offer, ShardwiseError], None] = lambda _offer, _error: None
        # In the order in which they were made.
        self._offers: dict[Offer, None] = {}
        # What the sidecar has accepted last under this lease, and what it knows; `None` until a request is answered.
        self._accepted: frozenset[Offer] = frozenset()
        self._known: Optional[frozenset[Offer]] = frozenset()
        self._is_one_by_one = False
        self._changed: list[asyncio.Future[None]] = []

    def add(self, offer: Offer) -> None:
        if any((each.kind, each.name) == (offer.kind, offer.name) for each in self._offers):
            raise ShardwiseError(f"{offer.prefix} is offered already: stop its run first")
        self._offers[offer] = None
        self._wake()

    def remove(self, offer: Offer) -> None:
        if offer in self._offers:
            del self._offers[offer]
            self._wake()

    def restart(self) -> None:
        """The lease is over; under the next one the sidecar knows of no offers."""
        self._accepted = self._known = frozenset()
        self._is_one_by_one = False
        self._wake()

    def request(self) -> Optional[list[Offer]]:
        """The offers to send now; `None` if the sidecar knows all. Until the answer it is uncertain what it knows."""
        if self._known == frozenset(self._offers):
            return None
        self._known = None
        new = self._new(list(self._offers))
        self._is_one_by_one = self._is_one_by_one and len(new) > 1
        return [*(offer for offer in self._offers if offer in self._accepted), *(new[:1] if self._is_one_by_one else new)]

    def accepted(self, request: list[Offer]) -> None:
        """The sidecar has accepted this request."""
        self._accepted = self._known = frozenset(request)
        self._wake()

    def refused(self, request: list[Offer], error: ShardwiseError) -> None:
        """The sidecar has refused this request, and will refuse it again."""
        new = self._new(request)
        if len(new) > 1:
            self._is_one_by_one = True
        elif not new:
            # There is nothing to withdraw, and no reason to ask for ever.
            _log.error("the sidecar refuses names that it has accepted before: %s", error)
            self._known = frozenset(request)
        elif new[0] in self._offers:
            del self._offers[new[0]]
            self.on_refused(new[0], error)
        self._wake()

    async def changed(self) -> None:
        """Waits until something has changed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.append(future)
        await future

    async def withdrawn(self, offer: Offer) -> None:
        """Waits until the sidecar does not know this offer any more."""
        while self._known is None or offer in self._known:
            await self.changed()

    def _new(self, offers: list[Offer]) -> list[Offer]:
        return [offer for offer in offers if offer not in self._accepted]

    def _wake(self) -> None:
        waiting, self._changed = self._changed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
