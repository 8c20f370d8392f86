"""The answers of the sidecar, as /openapi.json describes them; a test compares the two. A newer sidecar may add fields."""

from typing import Literal, NamedTuple, Optional, TypedDict

from ._errors import ShardwiseError

_Text = Optional[str]
_Number = Optional[int]

# `holder` to `why`: who holds the slot.
Owner = TypedDict("Owner", {"key": str, "slot": _Number, "owner": _Text, "address": _Text, "mine": bool, "revision": int,
                            "holder": _Text, "incarnation": _Text, "epoch": _Number, "since": _Text, "wanted": _Text, "why": _Text})  # fmt: skip
Ownership = TypedDict("Ownership", {
    "policy": str, "group": str, "instance_id": str, "state": str, "hint": _Text, "drained": bool, "worker": _Text, "worker_failure": _Text,
    "spared": bool, "owned_for_ms": _Number, "revision": int, "renewed_ms_ago": _Number, "viewed_ms_ago": _Number, "view_age_ms": _Number,
    "view_fingerprint": str, "policy_fingerprint": _Text, "members": int, "slots": _Number, "slots_owned": _Number,
    "ranges": Optional[list[list[int]]], "claims_seen": _Number, "stands_still": bool, "lease_age_ms": _Number,
    "lease_ends_in_ms": _Number})  # fmt: skip
Member = TypedDict("Member", {"instance_id": str, "incarnation": str, "state": str, "worker": _Text, "address": _Text, "zone": _Text,
                              "version": _Text, "weight": int, "slots": _Number, "holds": _Number, "metadata": dict[str, str]})  # fmt: skip
Vanished = TypedDict("Vanished", {"instance_id": str, "incarnation": str, "at": str, "ms_ago": int, "is_back": bool})
Group = TypedDict("Group", {"revision": int, "view_fingerprint": str, "members": list[Member], "foreign": list[str], "vanished": list[Vanished]})
Step = TypedDict("Step", {"instance_id": str, "point": _Number, "place": _Text, "slots": _Number, "capacity": _Number,
                          "weight_slots": _Number, "weight_capacity": _Number})  # fmt: skip
Explanation = TypedDict("Explanation", {"key": str, "placement": _Text, "hash": _Text, "slot": _Number, "start": _Text, "passed": list[Step],
                                        "owner": Optional[Step], "before": Optional[Step], "next": _Text,
                                        "holder": _Text, "incarnation": _Text, "epoch": _Number, "since": _Text, "wanted": _Text, "why": _Text})  # fmt: skip
Move = TypedDict("Move", {"from": _Text, "to": _Text, "share": float})
Evenness = TypedDict("Evenness", {"members": int, "peak": float, "least": float})
Plan = TypedDict("Plan", {"placement": str, "moved_share": float, "exact_share": float, "moves": list[Move], "before": Evenness, "after": Evenness})
Wish = TypedDict("Wish", {"instance_id": str, "drained": bool, "changed": bool})
Changed = TypedDict("Changed", {"instance_id": str, "state": Optional[list[str]], "weight": Optional[list[int]]})
Rebalance = TypedDict("Rebalance", {"id": str, "at": str, "cause": str, "took_ms": int, "revision": int, "members": int, "joined": int,
    "members_joined": list[str], "left": int, "members_left": list[str], "vanished": int, "members_vanished": list[str], "members_changed": list[Changed],
    "slots_owned": _Number, "gained": _Number, "lost": _Number, "moved_share": Optional[float]})  # fmt: skip

HeldSlot = TypedDict("HeldSlot", {"slot": int, "holder": _Text, "incarnation": _Text, "epoch": _Number, "since": _Text, "wanted": _Text, "why": _Text})
HeldName = TypedDict("HeldName", {"name": str, "holder": _Text, "incarnation": _Text, "epoch": _Number, "since": _Text, "wanted": _Text, "why": _Text})
Holders = TypedDict("Holders", {"revision": int, "view_fingerprint": str, "slots": list[HeldSlot], "names": list[HeldName]})
# `slot` and `epoch` are the fence; it is held for `valid_ms` from before the question, unless the lease is renewed.
EnteredKey = TypedDict("EnteredKey", {"key": str, "slot": int, "epoch": int, "valid_ms": int})

# Where a request to a key would go: the members that may serve it, its owner first, and the one that was chosen.
Route = TypedDict("Route", {"key": str, "key_hash": str, "set": list[str], "pick": str, "incarnation": str, "why": str, "epoch": _Number})

# What passes between a lease and its sidecar.
LeaseAnswer = TypedDict("LeaseAnswer", {"id": str, "ttl_ms": int, "valid_ms": int, "version": int})
PeriodAnswer = TypedDict("PeriodAnswer", {"due_ms": int, "number": int})
GrantAnswer = TypedDict("GrantAnswer", {"grant": int, "slot": _Number, "name": _Text, "epoch": int, "period": Optional[PeriodAnswer], "finish": bool})
GrantTableAnswer = TypedDict("GrantTableAnswer", {
    "version": int, "valid_ms": int, "slots": int, "grants": list[GrantAnswer], "lost": Optional[list[int]]})  # fmt: skip
Finished = TypedDict("Finished", {"finished": int})
Names = TypedDict("Names", {"names": int})


class Owned(NamedTuple):
    """The keys of a list that this worker owns. It owns none unless `state` is active, stale or unsharded."""

    keys: list[str]
    state: str


class Event(NamedTuple):
    """`rebalance`: this worker's ownership has changed. `gap`: events may be missing, so query the ownership now; it comes first, and after each
    reconnection. `lost`: the connection to the sidecar is lost (`error` says why), so ownership may end unnoticed."""

    kind: Literal["rebalance", "gap", "lost"]
    rebalance: Optional[Rebalance] = None
    error: Optional[ShardwiseError] = None
