"""The same client for programs without an event loop, such as Celery, Django and cron: the same names, with calls that block.

The client runs in the event loop of one background thread. Any thread may call. A process that forks makes its client after the fork; in the forked
process all calls of an earlier one raise. A policy of a sidecar has one live lease, so not each process has one: README, "Several processes".
"""

import ssl
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from typing import Callable, Optional, Union

from . import _client, _request_server
from ._answers import EnteredKey, Event, Explanation, Group, Holders, Owned, Owner, Ownership, Plan, Route, Wish
from ._ask import To
from ._errors import LeaseEnded
from ._handlers import RequestHandlers
from ._requests import Answer
from ._slots import list_of
from ._sync_lease import Entered, Entering, Lease, OwnedRun, Run
from ._sync_loop import Loop
from ._sync_progress import Progress

__all__ = ["Client", "Entered", "Entering", "Lease", "OwnedRun", "Progress", "RequestServer", "Run"]


class Client:
    """See `shardwise_client.Client`. It has one background thread, which ends with `close` or the block."""

    def __init__(self, policy: str, base_url: str = "http://127.0.0.1:8087", *, token: Optional[str] = None, timeout: float = 15.0,
                 attempts: int = 3, silence: float = 10.0, verify: Union[ssl.SSLContext, bool] = True) -> None:  # fmt: skip
        self._client = _client.Client(policy, base_url, token=token, timeout=timeout, attempts=attempts, silence=silence, verify=verify)
        self._loop = Loop()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections and ends its thread."""
        if self._loop.is_running:
            self._loop.call(self._client.close())
            self._loop.close()

    def lease(self, ttl: float = 5.0, *, reopen: bool = True, on_ended: Optional[Callable[[LeaseEnded], object]] = None,
              within: Optional[float] = None) -> Lease:  # fmt: skip
        """The lease of this worker, for `with`. `on_ended` is called in the background thread and must not block."""
        return Lease(self._loop, lambda: self._client.lease(ttl, reopen=reopen, on_ended=on_ended, within=within))

    def owned(self, keys: Iterable[str], *, lease: Optional[str] = None) -> Owned:
        """The keys that this worker owns, in their order, and its state. A process that does not keep the lease gives its id as `lease`."""
        # The list is made here, as reading it may block.
        return self._loop.call(self._client.owned(list_of(keys), lease=lease))

    def enter(self, keys: Iterable[str], *, lease: str) -> list[EnteredKey]:
        """Those of the keys in which work may begin now, for processes that do not keep the lease: see `shardwise_client.Client.enter`."""
        return self._loop.call(self._client.enter(list_of(keys), lease=lease))

    def owner(self, key: str) -> Owner:
        """The key's owner in the newest view, and whether this worker owns it right now."""
        return self._loop.call(self._client.owner(key))

    def explain(self, key: str) -> Explanation:
        """Explains the key's owner in readable form."""
        return self._loop.call(self._client.explain(key))

    def ownership(self) -> Ownership:
        """This worker's ownership, and how long it lasts without a renewal."""
        return self._loop.call(self._client.ownership())

    def members(self) -> Group:
        """The members of the group."""
        return self._loop.call(self._client.members())

    def holders(self) -> Holders:
        """The holder of each slot and name; exclusive ownership only."""
        return self._loop.call(self._client.holders())

    def plan(self, *, join: Iterable[tuple[str, int]] = (), leave: Iterable[str] = ()) -> Plan:
        """What would move if `join` (id and weight) joined and `leave` left; changes nothing."""
        return self._loop.call(self._client.plan(join=list(join), leave=list(leave)))

    def drain(self, instance_id: str) -> Wish:
        """Drains a member. Needs the token."""
        return self._loop.call(self._client.drain(instance_id))

    def undrain(self, instance_id: str) -> Wish:
        """Ends a drain. Needs the token."""
        return self._loop.call(self._client.undrain(instance_id))

    def ask(self, to: To, path: str, *, method: Optional[str] = None, query: Optional[Mapping[str, str]] = None, json: Optional[object] = None,
            body: Optional[bytes] = None, content_type: Optional[str] = None, within: float = 10.0,
            idempotency_key: Optional[str] = None) -> Answer:  # fmt: skip
        """Sends a request to a destination: see `shardwise_client.Client.ask`."""
        return self._loop.call(self._client.ask(to, path, method=method, query=query, json=json, body=body, content_type=content_type, within=within,
                                                idempotency_key=idempotency_key))  # fmt: skip

    def route(self, key: str) -> Route:
        """Where a request to the key would go now, as the sidecar knows it."""
        return self._loop.call(self._client.route(key))

    def instance(self, instance_id: str, path: str, *, method: str = "GET", query: Optional[Mapping[str, str]] = None,
                 json: Optional[object] = None, body: Optional[bytes] = None, content_type: Optional[str] = None) -> Answer:  # fmt: skip
        """Asks one member: its own answer, of any status."""
        asked = self._client.instance(instance_id, path, method=method, query=query, json=json, body=body, content_type=content_type)
        return self._loop.call(asked)

    def any(self, path: str, *, method: str = "GET", query: Optional[Mapping[str, str]] = None, json: Optional[object] = None,
            body: Optional[bytes] = None, content_type: Optional[str] = None) -> Answer:  # fmt: skip
        """Asks any member that works."""
        return self._loop.call(self._client.any(path, method=method, query=query, json=json, body=body, content_type=content_type))

    def rebalances(self, last_event_id: Optional[str] = None) -> Generator[Event, None, None]:
        """What moves, as it happens, until the iteration is left."""
        events = self._client.rebalances(last_event_id)
        try:
            while True:
                yield self._loop.call(_next(events))
        finally:
            self._loop.call(events.aclose())


class RequestServer:
    """See `shardwise_client.RequestServer`. Handlers that are not coroutine functions may block if they were made with `in_threads=True`."""

    def __init__(self, handlers: RequestHandlers, host: str = "127.0.0.1", port: int = 0, prefix: str = "") -> None:
        self._server, self._loop = _request_server.RequestServer(handlers, host, port, prefix), Loop()

    def __enter__(self) -> "RequestServer":
        try:
            self._loop.call(self._server.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where it answers, for `--forward-to`."""
        return self._server.url

    def close(self) -> None:
        """Ends all connections and its thread."""
        if self._loop.is_running:
            self._loop.call(self._server.close())
            self._loop.close()


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await events.__anext__()
