/** Requests to destinations: what is sent, what goes on, and what is known of a request without an answer. The sidecar is a script. */

import assert from "node:assert/strict";
import http from "node:http";
import type net from "node:net";
import { test } from "node:test";

import { type Ask, Busy, type Client, NotHandled, NotMine, Problem, ShardwiseError, type To, Unknown, Unsent } from "../src/index.js";
import { PATIENCE_MS, client, eventually } from "./common.js";

interface Asked { method: string; path: string; headers: http.IncomingHttpHeaders; body: string }
/** A status with its body and headers; "cut" ends the connection, "mute" says nothing. */
type Scripted = { status: number; body?: string; headers?: Record<string, string> } | "cut" | "mute";

const ok: Scripted = { status: 200, body: "ok", headers: { "shardwise-instance": "two" } };
function problem(status: number, kind: string, headers: Record<string, string> = {}): Scripted {
  const body = JSON.stringify({ type: `urn:shardwise:problem:${kind}`, title: kind, status, detail: `${kind} because` });
  return { status, body, headers: { "content-type": "application/problem+json", ...headers } };
}
const REFUSED = { "shardwise-peer": "refused" };

/** A sidecar that answers with what is next, and the last one for ever. */
class Script {
  readonly asked: Asked[] = [];
  readonly cancelled: string[] = [];

  static async with(answers: [Scripted, ...Scripted[]], use: (client: Client, script: Script) => Promise<void>): Promise<void> {
    const [script, left] = [new Script(), [...answers]];
    const server = http.createServer((request, response) => {
      const pieces: Buffer[] = [];
      request.on("data", (piece: Buffer) => pieces.push(piece)).on("end", () => {
        const { method = "", url = "", headers } = request;
        const path = url.replace("/v1/policies/workers/", "");
        if (method === "DELETE") {
          script.cancelled.push(path);
          response.writeHead(204).end();
          return;
        }
        script.asked.push({ method, path, headers, body: Buffer.concat(pieces).toString() });
        const answer = (left.length > 1 ? left.shift() : left[0]) ?? "mute";
        if (answer === "cut") request.socket.destroy();
        else if (answer !== "mute") response.writeHead(answer.status, answer.headers).end(answer.body);
      });
    });
    await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
    try {
      await use(client(`http://127.0.0.1:${(server.address() as net.AddressInfo).port}`), script);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  }
}

/** The error, which is exactly of that kind. */
async function fails<T extends ShardwiseError>(kind: new (...args: never[]) => T, asked: Promise<unknown>): Promise<T> {
  const error = await asked.then(() => undefined, (raised: unknown) => raised);
  assert.ok(error instanceof kind && error.constructor === kind, `${error}`);
  return error;
}

const post = (more: Ask = {}): Ask => ({ body: "hello", withinMs: PATIENCE_MS, ...more });
const owner: To = { owner: "a" };

test("each destination has its route", async () => {
  await Script.with([{ status: 201, body: "done", headers: { "shardwise-instance": "a%2Fb", "content-type": "text/plain" } }], async (asking, { asked, cancelled }) => {
    const routes: [To, string][] = [
      [{ owner: "room 7/größe.." }, "keys/room%207%2Fgr%C3%B6%C3%9Fe../"], [{ holder: "singleton/leader" }, "names/singleton%2Fleader/"],
      [{ member: "two" }, "instances/two/"], [{ session: "AZ_9-" }, "sessions/AZ_9-/"], ["any", "any/"],
    ];
    for (const [to, route] of routes) {
      const answer = await asking.ask(to, "rooms/say", { body: "{}", query: { a: "b c" }, withinMs: 5_000, idempotencyKey: "k-1" });
      assert.deepEqual([answer.status, answer.instance, answer.text(), answer.contentType], [201, "a/b", "done", "text/plain"]);
      const { method, path, headers, body } = asked.at(-1) as Asked;
      assert.deepEqual([method, path, body, headers["content-type"], headers["idempotency-key"]], ["POST", `${route}rooms/say?a=b+c`, "{}", "application/json", "k-1"]);
      const within = Number(headers["shardwise-within-ms"]);
      assert.ok(within > 4_000 && within <= 5_000, `${within}`);
    }
    assert.equal(new Set(asked.map(({ headers }) => headers["shardwise-request-id"])).size, routes.length, "each has its own id");
    await asking.ask("any", "rooms/list");
    assert.deepEqual([asked.at(-1)?.method, asked.at(-1)?.body, cancelled], ["GET", "", []]);
  });
});

test("what was not handled goes on until the deadline", async () => {
  const refusals = [problem(421, "not-mine", REFUSED), problem(429, "too-many"), problem(503, "not-handled"), problem(502, "unreachable-worker")] as const;
  await Script.with([...refusals, ok], async (asking, { asked }) => {
    assert.equal((await asking.ask(owner, "say", post())).text(), "ok");
    const left = asked.map(({ headers }) => Number(headers["shardwise-within-ms"]));
    assert.deepEqual(left, [...left].sort((one, other) => other - one), "the time that is left");
    assert.ok(left.length >= 5, "each refusal is followed by another attempt");
  });
  // After 421 the `fetch` of Node 18 sends again by itself, without the body, and so never has the problem.
  const isOld = process.version.startsWith("v18.");
  for (const [at, kind] of [NotMine, Busy, Unsent, Unsent].entries()) {
    if (isOld && kind === NotMine) continue;
    await Script.with([refusals[at] as Scripted], async (asking) => {
      const error = await fails(kind, asking.ask(owner, "say", post({ withinMs: 1_000 })));
      assert.ok(error instanceof NotHandled && error.passes && error.problem !== undefined && error.message.includes(error.problem.detail), error.message);
    });
  }
  await Script.with([problem(429, "too-many", { "retry-after": "30" })], async (asking, { asked }) => {
    assert.equal((await fails(Busy, asking.ask("any", "say", { withinMs: 5_000 }))).retryAfterMs, 30_000);
    assert.equal(asked.length, 1, "a pause beyond the deadline is not waited for");
  });
  const gone: Client[] = [];
  await Script.with([ok], async (asking) => void gone.push(asking));
  for (const asking of gone) assert.match((await fails(Unsent, asking.ask(owner, "say", post({ withinMs: 1_000 })))).message, /start `shardwise serve`/);
});

test("an unknown outcome is not repeated unless it may be", async () => {
  const unknown: Scripted[] = ["cut", problem(502, "bad-gateway"), problem(504, "too-late"), problem(503, "of-a-proxy"), problem(500, "failed")];
  for (const answer of unknown) {
    await Script.with([answer], async (asking, { asked }) => {
      assert.equal((await fails(Unknown, asking.ask(owner, "say", post()))).passes, false);
      assert.equal(asked.length, 1);
    });
    for (const repeatable of [{ withinMs: PATIENCE_MS }, post({ idempotencyKey: "k" })]) {
      await Script.with([answer, ok], async (asking) => assert.equal((await asking.ask(owner, "say", repeatable)).text(), "ok"));
    }
  }
  await Script.with(["cut", problem(503, "not-handled")], async (asking, { asked }) => {
    await fails(Unknown, asking.ask(owner, "say", { withinMs: 2_000 }));
    assert.ok(asked.length > 1, "once unknown, it stays unknown");
  });
});

test("a refusal is a problem, and a member's answer is an answer", async () => {
  for (const [status, kind] of [[400, "bad-key"], [401, "unauthorized"], [404, "unknown-instance"], [410, "session-ended"], [413, "too-large"]] as const) {
    await Script.with([problem(status, kind)], async (asking, { asked }) => {
      const error = await fails(Problem, asking.ask({ session: "a" }, "say", post()));
      assert.deepEqual([error.status, error.kind, asked.length], [status, kind, 1]);
    });
  }
  await Script.with([{ status: 404, headers: { "shardwise-instance": "two" } }, { status: 200 }], async (asking) => {
    assert.equal((await asking.ask("any", "say")).status, 404);
    await fails(ShardwiseError, asking.ask("any", "say"));
  });
});

test("a request that is given up is cancelled at the sidecar", async () => {
  await Script.with(["mute"], async (asking, { asked, cancelled }) => {
    const ends = new AbortController();
    const given = asking.ask(owner, "say", post({ signal: ends.signal }));
    await eventually("it is asked", () => asked.length === 1);
    ends.abort(new Error("enough"));
    await assert.rejects(given, /enough/);
    await fails(Unknown, asking.ask(owner, "say", post({ withinMs: 1_000 })));
    await eventually("both are cancelled", () => cancelled.length === 2);
    assert.deepEqual(cancelled, asked.map(({ headers }) => `requests/${headers["shardwise-request-id"]}`));
    await assert.rejects(asking.ask(owner, "say", { signal: AbortSignal.abort(new Error("before")) }), /before/);
    assert.equal(asked.length, 2);
  });
});

test("what would be refused is not sent", async () => {
  await Script.with([ok], async (asking, { asked }) => {
    const bad: Ask[] = [
      { withinMs: 0 }, { withinMs: 300_001 }, { withinMs: NaN }, { method: "GET", body: "x" }, { body: new Uint8Array((1 << 20) + 1) }, { body: "ß".repeat(1 << 19) + "s" },
      { idempotencyKey: "" }, { idempotencyKey: "a b" }, { idempotencyKey: "ß" }, { idempotencyKey: "k".repeat(257) },
    ];
    for (const wrong of bad) await fails(ShardwiseError, asking.ask("any", "say", wrong));
    for (const path of ["", "../drain", "a//b"]) await fails(ShardwiseError, asking.ask("any", path));
    await fails(ShardwiseError, asking.ask({ owner: ".." }, "say"));
    assert.deepEqual(asked, []);
  });
});
