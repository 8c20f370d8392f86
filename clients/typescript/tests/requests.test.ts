/** Requests to one member and to any, and the handlers of a worker. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Problem, Reply, RequestHandlers, ShardwiseError } from "../src/index.js";
import { ONE, client, eventually } from "./common.js";
import { served } from "./served.js";

const kind = async (response: Response) => [response.status, ((await response.json()) as { type: string }).type];

test("a member answers by name", async () => {
  const id = (await client(ONE).ownership()).instance_id;
  const answer = await client(ONE).instance(id, "status", { query: { "größe": "a b&c" } });
  assert.deepEqual([answer.instance, answer.status, answer.isOk, answer.contentType], [id, 200, true, "application/json"]);
  assert.ok(answer.json<{ instance_id: string }>().instance_id === id && answer.text().includes(id) && answer.body.length > 0);
  const missing = await client(ONE).instance(id, "no/such-path", { body: "{}" });
  assert.deepEqual([missing.instance, missing.status, missing.isOk], [id, 404, false], "the member's answer");
  await assert.rejects(client(ONE).instance("nowhere", "status"), (error) => error instanceof Problem && error.kind === "unknown-instance");
  await assert.rejects(client(ONE).instance(id, "status", { signal: AbortSignal.abort(new Error("enough")) }), /enough/);
  for (const path of ["", "/status", "a//b", "../drain", "a/..", "a?b", "größe"]) await assert.rejects(client(ONE).any(path), ShardwiseError, path);
});

test("what is meant for one instance never answers any", async () => {
  const handlers = new RequestHandlers().onRequest("reload", ({ method }) => `one ${method}`).onAny("rules", () => ["a"]).onAny("both", () => 1).onRequest("both", () => 2);
  await served(handlers, async (send) => {
    assert.deepEqual(await (await send("/reload", "instance", { method: "POST" })).json(), "one POST");
    assert.deepEqual(await (await send("/rules?a=b", "any")).json(), ["a"]);
    assert.deepEqual([await (await send("/both", "any")).json(), await (await send("/both", "instance")).json()], [1, 2]);
    for (const [path, to] of [["/reload", "any"], ["/rules", "instance"], ["/", "any"], ["/rules/", "any"], ["/status", "instance"]] as const) {
      assert.deepEqual(await kind(await send(path, to)), [404, "urn:shardwise:problem:worker"], path);
    }
    for (const to of [undefined, "", "all"]) assert.equal((await send("/rules", to)).status, 400, "such a request did not come from a sidecar");
    assert.equal((await send("/rules", "any", { method: "DELETE" })).status, 405);
  });
});

test("handlers see the request and answer anything", async () => {
  const errors: unknown[] = [];
  const handlers = new RequestHandlers({ prefix: "/hooks/", onError: (error) => errors.push(error) });
  handlers.onRequest("echo", ({ query, contentType, body, text }) => new Reply(`${query.get("a")} ${contentType} ${body.length} ${text()}`, 202));
  handlers.onRequest("bytes", ({ body }) => new Reply(body)).onRequest("nothing", () => undefined).onRequest("json", (request) => request.json());
  handlers.onRequest("fails", () => Promise.reject(new RangeError("secret"))).onRequest("large", () => "x".repeat(1 << 21));
  await served(handlers, async (send) => {
    const post = (path: string, body: string | Uint8Array) => send(`/hooks/${path}`, "instance", { method: "POST", body: body as BodyInit, headers: { "content-type": "text/x" } });
    const echo = await send("/hooks/echo?a=b%20c", "instance", { method: "POST", body: "größe", headers: { "content-type": "text/x" } });
    assert.deepEqual([echo.status, await echo.text(), echo.headers.get("content-type")], [202, "b c text/x 7 größe", "text/plain; charset=utf-8"]);
    assert.deepEqual(new Uint8Array(await (await post("bytes", Uint8Array.of(0, 255))).arrayBuffer()), Uint8Array.of(0, 255));
    assert.equal(await (await send("/hooks/nothing", "instance")).json(), null);
    assert.deepEqual(await (await post("json", "[1]")).json(), [1]);
    for (const path of ["fails", "large"]) {
      const answer = await send(`/hooks/${path}`, "instance");
      assert.equal(answer.status, 500);
      assert.ok(!(await answer.text()).includes("secret"));
    }
    assert.equal((await post("json", "{")).status, 500);
    assert.deepEqual(errors.map((error) => (error as Error).name), ["RangeError", "SyntaxError"]);
    assert.equal((await post("bytes", new Uint8Array((1 << 20) + 1))).status, 413);
    assert.equal((await send("/echo", "instance")).status, 404, "the prefix is missing");
  });
  for (const path of ["", "/a", "a//b", "..", "a b", "shardwise", "shardwise/status"]) assert.throws(() => handlers.onAny(path, () => 0), ShardwiseError, path);
});

test("a worker answers so many requests at a time", async () => {
  let end = () => {};
  const ends = new Promise<void>((ended) => { end = ended; });
  let running = 0;
  const handlers = new RequestHandlers().onAny("slow", async () => { running += 1; await ends; return running; });
  await served(handlers, async (send) => {
    let refused = 0;
    const all = Array.from({ length: 80 }, async () => {
      const { status } = await send("/slow", "any");
      if (status === 429) refused += 1;
      return status;
    });
    await eventually("64 are being answered, and the rest is refused", () => running === 64 && refused === 16);
    end();
    assert.equal((await Promise.all(all)).filter((status) => status === 200).length, 64);
    assert.equal((await send("/slow", "any")).status, 200);
  });
});
