"""A worker's handlers, asked over HTTP as a sidecar does."""

import asyncio
import json
import socket
import threading
import unittest
from typing import Any
from unittest import mock

from shardwise_client import Answer, Refused, Request, RequestHandlers, RequestServer, ShardwiseError, _handlers, _request_server, sync

PATIENCE = 20.0


async def exchanged(port: int, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """The answer to these bytes, on a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    answer = await asyncio.wait_for(read(reader), PATIENCE)
    writer.close()
    return answer


async def read(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = dict(field.split(": ", 1) for field in fields)
    return int(line.split(" ")[1]), headers, await reader.readexactly(int(headers["content-length"]))


def request(path: str, to: str = "instance", method: str = "GET", body: bytes = b"", more: str = "") -> bytes:
    length = f"content-length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nShardwise-To: {to}\r\n{length}{more}\r\n".encode() + body


class Handlers(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.handlers = RequestHandlers()
        self.server = RequestServer(self.handlers, prefix="/hooks/")
        await self.server.__aenter__()
        self.addAsyncCleanup(self.server.close)
        self.port = int(self.server.url.rpartition(":")[2].partition("/")[0])

    async def asks(self, raw: bytes) -> tuple[int, Any]:
        status, headers, body = await exchanged(self.port, raw)
        return status, json.loads(body) if "json" in headers["content-type"] else body

    async def test_what_is_for_one_instance_never_answers_any(self) -> None:
        @self.handlers.on_request("status")
        async def status(request: Request) -> dict[str, Any]:
            return {"of": "one", "method": request.method, "args": request.args, "to": request.to}

        @self.handlers.on_any("cache/size")
        def size(_: Request) -> str:
            return "größe"

        seen = {"of": "one", "method": "GET", "args": {"a": "b", "c": ""}, "to": "instance"}
        self.assertEqual(await self.asks(request("/hooks/status?a=b&c=")), (200, seen))
        self.assertEqual(await self.asks(request("/hooks/cache/size", "any")), (200, "größe".encode()))
        for path, to in (("status", "any"), ("cache/size", "instance"), ("nothing", "any")):
            status_, problem = await self.asks(request(f"/hooks/{path}", to))
            self.assertEqual((status_, problem["type"]), (404, "urn:shardwise:problem:not-found"))
        for path in ("/status", "/hooksstatus", "/hooks/", "/hooks/a//b", "/hooks/../status", "//hooks/status"):
            self.assertEqual((await self.asks(request(path)))[0], 404, path)
        for to in ("", "both"):
            self.assertEqual((await self.asks(request("/hooks/status", to)))[0], 400)
        self.assertEqual((await self.asks(b"GET /hooks/status HTTP/1.1\r\n\r\n"))[0], 400, "not from a sidecar")
        self.assertTrue(size(Request("GET", "x", "any", "", "", b"")), "the decorated function stays itself")

    async def test_answers_and_failures(self) -> None:
        answers: dict[str, Any] = {
            "bytes": (b"\0\1", 200, b"\0\1"), "list": ([1], 200, [1]), "status": (Answer(b"x", "text/plain", 418), 418, b"x"),
            "redirect": (Answer(b"", "text/plain", 302), 500, None), "type": (Answer(b"", "a\r\nset-cookie: b"), 500, None),
            "long": (b"x" * 1_048_577, 500, None), "strange": (object(), 500, None),
        }  # fmt: skip
        for path, (answer, _, _) in answers.items():
            self.handlers.on_request(path)(lambda _, answer=answer: answer)

        @self.handlers.on_request("body")
        async def body(request: Request) -> object:
            if request.json() == 7:
                raise Refused(409, "conflict", "No", "seven")
            return [request.json(), request.content_type]

        with self.assertLogs("shardwise_client", "ERROR"):
            for path, (_, status, expected) in answers.items():
                got = await self.asks(request(f"/hooks/{path}"))
                self.assertEqual(got if expected is not None else got[0], (status, expected) if expected is not None else status, path)
        post = request("/hooks/body", method="POST", body=b'{"a": 1}', more="content-type: application/json\r\n")
        self.assertEqual(await self.asks(post), (200, [{"a": 1}, "application/json"]))
        self.assertEqual((await self.asks(request("/hooks/body", method="POST", body=b"{")))[0], 400)
        self.assertEqual((await self.asks(request("/hooks/body", method="POST", body=b"7")))[1]["detail"], "seven")
        self.assertEqual((await self.asks(request("/hooks/body", method="PUT")))[0], 405)

    async def test_limits(self) -> None:
        release = asyncio.Event()

        @self.handlers.on_request("slow")
        async def slow(_: Request) -> str:
            await release.wait()
            return "ok"

        with mock.patch.object(_handlers, "_ANSWER_WITHIN", 0.05):
            self.assertEqual((await self.asks(request("/hooks/slow")))[0], 504)
        with mock.patch.object(_handlers, "_AT_ONCE_MAX", 1):
            first = asyncio.ensure_future(self.asks(request("/hooks/slow")))
            while self.handlers._at_once < 1:
                await asyncio.sleep(0.001)
            status, headers, _ = await exchanged(self.port, request("/hooks/slow"))
            self.assertEqual((status, headers["shardwise-peer"]), (429, "refused"), "no handler has seen it")
            release.set()
            self.assertEqual(await first, (200, b"ok"))
        head = b"GET /hooks/slow HTTP/1.1\r\nshardwise-to: instance\r\n"
        for raw, status in [
            (head + b"a: " + b"b" * 20_000 + b"\r\n\r\n", 431), (head + b"content-length: 2000000\r\n\r\n", 413),
            (head + b"content-length: 1\r\ncontent-length: 2\r\n\r\n", 400), (head + b"content-length: -1\r\n\r\n", 411),
            (head + b"transfer-encoding: chunked\r\n\r\n", 411), (head + b"shardwise-to: any\r\n\r\n", 400), (head + b"no colon\r\n\r\n", 400),
            (b"GET /hooks/slow?" + b"q" * 5_000 + b" HTTP/1.1\r\nshardwise-to: any\r\n\r\n", 414), (b"hello\r\n\r\n", 400),
        ]:  # fmt: skip
            self.assertEqual((await self.asks(raw))[0], status, raw[:80])
        with mock.patch.object(_request_server, "_READ_WITHIN", 0.05):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(head)
            self.assertEqual(await asyncio.wait_for(reader.read(), PATIENCE), b"", "who is too slow is cut off")
            writer.close()
        for host in ("0.0.0.0", "10.0.0.7", "example.org", "::"):
            with self.assertRaises(ShardwiseError):
                RequestServer(self.handlers, host)
        for path in ("", "/a", "a//b", "..", "a b", "shardwise/status", "é", "a" * 257):
            with self.assertRaises(ShardwiseError, msg=path):
                self.handlers.on_request(path)

    async def test_a_connection_is_used_again(self) -> None:
        self.handlers.on_any("a")(lambda _: "ok")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for more in ("", "", "connection: close\r\n"):
            writer.write(request("/hooks/a", "any", more=more))
            self.assertEqual((await asyncio.wait_for(read(reader), PATIENCE))[::2], (200, b"ok"))
        self.assertEqual(await asyncio.wait_for(reader.read(), PATIENCE), b"")
        writer.close()

    async def test_health(self) -> None:
        health = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
        self.assertEqual(await self.asks(health), (200, b"ok"))
        well = True

        def check() -> None:
            if not well:
                raise RuntimeError("the database is away")

        self.handlers.on_health(check)
        self.assertEqual(await self.asks(health), (200, b"ok"))
        well = False
        status, problem = await self.asks(health)
        self.assertEqual(status, 503)
        self.assertIn("the database is away", problem["detail"])


class Blocking(unittest.TestCase):
    def test_handlers_in_threads(self) -> None:
        handlers, threads = RequestHandlers(in_threads=True), list[str]()

        @handlers.on_any("a")
        def answer(_: Request) -> str:
            threads.append(threading.current_thread().name)
            return "ok"

        with sync.RequestServer(handlers) as server, socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), PATIENCE) as connection:
            connection.sendall(request("/a", "any", more="connection: close\r\n"))
            with connection.makefile("rb") as answered:
                self.assertTrue(answered.read().endswith(b"\r\n\r\nok"))
        self.assertTrue(threads and "shardwise-client" not in threads)
