"""The errors of the client."""

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    import httpx


class ShardwiseError(Exception):
    """The base of all errors. `passes`: the error is transient, and a retry may succeed after `retry_after` seconds."""

    passes, retry_after = False, 0.0


class Unavailable(ShardwiseError):
    """The sidecar did not answer in time."""

    passes = True


class NotOwning(Unavailable):
    """This worker owns no keys at the moment; `state` says why."""

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(f"this worker owns nothing at the moment: it is {state}")


class Problem(ShardwiseError):
    """The sidecar refused the request (RFC 9457). `kind` is a stable name, such as `unknown-instance`. `is_refused`: it says that no handler has seen
    the request."""

    def __init__(self, response: "httpx.Response") -> None:
        problem: Any = {}
        if response.headers.get("content-type") == "application/problem+json":
            with suppress(ValueError):
                problem = json.loads(response.content)
        problem = problem if isinstance(problem, dict) else {}
        self.status, after = response.status_code, response.headers.get("retry-after", "0")
        self.passes, self.retry_after = self.status in (429, 503), float(after) if after.isdigit() else 0.0
        self.type, self.title = str(problem.get("type", "about:blank")), str(problem.get("title", response.reason_phrase))
        self.kind, self.detail = self.type.rpartition(":")[2], str(problem.get("detail", ""))
        self.is_refused = response.headers.get("shardwise-peer") == "refused"
        super().__init__(f"{self.status} {self.title}: {self.detail}")


class NotHandled(ShardwiseError):
    """No handler has seen the request, so it may be sent again. `problem` is what the sidecar has answered, if it was reached."""

    passes = True

    def __init__(self, why: str, problem: Optional[Problem] = None) -> None:
        self.problem, self.retry_after = problem, 0.0 if problem is None else problem.retry_after
        super().__init__(f"the request was not handled: {why}")


class Unsent(NotHandled):
    """No member was reached in time, or the sidecar was not."""


class NotMine(NotHandled):
    """The member that was asked last does not serve the destination, and no other one took the request in time."""


class Busy(NotHandled):
    """The member that was asked last has too many requests, or the sidecar or this client has; send fewer at once, or later."""


class Unknown(ShardwiseError):
    """The request may have been handled: not at all, in part or in full. If it is sent again, it may be handled twice."""

    def __init__(self, why: str, problem: Optional[Problem] = None) -> None:
        self.problem = problem
        super().__init__(f"it is unknown if the request was handled: {why}")


class LeaseEnded(ShardwiseError):
    """The lease of this worker has ended, and so has all work under it: `why` says what ended it."""

    passes = True

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"the lease has ended: {why}")


class NotHeld(ShardwiseError):
    """Work was not begun: this worker does not hold the key or the name, or is asked to hand it over."""

    passes = True


class Lost(ShardwiseError):
    """Work was cancelled, or has to stop: what was entered is not held any more."""

    passes = True

    def __init__(self, what: str, why: Optional[str]) -> None:
        super().__init__(f"{what} is not held any more: {why or 'the sidecar has not renewed the lease in time'}")


class Fenced(ShardwiseError):
    """The database has seen a higher epoch: another worker has acquired the resource since. Roll back, and give up this work."""

    def __init__(self, group: str, resource: str, epoch: int, seen: Optional[int] = None) -> None:
        self.resource, self.epoch, self.seen = resource, epoch, seen
        known = "" if seen is None else f" ({seen} was seen)"
        super().__init__(f"{resource} of group {group!r} is held under a higher epoch than {epoch}{known}: roll back and abandon this work")


class Moved(ShardwiseError):
    """The database has another position of the key than the one that `save` names: another task has saved one since. Roll back, and resume."""

    def __init__(self, key: str, number: int, found: Optional[int]) -> None:
        self.key, self.number, self.found = key, number, found
        has = "none, because the transaction of `resume` was not committed" if found is None else f"number {found}"
        super().__init__(f"the progress of {key!r} was not saved: it goes on from position number {number}, but the database has {has}; roll back, and resume")
