"""Requests to the sidecar: retries, time limits, and its errors as ours."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import suppress
from typing import Any, Optional, TypeVar, Union
from urllib.parse import quote

import httpx

from ._clock import pause_of
from ._errors import Problem, ShardwiseError, Unavailable

T = TypeVar("T")

_UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=20)


class Http:
    """The requests of one client, all below `/v1/policies/{policy}/`. None waits for a connection: a lease would end while others hold them all."""

    def __init__(self, policy: str, base_url: str, *, token: Optional[str], timeout: float, attempts: int,
                 verify: Union[ssl.SSLContext, bool]) -> None:  # fmt: skip
        headers = {"authorization": f"Bearer {_sendable(token)}"} if token is not None else {}
        self.base = f"{_reachable(base_url)}/v1/policies/{encoded(policy)}/"
        self._http = httpx.AsyncClient(headers=headers, timeout=None, trust_env=False, verify=verify, limits=_UNLIMITED)
        self.timeout, self._attempts = timeout, max(1, attempts)

    async def close(self) -> None:
        await self._http.aclose()

    async def fetch(self, method: str, path: str, wanted: Optional[object] = None, *, is_safe: bool = True) -> Any:
        """The object in an answer with status 200."""
        body = None if wanted is None else json.dumps(wanted).encode()
        return json_of(await self.ask(method, path, body, is_safe=is_safe))

    async def ask(self, method: str, path: str, body: Optional[bytes] = None, *, is_safe: bool = True, until: float = 0.0,
                  content_type: str = "application/json", any_of_a_member: bool = False,
                  headers: Optional[Mapping[str, str]] = None) -> httpx.Response:  # fmt: skip
        """Returns an answer with status 200, or raises at the deadline. `any_of_a_member`: any answer of a member's own is one."""
        error: ShardwiseError = Unavailable(f"{self.base} has not answered within {self.timeout} s")
        until, pause = until or time.monotonic() + self.timeout, 0.0
        sent = {**({"content-type": content_type} if body else {}), **(headers or {})}
        for attempt in range(self._attempts):
            await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
            if time.monotonic() >= until:
                break
            try:
                response = await self.sent(method, path, body, sent, until - time.monotonic())
                if response.status_code == 200 or any_of_a_member and "shardwise-instance" in response.headers:
                    return response
                raise Problem(response)
            except (httpx.TransportError, Problem) as broken:
                error = self.error(broken)
                # Without a connection the request was not sent.
                if not error.passes or not (is_safe or isinstance(broken, httpx.ConnectError)):
                    break
                pause = max(pause_of(attempt), error.retry_after)
        raise error

    async def once(self, method: str, path: str, wanted: Optional[object] = None, *, within: float,
                   headers: Optional[Mapping[str, str]] = None) -> httpx.Response:  # fmt: skip
        """Returns a successful answer to the only attempt."""
        body = None if wanted is None else json.dumps(wanted).encode()
        try:
            response = await self.sent(method, path, body, {**({"content-type": "application/json"} if body else {}), **(headers or {})}, within)
        except httpx.TransportError as broken:
            raise self.error(broken) from broken
        if not response.is_success:
            raise Problem(response)
        return response

    async def stream(self, path: str, headers: Mapping[bytes, bytes], silence: float) -> AsyncGenerator[bytes, None]:
        """The pieces of an endless answer. The first one is empty: it says that the answer has begun. `silence` seconds without data are an error."""
        response: Optional[httpx.Response] = None
        try:
            request = self._http.build_request("GET", self.base + path, headers=headers, timeout=silence)
            response = await within(self.timeout, self._http.send(request, stream=True))
            if response.status_code != 200:
                await within(self.timeout, response.aread())
                raise Problem(response)
            yield b""
            async for piece in response.aiter_bytes():
                yield piece
        except (httpx.TransportError, ValueError) as broken:
            raise self.error(broken) from broken
        finally:
            if response is not None:
                await response.aclose()

    async def sent(self, method: str, path: str, body: Optional[bytes], headers: Mapping[str, str], seconds: float) -> httpx.Response:
        """Returns the answer to one attempt, whatever its status is."""
        try:
            request = self._http.build_request(method, self.base + path, content=body, headers=headers)
            return await within(seconds, self._http.send(request))
        except httpx.InvalidURL as wrong:
            raise ShardwiseError(f"no URL can have this as a part (`owned` takes any key, in a list): {wrong}") from wrong

    def error(self, broken: Exception) -> ShardwiseError:
        if isinstance(broken, ShardwiseError):
            return broken
        # A request that cannot be sent, or an answer that cannot be read, will fail again.
        kind = ShardwiseError if isinstance(broken, (httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError)) else Unavailable
        why = str(broken) or type(broken).__name__
        # A certificate that is refused is such an error too.
        is_gone = isinstance(broken, httpx.ConnectError) and "SSL" not in why
        return kind(f"{self.base} does not answer: {why}" + ("; start `shardwise serve`, or correct the URL" if is_gone else ""))


async def within(seconds: float, coming: Awaitable[T]) -> T:
    """Awaits `coming` with a timeout, in a separate task: httpx sometimes loses a cancellation, and the caller's must not be lost."""
    task = asyncio.ensure_future(coming)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        if not (await asyncio.wait({task}, timeout=seconds))[0]:
            raise httpx.ReadTimeout(f"nothing for {seconds:.1f} s")
        return task.result()
    finally:
        task.cancel()


def json_of(response: httpx.Response, kind: type = dict) -> Any:
    """The object or list in an answer."""
    with suppress(ValueError):
        value = response.json()
        if isinstance(value, kind):
            return value
    raise ShardwiseError(f"{response.url} answers something else: is a shardwise sidecar there?")


def encoded(text: str) -> str:
    """A text as one part of a path."""
    # Dots too: a segment `.` or `..` would change the path.
    return quote(text, safe="").replace(".", "%2E")


def _sendable(token: str) -> str:
    """The token without a final line feed. httpx would show a header that it cannot send in its error, and report an outage."""
    token = token.removesuffix("\n").removesuffix("\r")
    if not token or not all("!" <= sign <= "~" for sign in token):
        raise ShardwiseError("the token is not printable ASCII")
    return token


def _reachable(base_url: str) -> str:
    """The URL without final slashes. httpx would report a wrong URL as an outage. No error shows the URL, as it may contain a password."""
    with suppress(httpx.InvalidURL):
        url = httpx.URL(base_url)
        is_whole = url.scheme in ("http", "https") and url.host and 0 < (80 if url.port is None else url.port) < 65536
        if is_whole and not any(sign in base_url for sign in "@?#"):
            return base_url.rstrip("/")
    raise ShardwiseError("write the URL of the sidecar like http://127.0.0.1:8087: http or https, a host, and no name, query or fragment")
