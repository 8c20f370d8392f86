"""Requests to members, as a worker's handlers get them, and a member's answers to them."""

import json
import re
from typing import Any, Literal, NamedTuple, Optional
from urllib.parse import parse_qsl

from ._hold import Fence

BODY_BYTES_MAX = 1024 * 1024
PROBLEM_JSON = "application/problem+json"
_PATH_BYTES_MAX = 256
_PART = re.compile(r"[A-Za-z0-9._~-]*[A-Za-z0-9_~-][A-Za-z0-9._~-]*")

Addressee = Literal["instance", "any", "owner", "holder", "session"]
# The values of the header `shardwise-to`.
ADDRESSEES: dict[str, Addressee] = {"instance": "instance", "any": "any", "owner": "owner", "holder": "holder", "session": "session"}


def is_path(path: str) -> bool:
    """Whether this is the path of a handler: parts of ASCII letters, digits and `-._~` with single slashes between them, none only of dots."""
    return len(path) <= _PATH_BYTES_MAX and all(_PART.fullmatch(part) for part in path.split("/"))


class Request(NamedTuple):
    """A request that a sidecar has forwarded. It does not name the caller, which was authenticated before."""

    method: str
    path: str
    # Whom it is for: this instance, the owner of a key, the holder of a name, or any member.
    to: Addressee
    query: str
    content_type: str
    body: bytes
    # The key of a request to its owner, and under exclusive ownership the fence under which the sidecar holds it.
    key: Optional[str] = None
    fence: Optional[Fence] = None
    # The name of a request to its holder, such as `singleton/leader`, and the epoch of a key or name.
    name: Optional[str] = None
    epoch: Optional[int] = None
    # The caller's key by which the handler recognises a request that it has handled before.
    idempotency_key: Optional[str] = None

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
