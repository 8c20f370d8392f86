"""Asks `shardwise serve`, the process beside this worker: which of these keys are mine, who owns what, and what moves."""

import asyncio
import json
import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Iterable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Optional, TypedDict, TypeVar, Union, cast
from urllib.parse import quote

import httpx

# The most bytes of a list in one request. The sidecar buffers nothing, and httpx sends the whole body before it reads.
_LIST_BYTES = 512 * 1024
_EVENT_BYTES, _PAUSE_FIRST, _PAUSE_LONGEST = 1024 * 1024, 0.1, 5.0
_OWNING = ("active", "stale", "unsharded")
_Text = Optional[str]
_Number = Optional[int]
T = TypeVar("T")

# Answers, as /openapi.json describes them; a test compares the two. A newer sidecar may add fields. `holder` to `why`: who holds the slot.
Owner = TypedDict("Owner", {"key": str, "slot": _Number, "owner": _Text, "address": _Text, "mine": bool, "revision": int,
                            "holder": _Text, "incarnation": _Text, "epoch": _Number, "since": _Text, "wanted": _Text, "why": _Text})  # fmt: skip
Ownership = TypedDict("Ownership", {
    "policy": str, "group": str, "instance_id": str, "state": str, "hint": _Text, "drained": bool, "worker": _Text, "worker_failure": _Text,
    "spared": bool, "owned_for_ms": _Number, "revision": int, "renewed_ms_ago": _Number, "viewed_ms_ago": _Number, "view_age_ms": _Number,
    "view_fingerprint": str, "policy_fingerprint": _Text, "members": int, "slots": _Number, "slots_owned": _Number,
    "ranges": Optional[list[list[int]]], "claims_seen": _Number, "stands_still": bool})  # fmt: skip
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
    """The sidecar refused the request (RFC 9457). `kind` is a stable name, such as `unknown-instance`."""
    def __init__(self, response: httpx.Response) -> None:
        told = _json(response) if response.headers.get("content-type") == "application/problem+json" else {}
        self.status, after = response.status_code, response.headers.get("retry-after", "0")
        self.passes, self.retry_after = self.status in (429, 503), float(after) if after.isdigit() else 0.0
        self.type, self.title = str(told.get("type", "about:blank")), str(told.get("title", response.reason_phrase))
        self.kind, self.detail = self.type.rpartition(":")[2], str(told.get("detail", ""))
        super().__init__(f"{self.status} {self.title}: {self.detail}")

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

class Client:
    """Asks one sidecar about one policy.

    `timeout` is for a whole call in seconds, retries included; of `owned_stream` for each part. What changes nothing is tried `attempts` times
    while the sidecar is away, busy or no member yet; `drain` and `undrain` only where the try before cannot have arrived. The sidecar says
    something every 3 s: who follows and hears nothing for `silence` seconds takes it for lost. `verify` is what httpx takes: a context with the CA
    of a sidecar beyond loopback. Proxies of the environment are not used.
    """

    def __init__(self, policy: str, base_url: str = "http://127.0.0.1:8087", *, token: Optional[str] = None, timeout: float = 15.0,
                 attempts: int = 3, silence: float = 10.0, verify: Union[ssl.SSLContext, bool] = True) -> None:  # fmt: skip
        headers = {"authorization": f"Bearer {_sendable(token)}"} if token is not None else {}
        self._base = f"{_reachable(base_url)}/v1/policies/{_encoded(policy)}/"
        self._http = httpx.AsyncClient(headers=headers, timeout=None, trust_env=False, verify=verify)
        self._timeout, self._attempts, self._silence = timeout, max(1, attempts), silence

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def owned(self, keys: Iterable[str]) -> Owned:
        """The keys that this worker owns, in their order. Each was owned when its part of the list was answered. In a state without ownership
        the list is empty, also if earlier parts had keys."""
        until, mine, state = time.monotonic() + self._timeout, cast("list[str]", []), ""
        async for part in _parts(keys):
            found, state = await self._owned(part, until)
            if state not in _OWNING:
                return Owned([], state)
            mine += found
        return Owned(mine, state)

    async def owned_stream(self, keys: Union[Iterable[str], AsyncIterable[str]]) -> AsyncGenerator[str, None]:
        """Like `owned`, for a list of any length; one part at a time is in memory. Raises `NotOwning` as soon as this worker owns nothing."""
        async for part in _parts(keys):
            found, state = await self._owned(part, time.monotonic() + self._timeout)
            if state not in _OWNING:
                raise NotOwning(state)
            for mine in found:
                yield mine

    async def owner(self, key: str) -> Owner:
        """The key's owner in the newest view, and whether this worker owns it right now, by its own deadline."""
        return await self._told(Owner, "GET", f"owner/{_encoded(key)}")

    async def explain(self, key: str) -> Explanation:
        """Explains the key's owner in readable form."""
        return await self._told(Explanation, "GET", f"explain/{_encoded(key)}")

    async def ownership(self) -> Ownership:
        """This worker's ownership, and how long it lasts without a renewal."""
        return await self._told(Ownership, "GET", "ownership")

    async def members(self) -> Group:
        """The members of the group."""
        return await self._told(Group, "GET", "members")

    async def plan(self, *, join: Iterable[tuple[str, int]] = (), leave: Iterable[str] = ()) -> Plan:
        """What would move if `join` (id and weight) joined and `leave` left; changes nothing."""
        joining = [{"instance_id": id_, "weight": weight} for id_, weight in join]
        return await self._told(Plan, "POST", "plan", {"join": joining, "leave": list(leave)})

    async def drain(self, instance_id: str) -> Wish:
        """Drains a member: it stays registered and owns no slots, even after restarts. Needs the token."""
        return await self._told(Wish, "POST", "drain", {"instance_id": instance_id}, is_safe=False)

    async def undrain(self, instance_id: str) -> Wish:
        """Ends a drain: the member takes its share again. Needs the token."""
        return await self._told(Wish, "POST", "undrain", {"instance_id": instance_id}, is_safe=False)

    async def rebalances(self, last_event_id: Optional[str] = None) -> AsyncGenerator[Event, None]:
        """What moves, as it happens, until the iteration is left or cancelled. It goes on behind the event of that id, and by itself behind the last
        one after each break of the connection. A refusal that does not pass by itself is raised."""
        last, is_lost, tries = last_event_id, False, 0
        while True:
            headers = {b"accept": b"text/event-stream", **({b"last-event-id": last.encode()} if last else {})}
            response: Optional[httpx.Response] = None
            error: ShardwiseError = Unavailable(f"{self._base}rebalances has ended")
            try:
                request = self._http.build_request("GET", self._base + "rebalances", headers=headers, timeout=self._silence)
                response = await _within(self._timeout, self._http.send(request, stream=True))
                if response.status_code != 200:
                    await _within(self._timeout, response.aread())
                    raise Problem(response)
                if is_lost or last is None:
                    yield Event("gap")
                is_lost, tries = False, 0
                async for fields in _fields(response.aiter_bytes()):
                    if fields.get("event") == "gap":
                        yield Event("gap")
                    elif fields.get("event") == "rebalance":
                        rebalance: Rebalance = json.loads(fields["data"])
                        last = rebalance["id"]
                        yield Event("rebalance", rebalance)
            except (httpx.TransportError, ShardwiseError, ValueError) as broken:
                error = self._error(broken)
                if not error.passes:
                    raise error
            finally:
                if response is not None:
                    await response.aclose()
            if not is_lost:
                is_lost = True
                yield Event("lost", error=error)
            await asyncio.sleep(_pause(tries))
            tries += 1

    async def _owned(self, part: bytes, until: float) -> Owned:
        response = await self._ask("POST", "owned", part, until=until)
        return Owned(_json(response, list), response.headers.get("shardwise-state") or "unknown")

    async def _told(self, kind: type[T], method: str, path: str, wanted: Optional[object] = None, *, is_safe: bool = True) -> T:
        body = None if wanted is None else json.dumps(wanted).encode()
        return cast(T, _json(await self._ask(method, path, body, is_safe=is_safe)))

    async def _ask(self, method: str, path: str, body: Optional[bytes] = None, *, is_safe: bool = True, until: float = 0.0) -> httpx.Response:
        """Returns an answer with status 200, or raises when the time is over."""
        error: ShardwiseError = Unavailable(f"{self._base} has not answered within {self._timeout} s")
        until, pause = until or time.monotonic() + self._timeout, 0.0
        for attempt in range(self._attempts):
            await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
            if time.monotonic() >= until:
                break
            try:
                request = self._http.build_request(method, self._base + path, content=body, headers={"content-type": "application/json"} if body else {})
                response = await _within(until - time.monotonic(), self._http.send(request))
                if response.status_code == 200:
                    return response
                raise Problem(response)
            except httpx.InvalidURL as wrong:
                raise ShardwiseError(f"this cannot be asked by a path, ask by a list: {wrong}") from wrong
            except (httpx.TransportError, Problem) as broken:
                error = self._error(broken)
                # Without a connection the request was not sent.
                if not error.passes or not (is_safe or isinstance(broken, httpx.ConnectError)):
                    break
                pause = max(_pause(attempt), error.retry_after)
        raise error

    def _error(self, broken: Exception) -> ShardwiseError:
        if isinstance(broken, ShardwiseError):
            return broken
        # A request that cannot be sent, or an answer that cannot be read, will fail again.
        kind = ShardwiseError if isinstance(broken, (httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError)) else Unavailable
        return kind(f"{self._base} does not answer: {str(broken) or type(broken).__name__}")

async def _within(seconds: float, coming: Awaitable[T]) -> T:
    """Awaits `coming` with a timeout, in a separate task: httpx sometimes loses a cancellation, and the caller's must not be lost."""
    task = asyncio.ensure_future(coming)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        if not (await asyncio.wait({task}, timeout=seconds))[0]:
            raise httpx.ReadTimeout(f"nothing for {seconds:.1f} s")
        return task.result()
    finally:
        task.cancel()

def _json(response: httpx.Response, kind: type = dict) -> Any:
    with suppress(ValueError):
        value = response.json()
        if isinstance(value, kind):
            return value
    raise ShardwiseError(f"{response.url} answers something else: is a shardwise sidecar there?")

def _sendable(token: str) -> str:
    """The token without a final line feed. httpx would show a header that it cannot send in its error, and report an outage."""
    token = token.removesuffix("\n").removesuffix("\r")
    if not token or not all("!" <= sign <= "~" for sign in token):
        raise ShardwiseError("the token is not printable ASCII")
    return token

def _reachable(base_url: str) -> str:
    """The URL without final slashes. httpx would report a wrong URL as an outage. No error shows the URL, as it may contain a password."""
    with suppress(httpx.InvalidURL):
        url = httpx.URL(base_url)
        is_whole = url.scheme in ("http", "https") and url.host and 0 < (80 if url.port is None else url.port) < 65536
        if is_whole and not any(sign in base_url for sign in "@?#"):
            return base_url.rstrip("/")
    raise ShardwiseError("the URL of the sidecar is to be like http://127.0.0.1:8087: http or https, a host, and no name, query or fragment")

def _encoded(text: str) -> str:
    # Dots too: a segment `.` or `..` would change the path.
    return quote(text, safe="").replace(".", "%2E")

def _pause(tries: int) -> float:
    return min(_PAUSE_LONGEST, _PAUSE_FIRST * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)

async def _parts(keys: Union[Iterable[str], AsyncIterable[str]]) -> AsyncIterator[bytes]:
    """JSON lists of bounded size, at least one; a longer key is alone in its list."""
    part, size = cast("list[bytes]", []), 0
    async for key in keys if isinstance(keys, AsyncIterable) else _one_by_one(keys):
        text = json.dumps(key, ensure_ascii=False).encode()
        if part and size + len(text) > _LIST_BYTES:
            yield b"[" + b",".join(part) + b"]"
            part, size = [], 0
        part.append(text)
        size += len(text) + 1
    yield b"[" + b",".join(part) + b"]"

async def _one_by_one(keys: Iterable[str]) -> AsyncIterator[str]:
    for key in keys:
        yield key

async def _fields(pieces: AsyncIterator[bytes]) -> AsyncIterator[dict[str, str]]:
    """Server-sent events. Only a line feed ends a line: ids may contain other line separators."""
    kept = b""
    async for piece in pieces:
        *events, kept = (kept + piece).split(b"\n\n")
        if len(kept) > _EVENT_BYTES:
            raise ShardwiseError("an event without an end: is a shardwise sidecar there?")
        for event in events:
            lines = (line.partition(":") for line in event.decode().split("\n"))
            yield {name: value.removeprefix(" ") for name, _, value in lines if name}
