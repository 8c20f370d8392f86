"""Requests to the owner of a key and to the holder of a name, at the worker that has it.

A handler of a key works under the lease, as work that was entered does."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from typing import Any, Callable, NamedTuple, Optional, Protocol, Union

from ._entered import Entering
from ._errors import Lost, ShardwiseError
from ._hold import Fence, Hold
from ._lease import Lease
from ._requests import Answer, Refused, Request
from ._sync_loop import in_thread


class OwnedRequest(NamedTuple):
    """A request to a key, at the worker that owns the key."""

    key: str
    request: Request
    # For your own writes; `None` under eventual ownership.
    fence: Optional[Fence]
    # The work that was entered under the lease of `on_owned`; `None` without one.
    entered: Optional[Hold[Any]] = None


class HeldRequest(NamedTuple):
    """A request to a name, such as `singleton/leader`, at the worker that holds it. The epoch is for your own writes."""

    name: str
    request: Request
    epoch: int


# A handler returns an answer, or what `Answer.of` takes. It may be a coroutine function.
OwnedHandler = Callable[[OwnedRequest], object]
HeldHandler = Callable[[HeldRequest], object]


class BlockingLease(Protocol):
    """A lease of `shardwise_client.sync`."""

    def enter(self, key: str) -> AbstractContextManager[Hold[threading.Event]]: ...


OwnersLease = Union[Lease, BlockingLease]


class NotTaken(Exception):
    """No handler has seen the request, so the sidecar may bring it to another member."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(answer.text)


def under_lease(handler: OwnedHandler, lease: Optional[OwnersLease], in_threads: bool) -> Callable[[Request], Awaitable[object]]:
    """The handler of requests to keys, entered under the lease."""
    in_threads = in_threads and not inspect.iscoroutinefunction(handler)
    if lease is not None and not isinstance(lease, Lease) and not in_threads:
        raise ShardwiseError("a lease of shardwise_client.sync needs RequestHandlers(in_threads=True) and a handler that is not a coroutine function")

    async def answered(request: Request) -> object:
        if request.key is None:
            raise Refused(400, "bad-key", "The key is not valid", "the sidecar does not pass on this key, as a header cannot be that long")
        if isinstance(lease, Lease):
            return await _entered(handler, lease, request, request.key, in_threads)
        if lease is not None:
            return await asyncio.to_thread(_entered_in_thread, handler, lease, request, request.key)
        owned = OwnedRequest(request.key, request, request.fence)
        return await (asyncio.to_thread(handler, owned) if in_threads else _value(handler(owned)))

    return answered


def of_holder(handler: HeldHandler, in_threads: bool) -> Callable[[Request], Awaitable[object]]:
    """The handler of requests to names. The sidecar holds the name until the answer."""
    in_threads = in_threads and not inspect.iscoroutinefunction(handler)

    async def answered(request: Request) -> object:
        if request.name is None or request.epoch is None:
            raise Refused(400, "bad-request", "The request cannot be understood", "the sidecar does not say which name it holds, and under which epoch")
        held = HeldRequest(request.name, request, request.epoch)
        return await (asyncio.to_thread(handler, held) if in_threads else _value(handler(held)))

    return answered


async def _entered(handler: OwnedHandler, lease: Lease, request: Request, key: str, in_threads: bool) -> object:
    is_entered = False
    entering: Entering[Any] = Entering(lease.holdings, lambda: lease.holdings.slot(key), key, threading.Event if in_threads else asyncio.Event)
    try:
        async with entering as hold:
            owned = _owned(request, key, hold)
            is_entered = True
            if not in_threads:
                return await _value(handler(owned))
            values: list[object] = []
            # The slot is held until the thread has ended, also if nothing waits for the answer any more.
            await in_thread(hold, lambda: values.append(handler(owned)))
            return values[0]
    except ShardwiseError as error:
        if is_entered and not isinstance(error, Lost):
            raise
        raise _without_answer(error, is_entered) from error


def _entered_in_thread(handler: OwnedHandler, lease: BlockingLease, request: Request, key: str) -> object:
    is_entered = False
    try:
        with lease.enter(key) as hold:
            owned = _owned(request, key, hold)
            is_entered = True
            return handler(owned)
    except ShardwiseError as error:
        if is_entered and not isinstance(error, Lost):
            raise
        raise _without_answer(error, is_entered) from error


def _owned(request: Request, key: str, hold: Hold[Any]) -> OwnedRequest:
    if request.fence is not None and request.fence != hold.fence:
        raise ShardwiseError(f"the sidecar holds {key!r} under {request.fence}, and this worker has not heard of it yet")
    return OwnedRequest(key, request, hold.fence, hold)


def _without_answer(error: ShardwiseError, is_entered: bool) -> Exception:
    if is_entered:
        return Refused(502, "worker", "It is unknown if this was handled", str(error))
    return NotTaken(Answer.problem(421, "not-mine", "This worker does not hold the key", str(error)))


async def _value(value: object) -> object:
    return await value if inspect.isawaitable(value) else value
