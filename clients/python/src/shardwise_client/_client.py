"""Asks one sidecar about one policy."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Callable, Optional, Union, cast
from urllib.parse import unquote, urlencode

from ._answers import EnteredKey, Event, Explanation, Group, Holders, Owned, Owner, Ownership, Plan, Rebalance, Route, Wish
from ._ask import Asker, To, sending
from ._clock import pause_of
from ._errors import LeaseEnded, NotOwning, ShardwiseError, Unavailable
from ._http import Http, encoded, json_of
from ._lease import Lease
from ._lease_calls import LEASE, HttpLeaseCalls, under
from ._requests import Answer, is_path
from ._slots import list_of

# The most bytes of a list in one request. The sidecar buffers nothing, and httpx sends the whole body before it reads.
_LIST_BYTES = 512 * 1024
_EVENT_BYTES = 1024 * 1024
_OWNING = ("active", "stale", "unsharded")


class Client:
    """Asks one sidecar about one policy.

    `timeout` is for a whole call in seconds, retries included; of `owned_stream` for each part. What changes nothing is tried `attempts` times
    while the sidecar is away, busy or no member yet; `drain`, `undrain` and a POST only where the try before cannot have arrived. The sidecar
    says something every 3 s: a follower that hears nothing for `silence` seconds takes it for lost. `verify` is what httpx takes: a context with
    the CA of a sidecar beyond loopback. Proxies of the environment are not used.
    """

    def __init__(self, policy: str, base_url: str = "http://127.0.0.1:8087", *, token: Optional[str] = None, timeout: float = 15.0,
                 attempts: int = 3, silence: float = 10.0, verify: Union[ssl.SSLContext, bool] = True) -> None:  # fmt: skip
        self._http = Http(policy, base_url, token=token, timeout=timeout, attempts=attempts, verify=verify)
        self._asker = Asker(self._http)
        self._timeout, self._silence = timeout, silence

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        await self._asker.close()
        await self._http.close()

    def lease(self, ttl: float = 5.0, *, reopen: bool = True, on_ended: Optional[Callable[[LeaseEnded], object]] = None,
              within: Optional[float] = None) -> Lease:  # fmt: skip
        """The lease of this worker under exclusive ownership, for `async with`: it is opened, renewed every third of `ttl` seconds (1 to 60), and
        ended at the end of the block. Waits up to `within` seconds (default: the timeout and `ttl`) while another lease is live: a policy of a sidecar
        has one at a time. Other processes of this worker ask `enter` with its id.

        If it ends, `on_ended` is called, all work under it is cancelled, and another one is opened, unless `reopen` is false."""
        return Lease(HttpLeaseCalls(self._http), ttl, reopen=reopen, on_ended=on_ended, within=self._timeout + ttl if within is None else within)

    async def owned(self, keys: Iterable[str], *, lease: Optional[str] = None) -> Owned:
        """The keys that this worker owns, in their order. Each was owned when its part of the list was answered. In a state without ownership
        the list is empty, also if earlier parts had keys.

        Under exclusive ownership use `owned` of the lease; another process than the one that keeps it gives its id as `lease`."""
        until, mine, state = time.monotonic() + self._timeout, cast("list[str]", []), ""
        async for part in _parts(list_of(keys)):
            found, state = await self._owned(part, until, lease)
            if state not in _OWNING:
                return Owned([], state)
            mine += found
        return Owned(mine, state)

    async def owned_stream(self, keys: Union[Iterable[str], AsyncIterable[str]], *, lease: Optional[str] = None) -> AsyncGenerator[str, None]:
        """Like `owned`, for a list of any length; one part at a time is in memory. Raises `NotOwning` as soon as this worker owns nothing."""
        if isinstance(keys, (str, bytes)):
            list_of(keys)
        async for part in _parts(keys):
            found, state = await self._owned(part, time.monotonic() + self._timeout, lease)
            if state not in _OWNING:
                raise NotOwning(state)
            for mine in found:
                yield mine

    async def enter(self, keys: Iterable[str], *, lease: str) -> list[EnteredKey]:
        """Those of at most 1,000 keys in which work may begin now, each with its fence and for how long it is held, counted from before this call.

        For the processes of this worker that do not keep the lease: they give its id, and ask before each piece of work. The process that keeps it
        does not know of that work. So it gives a slot back while others work there, unless it has entered the key for as long as they do."""
        body = json.dumps({"keys": list_of(keys)}).encode()
        return cast("list[EnteredKey]", json_of(await under(self._http.ask("POST", "enter", body, headers={LEASE: lease})), list))

    async def owner(self, key: str) -> Owner:
        """The key's owner in the newest view, and whether this worker owns it right now, by its own deadline."""
        return cast(Owner, await self._http.fetch("GET", f"owner/{encoded(key)}"))

    async def explain(self, key: str) -> Explanation:
        """Explains the key's owner in readable form."""
        return cast(Explanation, await self._http.fetch("GET", f"explain/{encoded(key)}"))

    async def ownership(self) -> Ownership:
        """This worker's ownership, and how long it lasts without a renewal."""
        return cast(Ownership, await self._http.fetch("GET", "ownership"))

    async def members(self) -> Group:
        """The members of the group."""
        return cast(Group, await self._http.fetch("GET", "members"))

    async def holders(self) -> Holders:
        """The holder of each slot and name, its epoch and since when; exclusive ownership only."""
        return cast(Holders, await self._http.fetch("GET", "holders"))

    async def plan(self, *, join: Iterable[tuple[str, int]] = (), leave: Iterable[str] = ()) -> Plan:
        """What would move if `join` (id and weight) joined and `leave` left; changes nothing."""
        joining = [{"instance_id": id_, "weight": weight} for id_, weight in join]
        return cast(Plan, await self._http.fetch("POST", "plan", {"join": joining, "leave": list(leave)}))

    async def drain(self, instance_id: str) -> Wish:
        """Drains a member: it stays registered and owns no slots, even after restarts. Needs the token."""
        return cast(Wish, await self._http.fetch("POST", "drain", {"instance_id": instance_id}, is_safe=False))

    async def undrain(self, instance_id: str) -> Wish:
        """Ends a drain: the member takes its share again. Needs the token."""
        return cast(Wish, await self._http.fetch("POST", "undrain", {"instance_id": instance_id}, is_safe=False))

    async def ask(self, to: To, path: str, *, method: Optional[str] = None, query: Optional[Mapping[str, str]] = None, json: Optional[object] = None,
                  body: Optional[bytes] = None, content_type: Optional[str] = None, within: float = 10.0,
                  idempotency_key: Optional[str] = None) -> Answer:  # fmt: skip
        """Sends a request to a destination, such as `To.owner(key)`, and returns the answer of its member, of any status. With `json` or `body` it is
        a POST, else a GET.

        Until `within` seconds are over (at most 300) it goes on to another member as long as it was certainly not handled. `NotHandled` (`Unsent`,
        `NotMine`, `Busy`) says that no member took it in time. `Unknown` says that it may have been handled. A GET, and a request with an
        `idempotency_key`, is repeatable: it is sent again even then. A `Problem` says that the request or its destination is refused; it was not
        handled. If the task is cancelled, the handler is ended."""
        return await self._asker.ask(sending(to, path, method=method, query=query, value=json, body=body, content_type=content_type, within=within,
                                             idempotency_key=idempotency_key))  # fmt: skip

    async def route(self, key: str) -> Route:
        """Where a request to the key would go now, as the sidecar knows it; the member that gets the request decides. Changes nothing."""
        return cast(Route, await self._http.fetch("GET", f"route?{urlencode({'key': key})}"))

    async def instance(self, instance_id: str, path: str, *, method: str = "GET", query: Optional[Mapping[str, str]] = None,
                       json: Optional[object] = None, body: Optional[bytes] = None, content_type: Optional[str] = None) -> Answer:  # fmt: skip
        """Asks one member: its own answer, of any status. `Problem` if the sidecar or the way there refuses. A POST needs the token."""
        return await self._forwarded(f"instances/{encoded(instance_id)}/{_path(path)}", method, query, json, body, content_type)

    async def any(self, path: str, *, method: str = "GET", query: Optional[Mapping[str, str]] = None, json: Optional[object] = None,
                  body: Optional[bytes] = None, content_type: Optional[str] = None) -> Answer:  # fmt: skip
        """Asks any member that works: `answer.instance` says which one answered."""
        return await self._forwarded(f"any/{_path(path)}", method, query, json, body, content_type)

    async def rebalances(self, last_event_id: Optional[str] = None) -> AsyncGenerator[Event, None]:
        """What moves, as it happens, until the iteration is left or cancelled. It goes on behind the event of that id, and by itself behind the last
        one after each break of the connection. A refusal that does not pass by itself is raised."""
        last, is_lost, tries = last_event_id, False, 0
        while True:
            headers = {b"accept": b"text/event-stream", **({b"last-event-id": last.encode()} if last else {})}
            error: ShardwiseError = Unavailable(f"{self._http.base}rebalances has ended")
            pieces = self._http.stream("rebalances", headers, self._silence)
            try:
                await pieces.__anext__()
                if is_lost or last is None:
                    yield Event("gap")
                is_lost, tries = False, 0
                async for fields in _fields(pieces):
                    if fields.get("event") == "gap":
                        yield Event("gap")
                    elif fields.get("event") == "rebalance":
                        rebalance: Rebalance = json.loads(fields["data"])
                        last = rebalance["id"]
                        yield Event("rebalance", rebalance)
            except (ShardwiseError, ValueError) as broken:
                error = self._http.error(broken)
                if not error.passes:
                    raise error from broken
            finally:
                await pieces.aclose()
            if not is_lost:
                is_lost = True
                yield Event("lost", error=error)
            await asyncio.sleep(pause_of(tries))
            tries += 1

    async def _owned(self, part: bytes, until: float, lease: Optional[str]) -> Owned:
        if lease is None:
            response = await self._http.ask("POST", "owned", part, until=until)
        else:
            response = await under(self._http.ask("POST", "owned", part, until=until, headers={LEASE: lease}))
        return Owned(json_of(response, list), response.headers.get("shardwise-state") or "unknown")

    async def _forwarded(self, path: str, method: str, query: Optional[Mapping[str, str]], value: Optional[object], body: Optional[bytes],
                         content_type: Optional[str]) -> Answer:  # fmt: skip
        method = method.upper()
        if method not in ("GET", "POST"):
            raise ShardwiseError(f"a request to a member is a GET or a POST, not {method}")
        if value is not None:
            body, content_type = json.dumps(value).encode(), content_type or "application/json"
        response = await self._http.ask(method, path + (f"?{urlencode(query)}" if query else ""), body, is_safe=method == "GET",
                                        content_type=content_type or "application/octet-stream", any_of_a_member=True)  # fmt: skip
        by = unquote(response.headers.get("shardwise-instance", ""))
        return Answer(response.content, response.headers.get("content-type", "application/octet-stream"), response.status_code, by)



def _path(path: str) -> str:
    if not is_path(path):
        raise ShardwiseError(f"{path!r:.300} is not a path of a member: write parts of letters, digits and -._~ with single slashes between them")
    return path


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
