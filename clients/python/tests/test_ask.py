"""Requests to destinations: what is sent, what goes on, and what is known of a request without an answer. The sidecar is a script."""

import asyncio
import json
import time
import unittest
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Callable, NamedTuple, Optional

from shardwise_client import Answer, Busy, Client, NotHandled, NotMine, Problem, ShardwiseError, To, Unknown, Unsent, sync

PATIENCE = 60.0
# Longer than any test takes, so that nothing ends by it.
LONG = 60.0


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def reply(status: int = 200, body: bytes = b"", **headers: str) -> bytes:
    fields = {"shardwise_instance": "two", "content_type": "text/plain", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([f"HTTP/1.1 {status} Status", f"content-length: {len(body)}", *lines, "", ""]).encode() + body


def problem(status: int, kind: str, *, refused: bool = False, after: str = "") -> bytes:
    body = json.dumps({"type": f"urn:shardwise:problem:{kind}", "title": kind, "status": status, "detail": f"{kind} because"}).encode()
    return reply(status, body, shardwise_instance="", content_type="application/problem+json", retry_after=after, shardwise_peer="refused" if refused else "")


class Script:
    """A sidecar that answers with what is next in `answers`, and the last one for ever; `None` cuts the connection, "mute" says nothing."""

    def __init__(self, *answers: Optional[object]) -> None:
        self.asked, self.cancelled = list[Asked](), list[str]()
        self._answers, self._writers = list(answers), list[asyncio.StreamWriter]()

    async def __aenter__(self) -> "Script":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
                headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
                method, path, _ = line.split(" ")
                asked = Asked(method, path.removeprefix("/v1/policies/rooms/"), headers, await reader.readexactly(int(headers.get("content-length", "0"))))
                if method == "DELETE":
                    self.cancelled.append(asked.path)
                    writer.write(reply(204, shardwise_instance=""))
                    continue
                self.asked.append(asked)
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                if answer is None:
                    break
                if isinstance(answer, bytes):
                    writer.write(answer)
        writer.close()


async def eventually(what: str, condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"waited {PATIENCE} s in vain: {what}")
        await asyncio.sleep(0.005)


class Asks(unittest.IsolatedAsyncioTestCase):
    async def script(self, *answers: Optional[object]) -> "tuple[Script, Client]":
        script = Script(*answers)
        await script.__aenter__()
        self.addAsyncCleanup(script.__aexit__)
        client = Client("rooms", script.url)
        self.addAsyncCleanup(client.close)
        return script, client

    async def fails(self, kind: "type[ShardwiseError]", asked: "Awaitable[object]") -> Any:
        with self.assertRaises(ShardwiseError) as caught:
            await asked
        self.assertIs(type(caught.exception), kind, caught.exception)
        return caught.exception

    async def test_each_destination_has_its_route(self) -> None:
        script, client = await self.script(reply(201, b"done", shardwise_instance="a%2Fb"))
        for to, route in [
            (To.owner("room 7/größe.."), "keys/room%207%2Fgr%C3%B6%C3%9Fe%2E%2E"), (To.holder("singleton/leader"), "names/singleton%2Fleader"),
            (To.member("two"), "instances/two"), (To.session("AZ_9-"), "sessions/AZ_9-"), (To.any(), "any"),
        ]:  # fmt: skip
            answer = await client.ask(to, "rooms/say", query={"a": "b c"}, json={"x": 1}, within=5.0, idempotency_key="k-1")
            self.assertEqual(answer, Answer(b"done", "text/plain", 201, "a/b"))
            asked = script.asked[-1]
            self.assertEqual((asked.method, asked.path, json.loads(asked.body)), ("POST", f"{route}/rooms/say?a=b+c", {"x": 1}))
            self.assertEqual((asked.headers["content-type"], asked.headers["idempotency-key"]), ("application/json", "k-1"))
            self.assertTrue(4_000 < int(asked.headers["shardwise-within-ms"]) <= 5_000, asked.headers)
        self.assertEqual(len({asked.headers["shardwise-request-id"] for asked in script.asked}), len(script.asked), "each has its own id")
        await client.ask(To.any(), "rooms/list")
        self.assertEqual((script.asked[-1].method, script.asked[-1].body), ("GET", b""))
        self.assertEqual(script.cancelled, [])

    async def test_what_was_not_handled_goes_on_until_the_deadline(self) -> None:
        refusals = [problem(421, "not-mine", refused=True), problem(429, "too-many", refused=True), problem(503, "unavailable", refused=True),
                    problem(502, "unreachable-worker")]  # fmt: skip
        script, client = await self.script(*refusals, reply(body=b"ok"))
        answer = await client.ask(To.owner("a"), "say", body=b"hello", within=LONG)
        self.assertEqual((answer.text, len(script.asked)), ("ok", 5))
        left = [int(asked.headers["shardwise-within-ms"]) for asked in script.asked]
        self.assertEqual(left, sorted(left, reverse=True), "the time that is left")
        for refusal, kind in zip(refusals, (NotMine, Busy, Unsent, Unsent)):
            script, client = await self.script(refusal)
            error = await self.fails(kind, client.ask(To.owner("a"), "say", body=b"hello", within=1.0))
            self.assertTrue(isinstance(error, NotHandled) and error.passes and error.problem and error.problem.detail in str(error), error)
        script, client = await self.script(problem(429, "too-many", after="30"))
        self.assertEqual((await self.fails(Busy, client.ask(To.any(), "say", within=5.0))).retry_after, 30.0)
        self.assertEqual(len(script.asked), 1, "a pause beyond the deadline is not waited for")

    async def test_requests_wait_for_no_connection_and_too_many_are_not_sent(self) -> None:
        script, client = await self.script(*["mute"] * 255, reply(body=b"ok"), "mute")
        asks = [asyncio.ensure_future(client.ask(To.owner("a"), "say", body=b"hello", within=LONG)) for _ in range(255)]
        self.addCleanup(lambda: [ask.cancel() for ask in asks])
        await eventually("all are sent", lambda: len(script.asked) == 255)
        # As the renewals of a lease, which have the same connections.
        self.assertEqual((await client.ask(To.owner("b"), "say", within=LONG)).text, "ok")
        asks.append(asyncio.ensure_future(client.ask(To.owner("a"), "say", body=b"hello", within=LONG)))
        await eventually("it is sent", lambda: len(script.asked) == 257)
        error = await self.fails(Busy, client.ask(To.owner("b"), "say", body=b"hello", within=0.5))
        self.assertIn("this client has 256 requests under way", str(error))
        self.assertEqual(len(script.asked), 257)
        asks.pop().cancel()
        await eventually("there is room", lambda: len(script.cancelled) == 1)

    async def test_an_unreachable_sidecar_was_sent_nothing(self) -> None:
        script, client = await self.script(None)
        await script.__aexit__()
        error = await self.fails(Unsent, client.ask(To.owner("a"), "say", body=b"hello", within=1.0))
        self.assertIn("start `shardwise serve`", str(error))

    async def test_an_unknown_outcome_is_not_repeated_unless_it_may_be(self) -> None:
        for answer in (None, problem(502, "bad-gateway"), problem(504, "too-late"), problem(503, "of-a-proxy"), problem(500, "failed")):
            script, client = await self.script(answer)
            error = await self.fails(Unknown, client.ask(To.owner("a"), "say", body=b"hello", within=LONG))
            self.assertEqual((len(script.asked), error.passes), (1, False), error)
            repeatable: list[dict[str, Any]] = [{}, {"body": b"hello", "idempotency_key": "k"}]
            for options in repeatable:
                script, client = await self.script(answer, reply(body=b"ok"))
                self.assertEqual((await client.ask(To.owner("a"), "say", within=LONG, **options)).text, "ok")
        script, client = await self.script(None, problem(503, "unavailable", refused=True))
        await self.fails(Unknown, client.ask(To.owner("a"), "say", within=2.0))
        self.assertGreater(len(script.asked), 1, "once unknown, it stays unknown")

    async def test_a_refusal_is_a_problem(self) -> None:
        for status, kind in ((400, "bad-key"), (401, "unauthorized"), (404, "unknown-instance"), (410, "session-ended"), (413, "too-large")):
            script, client = await self.script(problem(status, kind))
            error = await self.fails(Problem, client.ask(To.session("a"), "say", body=b"hello", within=LONG))
            self.assertEqual((error.status, error.kind, len(script.asked)), (status, kind, 1))
        script, client = await self.script(reply(404))
        self.assertEqual((await client.ask(To.any(), "say")).status, 404, "a member's own answer, of any status")
        script, client = await self.script(reply(200, shardwise_instance=""))
        await self.fails(ShardwiseError, client.ask(To.any(), "say"))

    async def test_a_cancelled_or_late_request_is_cancelled_at_the_sidecar(self) -> None:
        script, client = await self.script("mute")
        asking = asyncio.ensure_future(client.ask(To.owner("a"), "say", body=b"hello", within=LONG))
        await eventually("it is asked", lambda: script.asked)
        asking.cancel()
        await asyncio.wait({asking}, timeout=PATIENCE)
        self.assertTrue(asking.cancelled())
        await eventually("it is cancelled", lambda: script.cancelled == [f"requests/{script.asked[0].headers['shardwise-request-id']}"])
        begun = time.monotonic()
        await self.fails(Unknown, client.ask(To.owner("a"), "say", body=b"hello", within=1.0))
        self.assertLess(time.monotonic() - begun, PATIENCE / 2)
        await eventually("it is cancelled too", lambda: script.cancelled[1:] == [f"requests/{script.asked[1].headers['shardwise-request-id']}"])

    async def test_what_would_be_refused_is_not_sent(self) -> None:
        script, client = await self.script(reply())
        bad: list[dict[str, Any]] = [
            {"within": 0.0}, {"within": 300.1}, {"within": float("nan")}, {"method": "PUT"}, {"method": "GET", "body": b"x"}, {"path": "../drain"},
            {"path": "a//b"}, {"body": b"x" * 1_048_577}, {"idempotency_key": ""}, {"idempotency_key": "a b"}, {"idempotency_key": "ß"},
            {"idempotency_key": "k" * 257}, {"to": To.owner("k" * 70_000)},
        ]  # fmt: skip
        for wrong in bad:
            arguments = {"to": To.any(), "path": "say", **wrong}
            await self.fails(ShardwiseError, client.ask(arguments.pop("to"), arguments.pop("path"), **arguments))
        self.assertEqual(script.asked, [])

    async def test_without_a_loop(self) -> None:
        script, _ = await self.script(reply(body=b"ok"))

        def asks() -> str:
            with sync.Client("rooms", script.url) as client:
                return client.ask(To.owner("a"), "say", body=b"hello", idempotency_key="k").text

        self.assertEqual(await asyncio.to_thread(asks), "ok")
