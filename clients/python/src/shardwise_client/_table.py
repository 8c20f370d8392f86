"""The grants of one lease and their deadline: what this worker may do now. Pure: no I/O, and time is an argument.

Every moment is in seconds on the clock of `_clock`. A deadline counts from before the question was sent, so that a late answer is a shorter grant.
"""

from typing import Any, NamedTuple, Optional, Union

from ._errors import ShardwiseError, Unavailable
from ._slots import KeySlots

# What is held: the number of a slot, or a name such as `singleton/leader`.
Resource = Union[int, str]
# Renewals that wait for the stream; there is one every third of a ttl.
_PENDING_MAX = 32
_SLOTS_MAX = 65_536
# Work is cancelled this part of a ttl before the deadline, and at most so many seconds, as it needs a moment to end.
_EARLY_PART, _EARLY_MAX = 0.02, 0.05
# A table that lists a grant although it was reported as finished was asked for at most so many seconds ago.
_REPORTED_KEPT = 60.0


class Period(NamedTuple):
    """One period of a timer: its start, in milliseconds since the start of 1970 (UTC), and its number."""

    due_ms: int
    number: int


class Grant(NamedTuple):
    """A slot or a name that was granted. `number`: no other grant of this sidecar and policy has it."""

    number: int
    resource: Resource
    epoch: int
    period: Optional[Period]


class Changes(NamedTuple):
    """What a line has changed. Grants that are lost are gone from the table; those to finish are still in it."""

    granted: list[Grant]
    finish: list[Grant]
    lost: list[Grant]


class GrantTable:
    """The table of grants."""

    def __init__(self, ttl: float) -> None:
        self.version, self.deadline, self._ttl = 0, float("-inf"), ttl
        # Until when the lease itself lasts; a lease under which nothing is held has no other deadline.
        self._lease_ends = float("-inf")
        self.by_resource: dict[Resource, Grant] = {}
        # Numbers of grants that are to finish, and of those that were reported as finished; the latter with the moment of the answer.
        self.finishing: set[int] = set()
        self._reported: dict[int, Optional[float]] = {}
        self._early = min(_EARLY_PART * ttl, _EARLY_MAX)
        # Until when a table of at least that version is valid.
        self._pending: list[tuple[int, float]] = []
        # A 1 for each slot in which work may begin.
        self.open_slots, self.keys = bytearray(1), KeySlots(1)

    def is_live(self, now: float) -> bool:
        """Whether the grants still hold."""
        return now < self.deadline

    def may_begin(self, now: float) -> bool:
        """Whether there is time to begin something."""
        return now < self.deadline - self._early

    def is_idle(self, now: float) -> bool:
        """Whether the lease lasts and nothing is granted under it."""
        return not self.by_resource and now < self._lease_ends

    @property
    def stop_at(self) -> float:
        """When running work has to be cancelled."""
        return self.deadline - self._early

    def renewed(self, asked: float, valid_ms: int, version: int) -> bool:
        """The answer to a renewal that was asked for at that moment. It extends the grants of its version, so it counts once this table has it:
        a grant may be lost that this table still has. Returns whether it counts already."""
        until, self._lease_ends = asked + valid_ms / 1000, max(self._lease_ends, asked + self._ttl)
        if version <= self.version:
            self.deadline = max(self.deadline, until)
            return True
        self._pending = [*self._pending, (version, until)][-_PENDING_MAX:]
        return False

    def whole(self, line: dict[str, Any], asked: float) -> Changes:
        """The whole table, for which the question was sent at that moment."""
        slots = _size(line)
        grants, finishing = _grants(line, slots)
        if slots != self.keys.slots:
            self.keys = KeySlots(slots)
        here = {grant.number: grant for grant in self.by_resource.values()}
        there = {grant.number: grant for grant in grants}
        # What was reported as finished is not held, unless the sidecar lists it in an answer to a question that came after that.
        self._reported = {number: at for number, at in self._reported.items() if number in there and (at is None or at >= asked)}
        there = {number: grant for number, grant in there.items() if number not in self._reported}
        finishing = [number for number in finishing if number in there]
        lost = [grant for number, grant in here.items() if number not in there]
        granted = [grant for number, grant in there.items() if number not in here]
        finish = [there[number] for number in finishing if number not in self.finishing or number not in here]
        self.by_resource = {grant.resource: grant for grant in there.values()}
        # What was to finish stays so: if the handover is called off, the grant comes again under a new number.
        self.finishing = {*finishing, *(number for number in self.finishing if number in there)}
        open_slots = bytearray(slots)
        for grant in there.values():
            if isinstance(grant.resource, int) and grant.number not in self.finishing:
                open_slots[grant.resource] = 1
        self.open_slots = open_slots
        self._has_version(line)
        self.deadline = max(self.deadline, asked + _number(line, "valid_ms") / 1000)
        return Changes(granted, finish, lost)

    def line(self, line: dict[str, Any]) -> Changes:
        """A later line of the stream."""
        if _size(line) != len(self.open_slots):
            raise _unreadable("the number of slots", ValueError("it has changed"))
        kind, changes = line.get("type"), Changes([], [], [])
        grants, finishing = _grants(line, len(self.open_slots))
        if kind == "granted":
            for grant in grants:
                self._add(grant, grant.number in finishing, changes)
        elif kind == "finish":
            for held in self._held(grants):
                self.finishing.add(held.number)
                self._close(held)
                changes.finish.append(held)
        elif kind == "lost":
            for grant in grants:
                self._reported.pop(grant.number, None)
            for held in self._held(grants):
                self._remove(held)
                changes.lost.append(held)
        self._has_version(line)
        return changes

    def grant(self, resource: Resource) -> Optional[Grant]:
        """The grant of a slot or name, also one that is to finish."""
        return self.by_resource.get(resource)

    def finished(self, grants: list[Grant]) -> None:
        """From now on these are not held: they are about to be reported as finished."""
        for held in self._held(grants):
            self._reported[held.number] = None
            self._remove(held)

    def answered(self, numbers: list[int], now: float) -> None:
        """The sidecar has answered the report of these."""
        self._reported.update({number: now for number in numbers if number in self._reported})
        self._reported = {number: at for number, at in self._reported.items() if at is None or now - at < _REPORTED_KEPT}

    def open_grants(self) -> dict[int, Grant]:
        """The slots in which work may begin, whether or not the deadline has passed."""
        return {slot: grant for slot, grant in self.by_resource.items() if isinstance(slot, int) and grant.number not in self.finishing}

    def _held(self, grants: list[Grant]) -> list[Grant]:
        """Those that are in the table, as they are there."""
        here = (self.by_resource.get(grant.resource) for grant in grants)
        return [held for held, grant in zip(here, grants) if held is not None and held.number == grant.number]

    def _add(self, grant: Grant, is_finishing: bool, changes: Changes) -> None:
        if grant.number in self._reported or self._held([grant]):
            return
        before = self.by_resource.get(grant.resource)
        if before is not None:
            # A new number for the same slot or name: what was held before is not.
            self._remove(before)
            changes.lost.append(before)
        self.by_resource[grant.resource] = grant
        changes.granted.append(grant)
        if is_finishing:
            self.finishing.add(grant.number)
            changes.finish.append(grant)
        elif isinstance(grant.resource, int):
            self.open_slots[grant.resource] = 1

    def _remove(self, grant: Grant) -> None:
        self.by_resource.pop(grant.resource, None)
        self.finishing.discard(grant.number)
        self._close(grant)

    def _close(self, grant: Grant) -> None:
        if isinstance(grant.resource, int):
            self.open_slots[grant.resource] = 0

    def _has_version(self, line: dict[str, Any]) -> None:
        self.version = max(self.version, _number(line, "version"))
        self.deadline = max([self.deadline, *(until for version, until in self._pending if version <= self.version)])
        self._pending = [each for each in self._pending if each[0] > self.version]


def _grants(line: dict[str, Any], slots: int) -> tuple[list[Grant], list[int]]:
    """The grants in a line, and the numbers of those that are to finish."""
    grants, finishing = [], []
    try:
        for answer in line.get("grants") or []:
            slot, name, period = answer["slot"], answer["name"], answer.get("period")
            if (slot is None) == (name is None):
                raise ValueError("exactly one of slot and name is set")
            resource: Resource = int(slot) if name is None else str(name)
            if isinstance(resource, int) and not 0 <= resource < slots:
                raise ValueError(f"slot {resource} of {slots}")
            number = int(answer["grant"])
            grants.append(Grant(number, resource, int(answer["epoch"]), period and Period(int(period["due_ms"]), int(period["number"]))))
            if answer.get("finish"):
                finishing.append(number)
    except (KeyError, TypeError, ValueError) as broken:
        raise _unreadable("a grant", broken) from broken
    return grants, finishing


def _size(line: dict[str, Any]) -> int:
    slots = _number(line, "slots")
    if not 1 <= slots <= _SLOTS_MAX:
        raise _unreadable("the number of slots", ValueError(slots))
    return slots


def _number(line: dict[str, Any], name: str) -> int:
    value = line.get(name)
    if not isinstance(value, int):
        raise _unreadable(name, ValueError(value))
    return value


def _unreadable(what: str, broken: Exception) -> ShardwiseError:
    return Unavailable(f"a line of grants cannot be understood: {what}: {type(broken).__name__} {broken}")
