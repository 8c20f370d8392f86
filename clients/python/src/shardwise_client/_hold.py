"""Work that was entered: what it holds, and how it learns that it has to end."""

import os
from typing import Callable, Generic, NamedTuple, Optional, Protocol, TypeVar

from ._clock import Clock
from ._errors import Lost
from ._table import Grant, GrantTable


class Signal(Protocol):
    """An event of asyncio or of a thread."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


E = TypeVar("E", bound=Signal)


class Fence(NamedTuple):
    """For your own writes: the database refuses a lower epoch than it has seen for this slot (docs/reference/fencing.md)."""

    slot: int
    epoch: int


class Hold(Generic[E]):
    """What was entered, for as long as the work takes.

    `finish` is set when the slot or name must be handed over: end what you do, and start nothing new. `lost` is set when it is not held any more:
    stop now. `key` is the key that was entered, or the name.
    """

    def __init__(self, grant: Grant, key: str, table: GrantTable, clock: Clock, event: Callable[[], E], cancel: Callable[[], None],
                 on_finish: Optional[Callable[[], None]] = None) -> None:  # fmt: skip
        self.key, self.grant = key, grant
        self.finish, self.lost = event(), event()
        self.why: Optional[str] = None
        self._pid = os.getpid()
        self._table, self._clock, self._cancel, self._on_finish = table, clock, cancel, on_finish

    @property
    def epoch(self) -> int:
        """The epoch: higher than that of every earlier holder."""
        return self.grant.epoch

    @property
    def fence(self) -> Fence:
        """The slot and the epoch, for your own writes. A name has no slot; use `resource` and `epoch` there."""
        if isinstance(self.grant.resource, str):
            raise TypeError(f"{self.grant.resource} is a name and has no slot: write `resource` and `epoch` into your fence")
        return Fence(self.grant.resource, self.grant.epoch)

    @property
    def resource(self) -> str:
        """What the row of the fence is called: `slot/17`, or `name/singleton/leader`."""
        return f"slot/{self.grant.resource}" if isinstance(self.grant.resource, int) else f"name/{self.grant.resource}"

    @property
    def deadline(self) -> float:
        """Until when it is held unless the lease is renewed, in seconds on the clock that counts while the machine sleeps (`time.CLOCK_BOOTTIME`
        where the system has it). It has passed once this is lost."""
        return float("-inf") if self.lost.is_set() else self._table.deadline

    @property
    def is_held(self) -> bool:
        """Whether it has been held until now. It reads the clock, so it is false in a process that was paused beyond its lease, even before
        anything else has noticed. In a forked process it is false, as that process does not learn of a loss."""
        return os.getpid() == self._pid and not self.lost.is_set() and self._table.is_live(self._clock())

    def check(self) -> None:
        """Raises `Lost` unless it is held; for work that cannot be cancelled."""
        if not self.is_held:
            raise self.lost_error()

    def lost_error(self) -> Lost:
        """The error that says that this is lost, and why."""
        why = self.why if os.getpid() == self._pid else "this process was forked, and only the one that entered it holds it"
        return Lost(self.key if isinstance(self.grant.resource, str) else f"{self.key!r} (slot {self.grant.resource})", why)

    def ask_to_finish(self) -> None:
        """Internal: it must be handed over."""
        if not self.finish.is_set():
            self.finish.set()
            if self._on_finish is not None:
                self._on_finish()

    def lose(self, why: str) -> None:
        """Internal: it is not held any more."""
        if not self.lost.is_set():
            self.why = why
            # What waits for `finish` has to end as well.
            self.finish.set()
            self.lost.set()
            self._cancel()
