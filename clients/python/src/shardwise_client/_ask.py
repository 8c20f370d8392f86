"""Requests to a destination, until their deadline, and what is known of those that have no answer."""

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, NamedTuple, Optional, Union
from urllib.parse import unquote, urlencode

import httpx

from ._clock import pause_of
from ._errors import Busy, NotHandled, NotMine, Problem, ShardwiseError, Unknown, Unsent
from ._http import Http, encoded
from ._requests import BODY_BYTES_MAX, Answer, is_path

_WITHIN_MAX, _IDEMPOTENCY_KEY_MAX = 300.0, 256
# So much longer than the deadline the sidecar's own answer is waited for, and so long a cancellation may take. In seconds.
_GRACE, _CANCEL_WITHIN = 1.0, 2.0
_CANCELS_MAX = 64
# Requests that one client has under way; each is a connection.
_UNDER_WAY_MAX = 256
_PAUSE_FIRST, _PAUSE_LONGEST = 0.05, 0.5
# Kinds of problems that say without a header that no handler has seen the request.
_NOTHING_DONE = ("not-handled", "unavailable", "unreachable-instance", "unreachable-worker")


class To(NamedTuple):
    """A destination: `To.owner(key)`, `To.holder(name)`, `To.member(instance_id)`, `To.session(id)`, or `To.any()`."""

    kind: Literal["keys", "names", "instances", "sessions", "any"]
    id: str = ""

    @classmethod
    def owner(cls, key: str) -> "To":
        """The member that owns the key."""
        return cls("keys", key)

    @classmethod
    def holder(cls, name: str) -> "To":
        """The member that holds a name, such as `singleton/leader`, `daemon/ingest/3` or `timer/report`."""
        return cls("names", name)

    @classmethod
    def member(cls, instance_id: str) -> "To":
        """One member."""
        return cls("instances", instance_id)

    @classmethod
    def session(cls, id: str) -> "To":
        """The member that has opened the session."""
        return cls("sessions", id)

    @classmethod
    def any(cls) -> "To":
        """Any active member."""
        return cls("any")

    @property
    def route(self) -> str:
        """The path of its requests, before that of the handler."""
        return "any/" if self.kind == "any" else f"{self.kind}/{encoded(self.id)}/"


class Sending(NamedTuple):
    """A request that is ready to be sent."""

    method: str
    path: str
    body: Optional[bytes]
    headers: dict[str, str]
    within: float
    # Whether it may be sent again although it may have been handled.
    is_repeatable: bool


def sending(to: To, path: str, *, method: Optional[str], query: Optional[Mapping[str, str]], value: Optional[object], body: Optional[bytes],
            content_type: Optional[str], within: float, idempotency_key: Optional[str]) -> Sending:  # fmt: skip
    """Checks a request: what the sidecar would refuse only after it has read a part of it may not look as if its outcome was unknown."""
    if value is not None:
        body, content_type = json.dumps(value).encode(), content_type or "application/json"
    method = ("GET" if body is None else "POST") if method is None else method.upper()
    if method not in ("GET", "POST") or method == "GET" and body is not None:
        raise ShardwiseError(f"a request to a member is a GET without a body or a POST, not {method}{'' if body is None else ' with a body'}")
    if not is_path(path):
        raise ShardwiseError(f"{path!r:.300} is not a path of a member: write parts of letters, digits and -._~ with single slashes between them")
    if not 0 < within <= _WITHIN_MAX:
        raise ShardwiseError(f"a request has up to {_WITHIN_MAX:.0f} s, not {within}")
    if body is not None and len(body) > BODY_BYTES_MAX:
        raise ShardwiseError(f"a body has at most {BODY_BYTES_MAX} bytes, not {len(body)}")
    headers = {} if body is None else {"content-type": content_type or "application/octet-stream"}
    if idempotency_key is not None:
        if not 0 < len(idempotency_key) <= _IDEMPOTENCY_KEY_MAX or not all("!" <= sign <= "~" for sign in idempotency_key):
            raise ShardwiseError(f"an idempotency key is 1 to {_IDEMPOTENCY_KEY_MAX} characters of printable ASCII without spaces")
        headers["idempotency-key"] = idempotency_key
    asked = f"?{urlencode(query)}" if query else ""
    return Sending(method, f"{to.route}{path}{asked}", body, headers, within, method == "GET" or idempotency_key is not None)


class Asker:
    """The requests of one client to destinations."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._cancels: set[asyncio.Task[None]] = set()
        self._under_way = 0

    async def ask(self, request: Sending) -> Answer:
        """Sends it again while it was certainly not handled, or may be handled twice, until its deadline."""
        until, tries = time.monotonic() + request.within, 0
        unknown: Optional[Unknown] = None
        while True:
            outcome = await self._attempt(request, until - time.monotonic())
            if isinstance(outcome, Answer):
                return outcome
            goes_on = isinstance(outcome, NotHandled)
            if isinstance(outcome, Unknown):
                # It stays unknown, whatever comes later.
                unknown, goes_on = outcome, request.is_repeatable
            pause = max(pause_of(tries, _PAUSE_FIRST, _PAUSE_LONGEST), outcome.retry_after)
            if not goes_on or time.monotonic() + pause >= until:
                raise outcome if unknown is None else unknown
            await asyncio.sleep(pause)
            tries += 1

    async def close(self) -> None:
        """Waits for the cancellations that are on their way."""
        if self._cancels:
            await asyncio.wait(self._cancels, timeout=_CANCEL_WITHIN)

    async def _attempt(self, request: Sending, left: float) -> Union[Answer, ShardwiseError]:
        if self._under_way >= _UNDER_WAY_MAX:
            return Busy(f"this client has {_UNDER_WAY_MAX} requests under way")
        self._under_way += 1
        try:
            return await self._sent(request, left)
        finally:
            self._under_way -= 1

    async def _sent(self, request: Sending, left: float) -> Union[Answer, ShardwiseError]:
        id_ = uuid.uuid4().hex
        headers = {**request.headers, "shardwise-request-id": id_, "shardwise-within-ms": str(max(1, round(left * 1000)))}
        try:
            response = await self._http.sent(request.method, request.path, request.body, headers, left + _GRACE)
        except httpx.ConnectError as broken:
            return Unsent(str(self._http.error(broken)))
        except httpx.TransportError as broken:
            self._cancel(id_)
            error = self._http.error(broken)
            return Unknown(str(error)) if error.passes else error
        except asyncio.CancelledError:
            self._cancel(id_)
            raise
        if "shardwise-instance" in response.headers:
            by = unquote(response.headers["shardwise-instance"])
            return Answer(response.content, response.headers.get("content-type", "application/octet-stream"), response.status_code, by)
        if response.is_success:
            return ShardwiseError(f"{response.url} answers something else: is a shardwise sidecar there?")
        return outcome_of(Problem(response))

    def _cancel(self, id_: str) -> None:
        """Has the handler ended, in the background. The connection is closed too, so nothing is lost if this does not arrive."""
        if len(self._cancels) < _CANCELS_MAX:
            task = asyncio.ensure_future(self._cancelled(id_))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)

    async def _cancelled(self, id_: str) -> None:
        with suppress(ShardwiseError, httpx.TransportError):
            await self._http.sent("DELETE", f"requests/{id_}", None, {}, _CANCEL_WITHIN)


def outcome_of(problem: Problem) -> ShardwiseError:
    """What a refusal says of a request."""
    if problem.is_refused or problem.status == 429 or problem.kind in _NOTHING_DONE:
        kinds: dict[int, type[NotHandled]] = {421: NotMine, 429: Busy}
        return kinds.get(problem.status, Unsent)(str(problem), problem)
    return problem if problem.status < 500 else Unknown(str(problem), problem)
