"""Requests to members by name, and a member's answers to them."""

import asyncio
import inspect
import json
import logging
import re
from typing import Any, Callable, Literal, NamedTuple, Optional, TypeVar
from urllib.parse import parse_qsl

from ._errors import ShardwiseError

_log = logging.getLogger("shardwise_client")
BODY_BYTES_MAX = 1024 * 1024
PROBLEM_JSON = "application/problem+json"
_PATH_BYTES_MAX, _HANDLERS_MAX, _AT_ONCE_MAX, _NAMED = 256, 256, 64, 20
# How long a handler may take, in seconds; the sidecar waits a little longer.
_ANSWER_WITHIN = 10.0
_PART = re.compile(r"[A-Za-z0-9._~-]*[A-Za-z0-9_~-][A-Za-z0-9._~-]*")

To = Literal["instance", "any"]


def is_path(path: str) -> bool:
    """Whether this is the path of a handler: parts of ASCII letters, digits and `-._~` with single slashes between them, none only of dots."""
    return len(path) <= _PATH_BYTES_MAX and all(_PART.fullmatch(part) for part in path.split("/"))


class Request(NamedTuple):
    """A request that a sidecar has forwarded. It does not name the caller, which was authenticated before."""

    method: str
    path: str
    # Whether it is for this instance, or any member may answer it.
    to: To
    query: str
    content_type: str
    body: bytes

    @property
    def args(self) -> dict[str, str]:
        """The query's names and values; of a repeated name the last value."""
        return dict(parse_qsl(self.query, keep_blank_values=True))

    def json(self) -> Any:
        """The body as JSON. What it raises for a body that is none is answered with 400."""
        try:
            return json.loads(self.body)
        except ValueError as broken:
            raise Refused(400, "bad-request", "The request cannot be understood", f"the body: {broken}") from broken


class Answer(NamedTuple):
    """An answer of a member. Its status is the member's, from 200 to 299 or from 400 to 599."""

    body: bytes
    content_type: str = "application/octet-stream"
    status: int = 200
    # The member that has answered, if this was received.
    instance: str = ""

    @classmethod
    def of(cls, value: object) -> "Answer":
        """An answer with a text, bytes, or a value as JSON."""
        if isinstance(value, Answer):
            return value
        if isinstance(value, bytes):
            return cls(value)
        if isinstance(value, str):
            return cls(value.encode(), "text/plain; charset=utf-8")
        return cls(json.dumps(value).encode(), "application/json")

    @classmethod
    def problem(cls, status: int, kind: str, title: str, detail: str) -> "Answer":
        """A refusal as in RFC 9457: a stable `kind`, its title, and the detail of this case."""
        problem = {"type": f"urn:shardwise:problem:{kind}", "title": title, "status": status, "detail": detail}
        return cls(json.dumps(problem).encode(), PROBLEM_JSON, status)

    @property
    def is_ok(self) -> bool:
        """Whether its status is from 200 to 299."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON; `ValueError` if it is none."""
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")


class Refused(Exception):
    """Raised by a handler: it answers with that problem."""

    def __init__(self, status: int, kind: str, title: str, detail: str) -> None:
        self.answer = Answer.problem(status, kind, title, detail)
        super().__init__(detail)


# A handler returns an answer, or what `Answer.of` takes. It may be a coroutine function.
Handler = Callable[[Request], object]
H = TypeVar("H", bound=Handler)


class RequestHandlers:
    """This worker's handlers. A `RequestServer` answers the sidecar with them, which runs with `--forward-to`.

    Handlers for this instance and handlers that any member may answer are apart: a handler for one instance never answers `any`. The sidecar
    answers `status` of an instance itself unless there is a handler, and everything below `shardwise`. With `in_threads` handlers that are no
    coroutine functions run in threads, so that they may block.
    """

    def __init__(self, *, in_threads: bool = False) -> None:
        self._in_threads = in_threads
        self._handlers: dict[To, dict[str, Handler]] = {"instance": {}, "any": {}}
        self._health: Optional[Callable[[], object]] = None
        self._at_once = 0

    def on_request(self, path: str) -> Callable[[H], H]:
        """Answers requests for this instance at that path: `@handlers.on_request("cache/size")` before a function or a coroutine function."""
        return self._decorator("instance", path)

    def on_any(self, path: str) -> Callable[[H], H]:
        """Answers requests at that path that any member may answer."""
        return self._decorator("any", path)

    def on_health(self, check: Callable[[], object]) -> None:
        """Answers `GET /healthz` (`--worker-health`) with 200, or 503 if `check` raises. Without it the answer is 200 while the loop runs."""
        self._health = check

    def _decorator(self, to: To, path: str) -> Callable[[H], H]:
        if not is_path(path) or path.split("/")[0] == "shardwise":
            raise ShardwiseError(f"a handler at {path!r}: write parts of letters, digits and -._~ with single slashes between them, the first not shardwise")

        def register(handler: H) -> H:
            handlers = self._handlers[to]
            if len(handlers) >= _HANDLERS_MAX and path not in handlers:
                raise ShardwiseError(f"a handler at {path!r}: there are {_HANDLERS_MAX} already, and that is the most")
            handlers[path] = handler
            return handler

        return register

    async def healthy(self) -> Answer:
        """The answer to the sidecar's check."""
        try:
            if self._health is not None:
                await asyncio.wait_for(self._called(self._health), _ANSWER_WITHIN)
        except Exception as error:
            return Answer.problem(503, "unhealthy", "This worker is not well", f"{error!r}")
        return Answer.of("ok")

    async def answer(self, request: Request) -> Answer:
        """The answer of the handler there, within the limits of time and of concurrent requests."""
        handler = self._handlers[request.to].get(request.path)
        if handler is None:
            known = sorted(self._handlers[request.to])[:_NAMED]
            detail = f"this worker answers nothing at {request.path!r:.70} to {request.to}; it answers at: {', '.join(known) or 'nothing'}"
            return Answer.problem(404, "not-found", "Not found", detail)
        if self._at_once >= _AT_ONCE_MAX:
            return Answer.problem(429, "too-many", "Too many requests", f"this worker answers {_AT_ONCE_MAX} requests at a time already; try again")
        self._at_once += 1
        try:
            return _checked(Answer.of(await asyncio.wait_for(self._called(handler, request), _ANSWER_WITHIN)))
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


def _failed(detail: str) -> Answer:
    return Answer.problem(500, "handler-failed", "The worker's handler failed", detail)


def _checked(answer: Answer) -> Answer:
    """The answer, or an error if it may not be sent."""
    if not (200 <= answer.status < 300 or 400 <= answer.status < 600):
        return _failed(f"its status is {answer.status}; from 200 to 299 and from 400 to 599 are allowed")
    if len(answer.body) > BODY_BYTES_MAX:
        return _failed(f"its answer has {len(answer.body)} bytes; at most {BODY_BYTES_MAX} are allowed")
    if not answer.content_type or not all(" " <= sign <= "~" for sign in answer.content_type):
        return _failed("the type of its answer is no media type")
    return answer
