"""Asks `shardwise serve`, the process beside this worker: which of these keys are mine, who owns what, and what moves."""

import asyncio
import json
import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Iterable
from typing import Any, Literal, NamedTuple, Optional, TypedDict, TypeVar, Union, cast
from urllib.parse import quote

import httpx

# Of a list in one request: the sidecar keeps nothing for us, and we send everything before we read.
_LIST_BYTES = 512 * 1024
# The sidecar says something every 3 s; a stream that is silent for longer than this is dead.
_SILENCE = 10.0
_PAUSE_FIRST, _PAUSE_LONGEST = 0.1, 5.0
_EVENT_BYTES = 1024 * 1024
T = TypeVar("T")

# Answers, as /openapi.json describes them. A newer sidecar may add fields.
Owner = TypedDict("Owner", {
    "key": str, "slot": Optional[int], "owner": Optional[str], "address": Optional[str], "mine": bool, "revision": int})  # fmt: skip
Ownership = TypedDict("Ownership", {
    "policy": str, "group": str, "instance_id": str, "state": str, "hint": Optional[str], "drained": bool, "owned_for_ms": Optional[int],
    "revision": int, "view_fingerprint": str, "policy_fingerprint": Optional[str], "members": int, "slots": Optional[int],
    "renewed_ms_ago": Optional[int], "viewed_ms_ago": Optional[int],
    "slots_owned": Optional[int], "ranges": Optional[list[list[int]]], "stands_still": bool})  # fmt: skip
Member = TypedDict("Member", {
    "instance_id": str, "incarnation": str, "state": str, "address": Optional[str], "zone": Optional[str], "version": Optional[str],
    "weight": int, "slots": Optional[int], "metadata": dict[str, str]})  # fmt: skip
Group = TypedDict("Group", {"revision": int, "view_fingerprint": str, "members": list[Member], "foreign": list[str]})
Step = TypedDict("Step", {
    "instance_id": str, "point": Optional[int], "place": Optional[str], "slots": Optional[int], "capacity": Optional[int],
    "weight_slots": Optional[int], "weight_capacity": Optional[int]})  # fmt: skip
Explanation = TypedDict("Explanation", {
    "key": str, "placement": Optional[str], "hash": Optional[str], "slot": Optional[int], "start": Optional[str], "passed": list[Step],
    "owner": Optional[Step], "before": Optional[Step], "next": Optional[str]})  # fmt: skip
Move = TypedDict("Move", {"from": Optional[str], "to": Optional[str], "share": float})
Evenness = TypedDict("Evenness", {"members": int, "peak": float, "least": float})
Plan = TypedDict("Plan", {
    "placement": str, "moved_share": float, "exact_share": float, "moves": list[Move], "before": Evenness, "after": Evenness})  # fmt: skip
Wish = TypedDict("Wish", {"instance_id": str, "drained": bool, "changed": bool})
Rebalance = TypedDict("Rebalance", {
    "id": str, "at": str, "cause": str, "revision": int, "members": int, "joined": int, "members_joined": list[str], "left": int,
    "members_left": list[str], "slots_owned": Optional[int], "gained": Optional[int], "lost": Optional[int], "moved_share": Optional[float],
    "took_ms": int})  # fmt: skip


class Owned(NamedTuple):
    """The keys of a list that are this worker's. Unless `state` is active, stale or unsharded, nothing is."""

    keys: list[str]
    state: str


class Event(NamedTuple):
    """`rebalance`: what this worker owns has changed. `gap`: ask now what is owned, something may have changed that is not told; it comes first,
    and whenever the sidecar is back. `lost`: the sidecar cannot be heard, so what is owned may end unseen."""

    kind: Literal["rebalance", "gap", "lost"]
    rebalance: Optional[Rebalance] = None


class ShardwiseError(Exception):
    """Whatever goes wrong with the sidecar; `passes` where it may pass by itself."""

    passes = False


class Unavailable(ShardwiseError):
    """The sidecar does not answer, or not in time."""
    passes = True


class Problem(ShardwiseError):
    """The sidecar refuses, as RFC 9457 has it. `kind` is a name that does not change, such as `unknown-instance`."""

    def __init__(self, response: httpx.Response) -> None:
        told = _json(response) if response.headers.get("content-type") == "application/problem+json" else {}
        self.status = response.status_code
        self.passes = self.status in (429, 503)
        self.type = str(told.get("type", "about:blank"))
        self.kind = self.type.rpartition(":")[2]
        self.title = str(told.get("title", response.reason_phrase))
        self.detail = str(told.get("detail", ""))
        after = response.headers.get("retry-after", "0")
        self.retry_after = float(after) if after.isdigit() else 0.0
        super().__init__(f"{self.status} {self.title}: {self.detail}")


class Client:
    """Asks one sidecar about one policy.

    `timeout` is for a whole call in seconds, retries included. What changes nothing is tried `attempts` times while the sidecar is away, busy or
    no member yet; `drain` and `undrain` only where the try before cannot have arrived. `verify` is what httpx takes: a context with the CA of a
    sidecar beyond loopback. Proxies of the environment are not used.
    """

    def __init__(self, policy: str, base_url: str = "http://127.0.0.1:8087", *, token: Optional[str] = None, timeout: float = 15.0,
                 attempts: int = 3, verify: Union[ssl.SSLContext, bool] = True) -> None:  # fmt: skip
        headers = {"authorization": f"Bearer {_sendable(token)}"} if token is not None else {}
        self._http = httpx.AsyncClient(headers=headers, timeout=None, trust_env=False, verify=verify)
        self._base = f"{base_url.rstrip('/')}/v1/policies/{_encoded(policy)}/"
        self._timeout, self._attempts = timeout, max(1, attempts)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def owned(self, keys: Iterable[str]) -> Owned:
        """Those of the keys that are mine, in their order; each holds for the moment when its part of the list was answered."""
        parts = [await self._owned(part) for part in _parts(keys)] or [await self._owned(b"[]")]
        return Owned([key for part in parts for key in part.keys], parts[-1].state)

    async def owned_stream(self, keys: Union[Iterable[str], AsyncIterable[str]]) -> AsyncGenerator[str, None]:
        """The same for a list of any length, of which one part at a time is in memory."""
        if isinstance(keys, Iterable):
            for part in _parts(keys):
                for mine in (await self._owned(part)).keys:
                    yield mine
            return
        gathered: list[str] = []
        async for key in keys:
            gathered.append(key)
            if len(gathered) == 10_000:
                for mine in (await self.owned(gathered)).keys:
                    yield mine
                gathered = []
        for mine in (await self.owned(gathered)).keys:
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
        wanted = {"join": [{"instance_id": id_, "weight": weight} for id_, weight in join], "leave": list(leave)}
        return await self._told(Plan, "POST", "plan", json.dumps(wanted).encode())

    async def drain(self, instance_id: str) -> Wish:
        """Lets a member stay and own nothing, over its restarts too. Needs the token."""
        return await self._wish("drain", instance_id)

    async def undrain(self, instance_id: str) -> Wish:
        """Lets a drained member take its share again. Needs the token."""
        return await self._wish("undrain", instance_id)

    async def rebalances(self, last_event_id: Optional[str] = None) -> AsyncGenerator[Event, None]:
        """What moves, as it happens, until the iteration is left or cancelled. It goes on behind the event of that id, and by itself behind the last
        one after each break of the connection. A refusal that does not pass by itself is raised."""
        last, is_lost, tries = last_event_id, False, 0
        while True:
            headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
            response: Optional[httpx.Response] = None
            try:
                request = self._http.build_request("GET", self._base + "rebalances", headers=headers, timeout=_SILENCE)
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
            except httpx.TransportError:
                pass
            except Problem as problem:
                if not problem.passes:
                    raise
            finally:
                if response is not None:
                    await response.aclose()
            if not is_lost:
                is_lost = True
                yield Event("lost")
            await asyncio.sleep(_pause(tries))
            tries += 1

    async def _owned(self, part: bytes) -> Owned:
        response = await self._ask("POST", "owned", part)
        return Owned(_json(response, list), response.headers.get("shardwise-state", ""))

    async def _wish(self, route: str, instance_id: str) -> Wish:
        return await self._told(Wish, "POST", route, json.dumps({"instance_id": instance_id}).encode(), is_safe=False)

    async def _told(self, kind: type[T], method: str, path: str, body: Optional[bytes] = None, *, is_safe: bool = True) -> T:
        return cast(T, _json(await self._ask(method, path, body, is_safe=is_safe)))

    async def _ask(self, method: str, path: str, body: Optional[bytes] = None, *, is_safe: bool = True) -> httpx.Response:
        """An answer with status 200, at the latest when the time is over."""
        error: ShardwiseError = Unavailable(f"{self._base} has not answered within {self._timeout} s")
        headers = {} if body is None else {"content-type": "application/json"}
        until, pause = time.monotonic() + self._timeout, 0.0
        for attempt in range(self._attempts):
            await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
            if time.monotonic() >= until:
                break
            pause = _pause(attempt)
            try:
                request = self._http.build_request(method, self._base + path, content=body, headers=headers)
                response = await _within(until - time.monotonic(), self._http.send(request))
                if response.status_code == 200:
                    return response
                error = problem = Problem(response)
                pause = max(pause, problem.retry_after)
                if not problem.passes or not is_safe:
                    break
            except httpx.TransportError as broken:
                error = Unavailable(f"{self._base} does not answer: {str(broken) or type(broken).__name__}")
                # Where no connection came about nothing has been asked.
                if not is_safe and not isinstance(broken, httpx.ConnectError):
                    break
            except httpx.InvalidURL as wrong:
                raise ShardwiseError(f"this cannot be asked by a path, ask by a list: {wrong}") from wrong
        raise error


async def _within(seconds: float, coming: Awaitable[T]) -> T:
    """What comes of it in time. It runs as a task of its own: below httpx a cancellation is lost now and then, and our caller's must not be."""
    task = asyncio.ensure_future(coming)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise httpx.ReadTimeout(f"nothing for {seconds:.1f} s")
        return task.result()
    finally:
        task.cancel()


def _json(response: httpx.Response, kind: type = dict) -> Any:
    try:
        value = response.json()
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise ShardwiseError(f"{response.url} answers something else: is a shardwise sidecar there?")
    return value


def _sendable(token: str) -> str:
    """The token without the line feed at the end of its file. httpx would show a header that it cannot send, and take it for an outage."""
    token = token[:-1] if token.endswith("\n") else token
    token = token[:-1] if token.endswith("\r") else token
    if not token or not all("!" <= sign <= "~" for sign in token):
        raise ShardwiseError("the token is not printable ASCII")
    return token


def _encoded(text: str) -> str:
    # Dots too: a segment of nothing else would lead elsewhere.
    return quote(text, safe="").replace(".", "%2E")


def _pause(tries: int) -> float:
    return min(_PAUSE_LONGEST, _PAUSE_FIRST * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)


def _parts(keys: Iterable[str]) -> Iterable[bytes]:
    """JSON lists of bounded size; a longer key is alone in its list."""
    part: list[bytes] = []
    size = 0
    for key in keys:
        text = json.dumps(key, ensure_ascii=False).encode()
        if part and size + len(text) > _LIST_BYTES:
            yield b"[" + b",".join(part) + b"]"
            part, size = [], 0
        part.append(text)
        size += len(text) + 1
    if part:
        yield b"[" + b",".join(part) + b"]"


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
