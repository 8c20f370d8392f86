"""What this worker holds, and the work that is in flight there. No I/O: a session feeds it, and reports what is finished."""

from typing import Any, Callable, Optional

from ._clock import Clock, now
from ._errors import NotHeld, ShardwiseError
from ._hold import E, Hold
from ._table import Changes, Grant, GrantTable, Resource

_LAPSED = "the sidecar has not renewed the lease in time"


class Holdings:
    """The table of the live lease and the work under it. Everything but `owned` is called in the event loop only."""

    def __init__(self, clock: Clock = now) -> None:
        self.clock = clock
        # Without a lease there is none.
        self.table: Optional[GrantTable] = None
        # Finished grants that the sidecar does not know yet, in order.
        self.unreported: list[int] = []
        # Called when there is another one.
        self.on_unreported: Callable[[], None] = _nothing
        # It rises whenever everything is lost at once.
        self.tenure = 0
        # Why nothing will be held any more.
        self.over: Optional[ShardwiseError] = None
        self._is_open, self._is_closing = False, False
        self._in_flight: dict[Resource, set[Hold[Any]]] = {}
        # Grants that are lost, in which work has not ended yet.
        self._ending: set[Grant] = set()
        self._listeners: list[Callable[[], None]] = []

    @property
    def state(self) -> str:
        """`active`, or why nothing is held: `expired` (no renewal was answered in time), `opening` (there is no lease yet, or none since the last
        one has ended), or `ended` (for good)."""
        if self.over is not None:
            return "ended"
        if self.table is None:
            return "opening"
        return "active" if self.table.may_begin(self.clock()) or self.table.is_idle(self.clock()) else "expired"

    def begin(self, ttl: float) -> GrantTable:
        """A lease has been opened."""
        self.table = GrantTable(ttl)
        self._is_open = False
        return self.table

    def end(self, why: str, over: Optional[ShardwiseError] = None) -> None:
        """The lease has ended; `over`: there will be no other."""
        self.table, self.over = None, over or self.over
        self.unreported.clear()
        self._ending.clear()
        self._lose_all(f"the lease has ended: {why}" if over is None else str(over))

    def close(self) -> None:
        """The lease is about to be ended: nothing begins any more."""
        self._is_closing = True
        self._notify()

    def refuse(self, over: ShardwiseError) -> None:
        """All work is cancelled."""
        self.over = over
        self._lose_all(str(over))

    def look(self) -> None:
        """Compares the deadline with the clock; call it when one has changed."""
        is_open = self.table is not None and self.table.may_begin(self.clock())
        if self._is_open and not is_open:
            self._lose_all(_LAPSED)
        elif is_open and not self._is_open:
            self._is_open = True
            self._notify()

    def changed(self, changes: Changes) -> None:
        """The table has changed."""
        for grant in changes.lost:
            holds = [hold for hold in self._of(grant.resource) if hold.grant == grant]
            for hold in holds:
                hold.lose("another member has it, or the sidecar gave it up")
            # The sidecar waits for the end of this work too.
            if holds:
                self._ending.add(grant)
            else:
                self._report(grant.number)
        for grant in changes.finish:
            for hold in self._of(grant.resource):
                hold.ask_to_finish()
            self._finish_if_idle(grant.resource)
        self.look()
        if any(changes):
            self._notify()

    def owned(self, keys: list[str]) -> list[str]:
        """Those of the keys that this worker owns, in their order; any thread may ask."""
        self.raise_if_over()
        table = self.table
        if table is None or self._is_closing or not table.may_begin(self.clock()):
            return []
        slots, open_slots = table.keys, table.open_slots
        mine = slots.select(keys, open_slots) if slots.slots == len(open_slots) else []
        # All were owned when the answer was complete.
        return mine if table.may_begin(self.clock()) else []

    def raise_if_over(self) -> None:
        if self.over is not None:
            raise self.over.with_traceback(None)

    def slot(self, key: str) -> int:
        """The slot of a key; -1 while the number of slots is unknown."""
        if not isinstance(key, str):
            raise TypeError(f"a key is a text, not {type(key).__name__}")
        return -1 if self.table is None else self.table.keys[key]

    def open_grants(self) -> dict[Resource, Grant]:
        """Slots and names in which work may begin now."""
        table = self.table
        if table is None or self._is_closing or self.over is not None or not table.may_begin(self.clock()):
            return {}
        return {resource: grant for resource, grant in table.by_resource.items() if grant.number not in table.finishing}

    def all_grants(self) -> dict[Resource, Grant]:
        """All grants of the table, also those that are to finish."""
        return {} if self.table is None else self.table.by_resource

    def is_busy(self, resource: Resource) -> bool:
        """Whether work that has lost it is still ending there: nothing else may begin meanwhile."""
        return any(hold.lost.is_set() for hold in self._in_flight.get(resource, ()))

    def enter(self, resource: Resource, key: str, event: Callable[[], E], cancel: Callable[[], None],
              on_finish: Optional[Callable[[], None]] = None) -> Hold[E]:  # fmt: skip
        """Begins work. `cancel` is called when it is lost, `on_finish` when it must be handed over; neither before this returns."""
        self.raise_if_over()
        what = f"{key!r}" if isinstance(resource, str) else f"{key!r} (slot {resource})"
        table = self.table
        if table is None or not table.may_begin(self.clock()):
            raise NotHeld(f"{what} is not held: the lease is {self.state}")
        if self._is_closing:
            raise NotHeld(f"{what} is not entered any more: the lease is being closed")
        grant = table.grant(resource)
        if grant is None:
            raise NotHeld(f"{what} is not held by this worker")
        if grant.number in table.finishing:
            raise NotHeld(f"{what} is being handed over: nothing new begins there")
        if self.is_busy(resource):
            raise NotHeld(f"{what} is held again, but work that has lost it has not ended yet")
        hold = Hold(grant, key, table, self.clock, event, cancel, on_finish)
        self._in_flight.setdefault(resource, set()).add(hold)
        return hold

    def leave(self, hold: Hold[Any]) -> None:
        """Work has ended."""
        holds = self._in_flight.get(hold.grant.resource, set())
        holds.discard(hold)
        if not holds:
            self._in_flight.pop(hold.grant.resource, None)
            self._finish_if_idle(hold.grant.resource)
        if hold.grant in self._ending and all(other.grant != hold.grant for other in holds):
            self._ending.remove(hold.grant)
            self._report(hold.grant.number)
        if hold.lost.is_set():
            # Others may begin there now.
            self._notify()

    def release(self, grant: Grant) -> None:
        """This grant of a name is not needed any more: it is finished once nothing works there."""
        table = self.table
        if table is not None and table.grant(grant.resource) == grant:
            table.finishing.add(grant.number)
            for hold in self._of(grant.resource):
                hold.ask_to_finish()
            self._finish_if_idle(grant.resource)

    def in_flight(self) -> int:
        """How many pieces of work are in flight."""
        return sum(map(len, self._in_flight.values()))

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of what is held, and when lost work has ended."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)

    def _of(self, resource: Resource) -> list[Hold[Any]]:
        return list(self._in_flight.get(resource, ()))

    def _finish_if_idle(self, resource: Resource) -> None:
        table = self.table
        grant = None if table is None else table.grant(resource)
        if table is not None and grant is not None and grant.number in table.finishing and resource not in self._in_flight:
            # From here on nothing begins there, whenever the sidecar hears it.
            table.finished([grant])
            self._report(grant.number)

    def _report(self, number: int) -> None:
        """The sidecar has to learn that this grant is finished."""
        self.unreported.append(number)
        self.on_unreported()

    def _lose_all(self, why: str) -> None:
        self._is_open = False
        self.tenure += 1
        for hold in [hold for holds in self._in_flight.values() for hold in holds]:
            hold.lose(why)
        self._notify()

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()


def _nothing() -> None:
    pass
