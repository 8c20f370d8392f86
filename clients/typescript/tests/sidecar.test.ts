/** Leases on two sidecars that run, of one group with exclusive ownership, which forward requests to this process. */

import assert from "node:assert/strict";
import http from "node:http";
import { test } from "node:test";

import { type Client, type Guard, type Lease, NotHeld, Problem, RequestHandlers } from "../src/index.js";
import { LEASED, PATIENCE_MS, Proxy, client, eventually } from "./common.js";
import { asked } from "./leased.js";

const [one, other] = LEASED.map(({ url }) => client(url)) as [Client, Client];
const KEYS = Array.from({ length: 500 }, (_, n) => `tenant ${n} größe`);

/** Each key is owned by one of these workers, and each of them owns some. */
async function areShared(...leases: Lease[]): Promise<void> {
  await eventually("the leases share the keys", () => {
    const owned = leases.map((lease) => lease.owned(KEYS));
    const all = owned.flat();
    assert.equal(new Set(all).size, all.length, "no key twice");
    return all.length === KEYS.length && owned.every((keys) => keys.length > 0);
  });
}

test("workers share the keys, hand them over and take them over", async () => {
  await using first = await one.lease({ ttlMs: 2_000 });
  await areShared(first);
  const guards = new Map<string, Guard>(KEYS.map((key) => [key, first.enter(key)]));
  await using second = await other.lease({ ttlMs: 2_000 });
  const asked = () => KEYS.filter((key) => guards.get(key)?.finish.aborted);
  await eventually("some are to be handed over", () => asked().length > KEYS.length / 4);
  assert.deepEqual(second.owned(KEYS), [], "work is in flight in all of them");
  for (const key of asked()) assert.throws(() => first.enter(key), NotHeld);
  assert.ok([...guards.values()].every((guard) => guard.isHeld && !guard.lost.aborted));
  for (const guard of guards.values()) guard.leave();
  await areShared(first, second);

  const fences = second.owned(KEYS).map((key) => {
    const guard = second.enter(key);
    guard.leave();
    assert.ok(guard.fence.epoch > (guards.get(key)?.fence.epoch ?? Infinity), "a higher epoch than its former owner's");
    return guard.fence;
  });
  await eventually("the other sidecar has seen it", async () => {
    const epochs = new Map((await one.holders()).slots.map(({ slot, epoch }) => [slot, epoch]));
    return fences.every(({ slot, epoch }) => epochs.get(slot) === epoch);
  });
  const moved = second.owned(KEYS)[0] ?? "";
  assert.equal((await other.owner(moved)).mine, true);
  await second.close();
  await areShared(first);
});

test("a worker that is cut off stops before another one takes over", async () => {
  await using first = await one.lease({ ttlMs: 2_000 });
  await areShared(first);
  await Proxy.with(async (proxy, url) => {
    proxy.target = LEASED[1].url;
    await using second = await client(url).lease({ ttlMs: 2_000 });
    await areShared(first, second);
    const mine = second.owned(KEYS);
    const guards = mine.map((key) => second.enter(key));
    proxy.cut();
    await eventually("others take over", () => {
      const taken = first.owned(KEYS).length === KEYS.length;
      assert.ok(!taken || guards.every((guard) => !guard.isHeld), "never while the other one still works");
      return taken;
    });
    assert.ok(guards.every((guard) => guard.lost.aborted) && second.owned(KEYS).length === 0);
    for (const guard of guards) guard.leave();
    proxy.isCut = false;
    await areShared(first, second);
  });
});

test("names run on one worker", async () => {
  const [first, second] = [await one.lease({ ttlMs: 2_000 }), await other.lease({ ttlMs: 2_000 })];
  try {
    const [running, fired] = [new Set<string>(), [] as number[]];
    const leader = (name: string) => async ({ finish, isHeld }: { finish: AbortSignal; isHeld: boolean }) => {
      assert.ok(isHeld && running.size === 0, `${name} at the same time as ${[...running]}`);
      running.add(name);
      await new Promise((stop) => finish.addEventListener("abort", stop));
      running.delete(name);
    };
    const run = await first.singleton("leader", leader("first"));
    await eventually("the first runs it", () => running.has("first"));
    await second.singleton("leader", leader("second"));
    for (const lease of [first, second]) await lease.timer("tick", { everyMs: 1_000 }, ({ number }) => void fired.push(number));
    await eventually("periods are fired", () => fired.length >= 3);
    assert.equal(new Set(fired).size, fired.length, "each once");
    await run.stop();
    await eventually("the second runs it", () => running.has("second"));
    await assert.rejects(first.singleton("x".repeat(1_000), () => undefined), (error) => error instanceof Problem);
  } finally {
    await Promise.all([first.close(), second.close()]);
  }
});

test("without a lease nothing is owned, and there is one", async () => {
  await assert.rejects(one.owned(["a"]), (error) => error instanceof Problem && error.kind === "lease-missing");
  const lease = await one.lease({ ttlMs: 1_000 });
  await assert.rejects(one.lease({ ttlMs: 1_000, waitMs: 300 }), (error) => error instanceof Problem && error.kind === "lease-taken");
  await lease.close();
});

test("requests reach the workers", async () => {
  const servers = LEASED.map(({ port }) => {
    const handlers = new RequestHandlers().onRequest("whoami", () => port).onAny("rules", () => ["a"]).onRequest("status", () => ({ mine: port }));
    return http.createServer(handlers.listener).listen(port, "127.0.0.1");
  });
  try {
    const ids = await Promise.all([one, other].map(async (each) => (await each.ownership()).instance_id));
    for (const [at, id] of ids.entries()) {
      const port = LEASED[at]?.port;
      assert.equal((await one.instance(id, "whoami")).json(), port);
      assert.deepEqual((await other.instance(id, "status")).json(), { mine: port }, "a worker's own status");
      assert.equal((await one.instance(id, "rules")).status, 404);
      assert.equal((await one.any("rules", { query: { instance: id } })).instance, id);
    }
    const leases = await Promise.all([one, other].map((each) => each.lease({ ttlMs: 2_000 })));
    await eventually("they take turns, once both have a lease", async () => {
      const by = await Promise.all(Array.from({ length: 6 }, async () => (await one.any("rules")).instance));
      return new Set(by).size === 2;
    });
    await Promise.all(leases.map((lease) => lease.close()));
    assert.equal((await one.any("whoami")).status, 404, "what is for one instance never answers any");
    assert.ok(ids.includes((await one.any("status")).json<{ instance_id: string }>().instance_id), "the sidecar's own");
  } finally {
    for (const server of servers) {
      server.closeAllConnections();
      server.close();
    }
  }
});

test("requests to keys reach their owner, and a handover loses none", async () => {
  const leases = await Promise.all([one, other].map((each) => each.lease({ ttlMs: 2_000 })));
  const [first, second] = leases as [Lease, Lease];
  const servers = LEASED.map(({ port }, at) => {
    const lease = at === 0 ? first : second;
    const handlers = new RequestHandlers().onOwned("rooms/say", ({ key, fence, guard, text }) => ({ at, key, fence, isHeld: guard?.isHeld, said: text() }), { lease });
    return http.createServer(handlers.listener).listen(port, "127.0.0.1");
  });
  try {
    await areShared(first, second);
    const ids = await Promise.all([one, other].map(async (each) => (await each.ownership()).instance_id));
    const say = (through: Client, key: string) => through.ask({ owner: key }, "rooms/say", { body: "hello", withinMs: PATIENCE_MS });
    for (const key of KEYS.slice(0, 40)) {
      const at = first.owns(key) ? 0 : 1;
      const guard = (at === 0 ? first : second).enter(key);
      guard.leave();
      for (const through of [one, other]) {
        await eventually("another member's claim is seen", async () => (await through.route(key).catch(() => undefined))?.why === "claim");
        const answer = await say(through, key);
        assert.deepEqual([answer.status, answer.instance, answer.json()], [200, ids[at], { at, key, fence: guard.fence, isHeld: true, said: "hello" }]);
      }
    }
    const asking = KEYS.slice(0, 100).map((key) => say(one, key));
    await second.close();
    for (const answer of await Promise.all(asking)) assert.equal(answer.status, 200, answer.text());
    assert.equal((await say(other, KEYS[0] ?? "")).instance, ids[0], "the one that is left");
  } finally {
    await Promise.all(leases.map((lease) => lease.close()));
    for (const server of servers) {
      server.closeAllConnections();
      server.close();
    }
  }
});

test("a caller that gives up ends the handler", async () => {
  await using lease = await one.lease({ ttlMs: 2_000 });
  let [running, ended] = [0, 0];
  const handlers = new RequestHandlers().onOwned("slow", async ({ signal }) => {
    running += 1;
    await asked({ finish: signal });
    ended += 1;
  }, { lease });
  const server = http.createServer(handlers.listener).listen(LEASED[0].port, "127.0.0.1");
  try {
    await areShared(lease);
    const ends = new AbortController();
    const given = other.ask({ owner: KEYS[0] ?? "" }, "slow", { body: "", signal: ends.signal, withinMs: PATIENCE_MS });
    await eventually("it is handled", () => running === 1);
    ends.abort(new Error("enough"));
    await assert.rejects(given, /enough/);
    await eventually("the handler has ended", () => ended === 1);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test("other processes of a worker use its lease", async () => {
  await using lease = await one.lease({ ttlMs: 2_000 });
  await areShared(lease);
  const [other, id] = [client(LEASED[0].url), lease.id ?? ""];
  assert.deepEqual((await other.owned(KEYS, { lease: id })).keys, KEYS);
  const held = await other.enter(KEYS, { lease: id });
  assert.deepEqual(held.map(({ key }) => key), KEYS);
  for (const { key, slot, epoch, valid_ms } of held) {
    const guard = lease.enter(key);
    guard.leave();
    assert.deepEqual(guard.fence, { slot, epoch });
    assert.ok(valid_ms > 0 && valid_ms <= 2_000);
  }
  await lease.close();
  await assert.rejects(other.enter(KEYS, { lease: id }), (error) => error instanceof Problem && error.status === 410);
});
