"""The requests of a lease, as docs/reference/http.md has them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, Protocol, TypeVar, cast

import httpx

from ._answers import EnteredKey, LeaseAnswer
from ._errors import LeaseEnded, Problem, ShardwiseError, Unavailable
from ._http import Http, encoded, json_of

LEASE = "shardwise-lease"
# The table of 65,536 slots has some 6 MiB.
_LINE_BYTES = 16 * 1024 * 1024
# The stream says something every second.
_SILENCE = 3.5
T = TypeVar("T")


class LeaseCalls(Protocol):
    """What a lease asks of its sidecar. `within` is in seconds. Each raises `LeaseEnded` if the lease is not live, but for `open`. `place` is the URL of
    the sidecar, with the policy."""

    place: str

    async def open(self, ttl_ms: int, within: float) -> LeaseAnswer: ...

    async def renew(self, lease: str, seen: int, within: float) -> LeaseAnswer: ...

    async def end(self, lease: str, within: float) -> None: ...

    def grants(self, lease: str) -> AsyncGenerator[dict[str, Any], None]: ...

    async def finished(self, lease: str, grants: list[int], within: float) -> int: ...

    async def enter(self, lease: str, keys: list[str], within: float) -> list[EnteredKey]: ...

    async def offer(self, lease: str, names: dict[str, Any], within: float) -> None: ...


class HttpLeaseCalls:
    """The calls over HTTP."""

    def __init__(self, http: Http) -> None:
        self._http, self.place = http, http.base

    async def open(self, ttl_ms: int, within: float) -> LeaseAnswer:
        return _lease(await self._http.once("POST", "leases", {"ttl_ms": ttl_ms}, within=within))

    async def renew(self, lease: str, seen: int, within: float) -> LeaseAnswer:
        # Before the first table nothing was seen.
        body = {"seen": seen} if seen else {}
        return _lease(await under(self._http.once("PUT", f"leases/{encoded(lease)}", body, within=within)))

    async def end(self, lease: str, within: float) -> None:
        await under(self._http.once("DELETE", f"leases/{encoded(lease)}", within=within))

    async def grants(self, lease: str) -> AsyncGenerator[dict[str, Any], None]:
        pieces = self._http.stream("grants", {LEASE.encode(): lease.encode(), b"accept": b"application/x-ndjson"}, _SILENCE)
        try:
            async for line in _lines(pieces):
                yield line
        except Problem as problem:
            raise _meant(problem) from problem
        finally:
            await pieces.aclose()

    async def finished(self, lease: str, grants: list[int], within: float) -> int:
        asked = self._http.once("POST", "grants/finished", {"grants": grants}, within=within, headers={LEASE: lease})
        return int(json_of(await under(asked)).get("finished", 0))

    async def enter(self, lease: str, keys: list[str], within: float) -> list[EnteredKey]:
        asked = self._http.once("POST", "enter", {"keys": keys}, within=within, headers={LEASE: lease})
        return cast("list[EnteredKey]", json_of(await under(asked), list))

    async def offer(self, lease: str, names: dict[str, Any], within: float) -> None:
        await under(self._http.once("PUT", "names", names, within=within, headers={LEASE: lease}))


def _lease(response: httpx.Response) -> LeaseAnswer:
    answer = json_of(response)
    if isinstance(answer.get("id"), str) and all(isinstance(answer.get(name), int) for name in ("ttl_ms", "valid_ms", "version")):
        return cast(LeaseAnswer, answer)
    raise ShardwiseError(f"{response.url} answers something else than a lease: is a shardwise sidecar of this version there?")


async def under(asked: Awaitable[T]) -> T:
    """The end of the lease as `LeaseEnded`."""
    try:
        return await asked
    except Problem as problem:
        raise _meant(problem) from problem


def _meant(problem: Problem) -> ShardwiseError:
    is_over = problem.status == 410 or problem.kind in ("lease-ended", "lease-missing")
    return LeaseEnded(problem.detail or problem.title) if is_over else problem


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """JSON objects, one a line. Only a line feed ends a line."""
    kept = bytearray()
    async for piece in pieces:
        *ends, rest = piece.split(b"\n")
        for end in ends:
            kept += end
            if kept.strip():
                yield _object(kept)
            kept = bytearray()
        kept += rest
        if len(kept) > _LINE_BYTES:
            raise Unavailable("a line of grants without an end: is a shardwise sidecar there?")


def _object(line: bytearray) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as broken:
        raise Unavailable(f"a line of grants cannot be read: {broken}") from broken
    if not isinstance(value, dict):
        raise Unavailable("a line of grants is not an object: is a shardwise sidecar there?")
    return value
