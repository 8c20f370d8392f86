"""Answers the sidecar of this machine: HTTP/1.1 on loopback, for `shardwise serve --forward-to` and `--worker-health`."""

import asyncio
import ipaddress
import logging
import re
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple, Optional
from urllib.parse import unquote

from ._errors import ShardwiseError
from ._handlers import RequestHandlers
from ._hold import Fence
from ._owned_requests import NotTaken
from ._requests import ADDRESSEES, BODY_BYTES_MAX, Addressee, Answer, Request, is_path

_log = logging.getLogger("shardwise_client")
_HEAD_BYTES_MAX, _QUERY_BYTES_MAX, _CONNECTIONS_MAX = 16 * 1024, 4_096, 256
# A head or body that is not complete after so many seconds ends the connection, and so does no next request.
_READ_WITHIN, _IDLE_WITHIN = 10.0, 60.0
_OURS, _TO = "shardwise-", "shardwise-to"
# In an answer: no handler has seen the request, so the sidecar may bring it to another member.
_REFUSED = ["shardwise-peer: refused", "retry-after: 1"]


class _Bad(Exception):
    def __init__(self, status: int, detail: str) -> None:
        self.answer = Answer.problem(status, "bad-request", HTTPStatus(status).phrase, detail)
        super().__init__(detail)


class _Head(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[str, str]

    @property
    def length(self) -> int:
        text = self.headers.get("content-length", "0")
        if "transfer-encoding" in self.headers or not re.fullmatch("[0-9]{1,9}", text):
            raise _Bad(411, "a request has a content-length here")
        if int(text) > BODY_BYTES_MAX:
            raise _Bad(413, f"a body has at most {BODY_BYTES_MAX} bytes")
        return int(text)

    def request(self, path: str, to: Addressee, body: bytes) -> Request:
        """What the sidecar says of a request."""
        key, name, slot, epoch = (self.headers.get(f"{_OURS}{header}") for header in ("key", "name", "slot", "epoch"))
        try:
            fence = None if slot is None or epoch is None else Fence(int(slot), int(epoch))
            return Request(self.method, path, to, self.query, self.headers.get("content-type", ""), body, key=_decoded(key), fence=fence,
                           name=_decoded(name), epoch=None if epoch is None else int(epoch),
                           idempotency_key=self.headers.get("idempotency-key"))  # fmt: skip
        except ValueError as broken:
            raise _Bad(400, f"a header of the sidecar cannot be read: {broken}") from broken


class _Connection:
    """One connection. While a handler works, the first byte of the next request is waited for, and so the end of the connection is noticed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._first: Optional[asyncio.Future[bytes]] = None

    def _coming(self) -> "asyncio.Future[bytes]":
        self._first = self._first or asyncio.ensure_future(self.reader.read(1))
        return self._first

    async def first(self) -> bytes:
        """The first byte of a request."""
        coming = self._coming()
        if not (await asyncio.wait({coming}, timeout=_IDLE_WITHIN))[0]:
            raise asyncio.TimeoutError
        self._first, byte = None, coming.result()
        if not byte:
            raise asyncio.IncompleteReadError(byte, 1)
        return byte

    async def unless_ended(self, answering: "asyncio.Future[Answer]") -> Answer:
        """The answer. If the connection ends first, the sidecar does not wait for it any more, and the handler is cancelled."""
        coming = self._coming()
        either: set[asyncio.Future[Any]] = {answering, coming}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and coming.result():
                # A further request waits there for its turn.
                await asyncio.wait({answering})
            if not answering.done():
                raise ConnectionAbortedError
            return answering.result()
        finally:
            if not answering.done():
                answering.cancel()
                await asyncio.wait({answering})
                answering.cancelled() or answering.exception()

    def close(self) -> None:
        if self._first is not None:
            self._first.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._first.cancel()
        self.writer.close()


class RequestServer:
    """`async with RequestServer(handlers, port=8000) as server`: answers at `server.url`. `prefix` is the path of `--forward-to`, such as `/hooks`."""

    def __init__(self, handlers: RequestHandlers, host: str = "127.0.0.1", port: int = 0, prefix: str = "") -> None:
        if host != "localhost" and not _is_loopback(host):
            raise ShardwiseError(f"{host!r} is not this machine: callers are authenticated by the sidecar, so only it may come here")
        self._handlers, self._host, self._port, self._prefix = handlers, host, port, prefix.rstrip("/")
        self._connections: set[asyncio.Task[None]] = set()
        self._server: Optional[asyncio.AbstractServer] = None
        self._is_closed, self.url = False, ""

    async def __aenter__(self) -> "RequestServer":
        server = await asyncio.start_server(self._serve, self._host, self._port, limit=_HEAD_BYTES_MAX)
        host, port = server.sockets[0].getsockname()[:2]
        self._server, self.url = server, f"http://{f'[{host}]' if ':' in host else host}:{port}{self._prefix}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all connections."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        connections = set(self._connections)
        for connection in connections:
            connection.cancel()
        if connections:
            await asyncio.wait(connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= _CONNECTIONS_MAX:
            writer.close()
            return
        self._connections.add(task)
        connection = _Connection(reader, writer)
        try:
            # `asyncio.wait_for` before Python 3.12 may lose the cancellation of `close`.
            while not self._is_closed and await self._exchange(connection):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.CancelledError):
            # The other side has gone, or it is too slow, or this server is closed.
            pass
        finally:
            self._connections.discard(task)
            connection.close()

    async def _exchange(self, connection: _Connection) -> bool:
        """One request and its answer; whether the connection may be used again."""
        is_kept, more, reader, writer = False, list[str](), connection.reader, connection.writer
        try:
            # The wait for the first byte of a request is not part of its time.
            first = await connection.first()
            head = _head(first + await asyncio.wait_for(_head_of(reader), _READ_WITHIN))
            body = await asyncio.wait_for(reader.readexactly(head.length), _READ_WITHIN)
            is_kept = head.headers.get("connection", "").lower() != "close"
            answer = await connection.unless_ended(asyncio.ensure_future(self._answer(head, body)))
        except _Bad as bad:
            is_kept, answer = False, bad.answer
        except NotTaken as refused:
            answer, more = refused.answer, _REFUSED
        phrase = HTTPStatus(answer.status).phrase if answer.status in HTTPStatus._value2member_map_ else "Other"
        lines = [f"HTTP/1.1 {answer.status} {phrase}", f"content-type: {answer.content_type}", f"content-length: {len(answer.body)}", *more]
        writer.write("\r\n".join([*lines, "connection: keep-alive" if is_kept else "connection: close", "", ""]).encode("latin-1") + answer.body)
        await asyncio.wait_for(writer.drain(), _READ_WITHIN)
        return is_kept

    async def _answer(self, head: _Head, body: bytes) -> Answer:
        if head.path == "/healthz" and head.method == "GET" and _TO not in head.headers:
            return await self._handlers.healthy()
        path = head.path[len(self._prefix) + 1 :]
        if not head.path.startswith(f"{self._prefix}/") or not is_path(path):
            return Answer.problem(404, "not-found", "Not found", f"requests come below {self._prefix or ''}/ here")
        if head.method not in ("GET", "POST"):
            raise _Bad(405, "a request is a GET or a POST")
        to = ADDRESSEES.get(head.headers.get(_TO, ""))
        if to is None:
            # A page in a browser of this machine cannot send this header, and an older sidecar does not say whom a request is for.
            raise _Bad(400, f"a request comes through the sidecar, which says in the header {_TO} whether it is for an instance, a key or any")
        return await self._handlers.answer(head.request(path, to, body))


async def _head_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Bad(431, f"a head has at most {_HEAD_BYTES_MAX} bytes") from None


def _head(raw: bytes) -> _Head:
    line, *fields = raw.decode("latin-1")[:-4].split("\r\n")
    parts, headers = line.split(" "), dict[str, str]()
    if len(parts) != 3 or not re.fullmatch(r"HTTP/1\.[01]", parts[2]) or not parts[1].startswith("/"):
        raise _Bad(400, "this is not a request")
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise _Bad(400, "a header cannot be read")
        if name.lower() in headers and name.lower().startswith(("content-length", "transfer-encoding", "idempotency-key", _OURS)):
            raise _Bad(400, f"the header {name.lower()} is there twice")
        headers[name.lower()] = value.strip(" \t")
    path, _, query = parts[1].partition("?")
    if len(query) > _QUERY_BYTES_MAX:
        raise _Bad(414, f"a query has at most {_QUERY_BYTES_MAX} bytes")
    if parts[2] == "HTTP/1.0":
        headers["connection"] = "close"
    return _Head(parts[0], path, query, headers)


def _decoded(text: Optional[str]) -> Optional[str]:
    return None if text is None else unquote(text, errors="strict")


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
