"""Asks `shardwise serve`, the process beside this worker: which keys are mine, who owns what, what moves, and what this worker holds."""

from ._answers import (
    Changed,
    EnteredKey,
    Event,
    Evenness,
    Explanation,
    Group,
    HeldName,
    HeldSlot,
    Holders,
    Member,
    Move,
    Owned,
    Owner,
    Ownership,
    Plan,
    Rebalance,
    Step,
    Vanished,
    Wish,
)
from ._client import Client
from ._entered import Entered, Entering
from ._errors import Fenced, LeaseEnded, Lost, Moved, NotHeld, NotOwning, Problem, ShardwiseError, Unavailable
from ._hold import Fence, Hold
from ._lease import Lease
from ._names import NamedRun
from ._progress import Position, Progress
from ._request_server import RequestServer
from ._requests import Answer, Refused, Request, RequestHandlers
from ._runs import OwnedRun, RebalanceRun, Run, SlotChange
from ._table import Grant, Period

__all__ = [
    "Answer", "Changed", "Client", "Entered", "EnteredKey", "Entering", "Evenness", "Event", "Explanation", "Fence", "Fenced", "Grant", "Group", "HeldName", "HeldSlot", "Hold",
    "Holders", "Lease", "LeaseEnded", "Lost", "Member", "Move", "Moved", "NamedRun", "NotHeld", "NotOwning", "Owned", "OwnedRun", "Owner", "Ownership", "Period",
    "Plan", "Position", "Problem", "Progress", "Rebalance", "RebalanceRun", "Refused", "Request", "RequestHandlers", "RequestServer", "Run", "ShardwiseError", "SlotChange", "Step",
    "Unavailable", "Vanished", "Wish",
]  # fmt: skip
