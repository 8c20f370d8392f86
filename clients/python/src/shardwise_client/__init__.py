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

# Of a list in one request: the sidecar keeps nothing for us, and we send everything before we read.
_LIST_BYTES = 512 * 1024
_EVENT_BYTES, _PAUSE_FIRST, _PAUSE_LONGEST = 1024 * 1024, 0.1, 5.0
_OWNING = ("active", "stale", "unsharded")
_Text = Optional[str]
_Number = Optional[int]
T = TypeVar("T")

# Answers, as /openapi.json describes them; a test compares the two. A newer sidecar may add fields.
Owner = TypedDict("Owner", {"key": str, "slot": _Number, "owner": _Text, "address": _Text, "mine": bool, "revision": int})
Ownership = TypedDict("Ownership", {
    "policy": str, "group": str, "instance_id": str, "state": str, "hint": _Text, "drained": bool, "owned_for_ms": _Number, "revision": int,
    "renewed_ms_ago": _Number, "viewed_ms_ago": _Number, "view_age_ms": _Number, "view_fingerprint": str, "policy_fingerprint": _Text,
    "members": int, "slots": _Number, "slots_owned": _Number, "ranges": Optional[list[list[int]]], "stands_still": bool})  # fmt: skip
Member = TypedDict("Member", {"instance_id": str, "incarnation": str, "state": str, "address": _Text, "zone": _Text, "version": _Text,
                              "weight": int, "slots": _Number, "metadata": dict[str, str]})  # fmt: skip
Vanished = TypedDict("Vanished", {"instance_id": str, "incarnation": str, "at": str, "ms_ago": int, "is_back": bool})
Group = TypedDict("Group", {"revision": int, "view_fingerprint": str, "members": list[Member], "foreign": list[str], "vanished": list[Vanished]})
Step = TypedDict("Step", {"instance_id": str, "point": _Number, "place": _Text, "slots": _Number, "capacity": _Number,
                          "weight_slots": _Number, "weight_capacity": _Number})  # fmt: skip
Explanation = TypedDict("Explanation", {"key": str, "placement": _Text, "hash": _Text, "slot": _Number, "start": _Text, "passed": list[Step],
                                        "owner": Optional[Step], "before": Optional[Step], "next": _Text})  # fmt: skip
Move = TypedDict("Move", {"from": _Text, "to": _Text, "share": float})
Evenness = TypedDict("Evenness", {"members": int, "peak": float, "least": float})
Plan = TypedDict("Plan", {"placement": str, "moved_share": float, "exact_share": float, "moves": list[Move], "before": Evenness, "after": Evenness})
Wish = TypedDict("Wish", {"instance_id": str, "drained": bool, "changed": bool})
Changed = TypedDict("Changed", {"instance_id": str, "state": Optional[list[str]], "weight": Optional[list[int]]})
Rebalance = TypedDict("Rebalance", {"id": str, "at": str, "cause": str, "took_ms": int, "revision": int, "members": int, "joined": int,
    "members_joined": list[str], "left": int, "members_left": list[str], "vanished": int, "members_vanished": list[str], "members_changed": list[Changed],
    "slots_owned": _Number, "gained": _Number, "lost": _Number, "moved_share": Optional[float]})  # fmt: skip

class ShardwiseError(Exception):
    """Whatever goes wrong with the sidecar; `passes` where it may pass by itself, then not before `retry_after` seconds."""
    passes, retry_after = False, 0.0

class Unavailable(ShardwiseError):
    """The sidecar does not answer, or not in time."""
    passes = True

class NotOwning(Unavailable):
    """This worker owns nothing at the moment, whatever the keys; `state` says where it stands."""
    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(f"this worker owns nothing at the moment: it is {state}")

class Problem(ShardwiseError):
    """The sidecar refuses, as RFC 9457 has it. `kind` is a name that does not change, such as `unknown-instance`."""
    def __init__(self, response: httpx.Response) -> None:
        told = _json(response) if response.headers.get("content-type") == "application/problem+json" else {}
        self.status, after = response.status_code, response.headers.get("retry-after", "0")
        self.passes, self.retry_after = self.status in (429, 503), float(after) if after.isdigit() else 0.0
        self.type, self.title = str(told.get("type", "about:blank")), str(told.get("title", response.reason_phrase))
        self.kind, self.detail = self.type.rpartition(":")[2], str(told.get("detail", ""))
        super().__init__(f"{self.status} {self.title}: {self.detail}")

class Owned(NamedTuple):
    """The keys of a list that are this worker's. Unless `state` is active, stale or unsharded, nothing is."""
    keys: list[str]
    state: str

class Event(NamedTuple):
    """`rebalance`: what this worker owns has changed. `gap`: ask now what is owned, something may have changed that is not told; it comes first,
    and whenever the sidecar is back. `lost`: the sidecar cannot be heard, as `error` says, so what is owned may end unseen."""
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
        """Those of the keys that are mine, in their order; each holds for the moment when its part of the list was answered. In a state in which
        nothing is owned there are none, whatever was answered before."""
        until, mine, state = time.monotonic() + self._timeout, cast("list[str]", []), ""
        async for part in _parts(keys):
            found, state = await self._owned(part, until)
            if state not in _OWNING:
                return Owned([], state)
            mine += found
        return Owned(mine, state)

    async def owned_stream(self, keys: Union[Iterable[str], AsyncIterable[str]]) -> AsyncGenerator[str, None]:
        """The same for a list of any length, of which one part at a time is in memory. `NotOwning` is raised as soon as nothing is owned."""
        async for part in _parts(keys):
            found, state = await self._owned(part, time.monotonic() + self._timeout)
            if state not in _OWNING:
                raise NotOwning(state)
            for mine in found:
                yield mine

    async def owner(self, key: str) -> Owner:
        """Who owns the key by the newest view, and whether it is mine right now, by this worker's own deadline."""
        return await self._told(Owner, "GET", f"owner/{_encoded(key)}")

    async def explain(self, key: str) -> Explanation:
        """Why the key has its owner, for people."""
        return await self._told(Explanation, "GET", f"explain/{_encoded(key)}")

    async def ownership(self) -> Ownership:
        """What this worker has, and for how long unless it is renewed."""
        return await self._told(Ownership, "GET", "ownership")

    async def members(self) -> Group:
        """Who is in the group."""
        return await self._told(Group, "GET", "members")

    async def plan(self, *, join: Iterable[tuple[str, int]] = (), leave: Iterable[str] = ()) -> Plan:
        """What would move if these (id and weight) joined and those left; nothing is changed."""
        joining = [{"instance_id": id_, "weight": weight} for id_, weight in join]
        return await self._told(Plan, "POST", "plan", {"join": joining, "leave": list(leave)})

    async def drain(self, instance_id: str) -> Wish:
        """Lets a member stay and own nothing, over its restarts too. Needs the token."""
        return await self._told(Wish, "POST", "drain", {"instance_id": instance_id}, is_safe=False)

    async def undrain(self, instance_id: str) -> Wish:
        """Lets a drained member take its share again. Needs the token."""
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
        """An answer with status 200, at the latest when the time is over."""
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
                # Where no connection came about nothing has been asked.
                if not error.passes or not (is_safe or isinstance(broken, httpx.ConnectError)):
                    break
                pause = max(_pause(attempt), error.retry_after)
        raise error

    def _error(self, broken: Exception) -> ShardwiseError:
        if isinstance(broken, ShardwiseError):
            return broken
        # What cannot be sent or read today cannot be tomorrow.
        kind = ShardwiseError if isinstance(broken, (httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError)) else Unavailable
        return kind(f"{self._base} does not answer: {str(broken) or type(broken).__name__}")

async def _within(seconds: float, coming: Awaitable[T]) -> T:
    """What comes of it in time. It runs as a task of its own: below httpx a cancellation is lost now and then, and our caller's must not be."""
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
    """The token without the line feed at the end of its file. httpx would show a header that it cannot send, and take it for an outage."""
    token = token.removesuffix("\n").removesuffix("\r")
    if not token or not all("!" <= sign <= "~" for sign in token):
        raise ShardwiseError("the token is not printable ASCII")
    return token

def _reachable(base_url: str) -> str:
    """The URL without slashes at its end. httpx would take a wrong one for an outage. It is not shown, as it may have a password in it."""
    with suppress(httpx.InvalidURL):
        url = httpx.URL(base_url)
        is_whole = url.scheme in ("http", "https") and url.host and 0 < (80 if url.port is None else url.port) < 65536
        if is_whole and not any(sign in base_url for sign in "@?#"):
            return base_url.rstrip("/")
    raise ShardwiseError("the URL of the sidecar is to be like http://127.0.0.1:8087: http or https, a host, and no name, query or fragment")

def _encoded(text: str) -> str:
    # Dots too: a segment of nothing else would lead elsewhere.
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
    """Server-sent events. Lines end with a line feed alone: ids may have any other sign that ends lines elsewhere."""
    kept = b""
    async for piece in pieces:
        *events, kept = (kept + piece).split(b"\n\n")
        if len(kept) > _EVENT_BYTES:
            raise ShardwiseError("an event without an end: is a shardwise sidecar there?")
        for event in events:
            lines = (line.partition(":") for line in event.decode().split("\n"))
            yield {name: value.removeprefix(" ") for name, _, value in lines if name}
