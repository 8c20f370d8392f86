"""This worker's handlers of requests, and the limits under which they answer."""

import asyncio
import inspect
import logging
from typing import Any, Callable, Optional, TypeVar

from ._errors import ShardwiseError
from ._owned_requests import HeldHandler, NotTaken, OwnedHandler, OwnersLease, of_holder, under_lease
from ._requests import BODY_BYTES_MAX, Addressee, Answer, Refused, Request, is_path

_log = logging.getLogger("shardwise_client")
_HANDLERS_MAX, _AT_ONCE_MAX, _NAMED = 256, 64, 20
# A caller waits so long at most, in seconds; the sidecar ends the connection when this one's does not wait any more. And how long a check may take.
_ANSWER_WITHIN, _HEALTHY_WITHIN = 300.0, 10.0

# A handler returns an answer, or what `Answer.of` takes. It may be a coroutine function.
Handler = Callable[[Request], object]
H = TypeVar("H", bound=Handler)
K = TypeVar("K", bound=OwnedHandler)
N = TypeVar("N", bound=HeldHandler)
T = TypeVar("T")


class RequestHandlers:
    """This worker's handlers. A `RequestServer` answers the sidecar with them, which runs with `--forward-to`.

    Handlers for this instance, for keys, for names and for requests that any member may answer are apart: a handler for one instance never answers `any`.
    The sidecar answers `status` of an instance itself unless there is a handler, and everything below `shardwise`. With `in_threads` handlers that are no
    coroutine functions run in threads, so that they may block.
    """

    def __init__(self, *, in_threads: bool = False) -> None:
        self._in_threads = in_threads
        self._handlers: dict[Addressee, dict[str, Handler]] = {"instance": {}, "any": {}, "owner": {}, "holder": {}, "session": {}}
        self._health: Optional[Callable[[], object]] = None
        self._at_once = 0

    def on_request(self, path: str) -> Callable[[H], H]:
        """Answers requests for this instance at that path: `@handlers.on_request("cache/size")` before a function or a coroutine function."""
        return self._decorator("instance", path, _unchanged)

    def on_any(self, path: str) -> Callable[[H], H]:
        """Answers requests at that path that any member may answer."""
        return self._decorator("any", path, _unchanged)

    def on_owned(self, path: str, lease: Optional[OwnersLease] = None) -> Callable[[K], K]:
        """Answers requests to keys at that path: `@handlers.on_owned("rooms/say", lease)` before a function or coroutine function of an `OwnedRequest`.

        With this worker's `lease` the handler works as inside `lease.enter(key)`: the slot moves once the handler has ended; if it is lost before, the
        handler is cancelled, and the caller learns that the outcome is unknown. If this worker does not hold the key, no handler runs, and the sidecar
        brings the request to the member that does. A process of this worker that does not keep the lease leaves `lease` out, and has the fence alone.
        A lease of `shardwise_client.sync` needs `in_threads`."""

        def made(handler: OwnedHandler) -> Handler:
            return under_lease(handler, lease, self._in_threads)

        return self._decorator("owner", path, made)

    def on_held(self, path: str) -> Callable[[N], N]:
        """Answers requests to names that this worker holds, such as `singleton/leader`, at that path: before a function or coroutine function of a
        `HeldRequest`. The name moves once the handler has ended; if it is lost before, the handler is cancelled."""

        def made(handler: HeldHandler) -> Handler:
            return of_holder(handler, self._in_threads)

        return self._decorator("holder", path, made)

    def on_health(self, check: Callable[[], object]) -> None:
        """Answers `GET /healthz` (`--worker-health`) with 200, or 503 if `check` raises. Without it the answer is 200 while the loop runs."""
        self._health = check

    def _decorator(self, to: Addressee, path: str, made: Callable[[Any], Handler]) -> Callable[[T], T]:
        if not is_path(path) or path.split("/")[0] == "shardwise":
            raise ShardwiseError(f"a handler at {path!r}: write parts of letters, digits and -._~ with single slashes between them, the first not shardwise")

        def register(handler: T) -> T:
            handlers = self._handlers[to]
            if len(handlers) >= _HANDLERS_MAX and path not in handlers:
                raise ShardwiseError(f"a handler at {path!r}: there are {_HANDLERS_MAX} already, and that is the most")
            handlers[path] = made(handler)
            return handler

        return register

    async def healthy(self) -> Answer:
        """The answer to the sidecar's check."""
        try:
            if self._health is not None:
                await asyncio.wait_for(self._called(self._health), _HEALTHY_WITHIN)
        except Exception as error:
            return Answer.problem(503, "unhealthy", "This worker is not well", f"{error!r}")
        return Answer.of("ok")

    async def answer(self, request: Request) -> Answer:
        """The answer of the handler there, within the limits of time and of concurrent requests. `NotTaken` if no handler has seen the request."""
        handler = self._handlers[request.to].get(request.path)
        if handler is None:
            known = sorted(self._handlers[request.to])[:_NAMED]
            detail = f"this worker answers nothing at {request.path!r:.70} to {request.to}; it answers at: {', '.join(known) or 'nothing'}"
            return Answer.problem(404, "not-found", "Not found", detail)
        if self._at_once >= _AT_ONCE_MAX:
            detail = f"this worker answers {_AT_ONCE_MAX} requests at a time already; try again"
            raise NotTaken(Answer.problem(429, "too-many", "Too many requests", detail))
        self._at_once += 1
        try:
            return _checked(Answer.of(await asyncio.wait_for(self._called(handler, request), _ANSWER_WITHIN)))
        except NotTaken:
            raise
        except Refused as refused:
            return refused.answer
        except asyncio.TimeoutError:
            return Answer.problem(504, "too-late", "No answer in time", f"it has not answered within {_ANSWER_WITHIN:.0f} s and was ended")
        except Exception:
            _log.exception("the handler of %r failed; the request was answered with 500", request.path)
            return _failed("it raised an error; its own log says more")
        finally:
            self._at_once -= 1

    async def _called(self, function: Callable[..., object], *args: object) -> object:
        if self._in_threads and not inspect.iscoroutinefunction(function):
            return await asyncio.to_thread(function, *args)
        value = function(*args)
        return await value if inspect.isawaitable(value) else value


def _unchanged(handler: Handler) -> Handler:
    return handler


def _failed(detail: str) -> Answer:
    return Answer.problem(500, "handler-failed", "The worker's handler failed", detail)


def _checked(answer: Answer) -> Answer:
    """The answer, or an error if it may not be sent."""
    if not (200 <= answer.status < 300 or 400 <= answer.status < 600):
        return _failed(f"its status is {answer.status}; from 200 to 299 and from 400 to 599 are allowed")
    if len(answer.body) > BODY_BYTES_MAX:
        return _failed(f"its answer has {len(answer.body)} bytes; at most {BODY_BYTES_MAX} are allowed")
    if not answer.content_type or not all(" " <= sign <= "~" for sign in answer.content_type):
        return _failed("the type of its answer is not a media type")
    return answer
