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
    Route,
    Step,
    Vanished,
    Wish,
)
from ._ask import To
from ._client import Client
from ._entered import Entered, Entering
from ._errors import (
    Busy,
    Fenced,
    LeaseEnded,
    Lost,
    Moved,
    NotHandled,
    NotHeld,
    NotMine,
    NotOwning,
    Problem,
    ShardwiseError,
    Unavailable,
    Unknown,
    Unsent,
)
from ._handlers import RequestHandlers
from ._hold import Fence, Hold
from ._lease import Lease
from ._names import NamedRun
from ._owned_requests import HeldRequest, OwnedRequest
from ._progress import Position, Progress
from ._request_server import RequestServer
from ._requests import Answer, Refused, Request
from ._runs import OwnedRun, RebalanceRun, Run, SlotChange
from ._table import Grant, Period

__all__ = [
    "Answer", "Busy", "Changed", "Client", "Entered", "EnteredKey", "Entering", "Evenness", "Event", "Explanation", "Fence", "Fenced", "Grant",
    "Group", "HeldName", "HeldRequest", "HeldSlot", "Hold", "Holders", "Lease", "LeaseEnded", "Lost", "Member", "Move", "Moved", "NamedRun",
    "NotHandled", "NotHeld", "NotMine", "NotOwning", "Owned", "OwnedRequest", "OwnedRun", "Owner", "Ownership", "Period", "Plan", "Position",
    "Problem", "Progress", "Rebalance", "RebalanceRun", "Refused", "Request", "RequestHandlers", "RequestServer", "Route", "Run",
    "ShardwiseError", "SlotChange", "Step", "To", "Unavailable", "Unknown", "Unsent", "Vanished", "Wish",
]  # fmt: skip
