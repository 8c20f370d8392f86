/** Leases on a sidecar that does what a real one cannot be made to do. */

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { test } from "node:test";

import { type Clock, LeaseEnded, NotHeld, Problem, Unavailable } from "../src/index.js";
import { slotOfKey } from "../src/hash.js";
import { PATIENCE_MS, client, eventually } from "./common.js";
import { FakeSidecar, problem } from "./fake.js";
import { KEYS, TTL_MS, key, leased, owns } from "./leased.js";

test("what is granted is owned, entered and finished", async () => {
  await leased({}, async (lease, sidecar) => {
    assert.deepEqual([lease.owned(KEYS), lease.owns(key(3)), lease.slotsOwned], [[], false, 0]);
    const [three, four] = sidecar.grant(5, 3, 4, 5);
    await owns(lease, 3, 4, 5);
    assert.ok(lease.owns(key(3)) && !lease.owns(key(6)) && lease.isLive && lease.slotsOwned === 3);
    const before = sidecar.asked.length;
    const many = Array.from({ length: 10_000 }, (_, n) => `tenant-${n}`);
    assert.deepEqual(lease.owned(many), many.filter((each) => [3, 4, 5].includes(slotOfKey(each, 16))));
    assert.equal(sidecar.asked.slice(before).filter(({ method }) => method !== "PUT").length, 0, "without a request");
    {
      await using guard = lease.enter(key(3));
      assert.deepEqual([guard.fence, guard.isHeld], [{ slot: 3, epoch: 5 }, true]);
      sidecar.ask(three ?? 0, four ?? 0);
      await eventually("slot 4 is let go at once", () => sidecar.finished.includes(four ?? 0));
      await eventually("slot 3 must be finished", () => guard.finish.aborted);
      assert.throws(() => lease.enter(key(3)), NotHeld);
      assert.ok(!lease.owns(key(3)) && guard.isHeld && !guard.lost.aborted && !sidecar.finished.includes(three ?? 0));
    }
    await eventually("slot 3 is let go", () => sidecar.finished.includes(three ?? 0));
    await owns(lease, 5);
    assert.throws(() => lease.enter(key(6)), (error) => error instanceof NotHeld && /slot 6/.test(error.message));
  });
});

test("the sidecar can be asked as well", async () => {
  await leased({}, async (lease, sidecar) => {
    sidecar.grant(5, 3);
    await owns(lease, 3);
    await lease.confirm(key(3));
    sidecar.grants.clear();
    assert.ok(lease.owns(key(3)), "it has not heard of it");
    await assert.rejects(lease.confirm(key(3)), (error) => error instanceof NotHeld && /its sidecar says so/.test(error.message));
    sidecar.instead = ({ path }) => (path === "enter" ? problem(410, "lease-ended") : undefined);
    await assert.rejects(lease.confirm(key(3)), (error) => error instanceof Problem && error.status === 410);
    await eventually("the lease has ended", () => !lease.owns(key(3)));
  });
});

test("a string is no list", async () => {
  await leased({}, async (lease) => {
    for (const call of [() => lease.owned("abc" as never), () => lease.runOwned("abc" as never, () => undefined), () => lease.onRebalance(() => 0, "abc" as never)]) {
      assert.throws(call, (error) => error instanceof TypeError && error.message.includes('["abc"]'));
    }
    assert.throws(() => lease.owned([7] as never), TypeError);
  });
  await assert.rejects(client("http://127.0.0.1:9").owned("abc" as never), TypeError);
  await assert.rejects(client("http://127.0.0.1:9").ownedStream("abc" as never).next(), TypeError);
  for (const ttlMs of [999, 60_001, 1_000.5, NaN]) await assert.rejects(client("http://127.0.0.1:9").lease({ ttlMs }), RangeError);
});

test("a silent sidecar ends the work in time", async () => {
  await leased({}, async (lease, sidecar, errors) => {
    sidecar.grant(5, 3);
    await owns(lease, 3);
    const guard = lease.enter(key(3));
    let renewed = 0;
    sidecar.instead = ({ method, path }) => {
      if (method !== "PUT" || !path.startsWith("leases/")) return undefined;
      renewed ||= performance.now();
      return "mute";
    };
    await eventually("a renewal is not answered", () => renewed > 0);
    const lost = await new Promise<number>((at) => guard.lost.addEventListener("abort", () => at(performance.now())));
    assert.ok(lost - renewed < TTL_MS, `${lost - renewed} ms after the first renewal that was not answered`);
    assert.match(String(guard.lost.reason), /no renewal of the lease was answered in time/);
    assert.deepEqual([lease.owned(KEYS), lease.isLive, guard.isHeld, errors], [[], false, false, []]);
    sidecar.instead = () => undefined;
    await owns(lease, 3);
    assert.ok(!guard.isHeld, "the old guard stays lost");
    assert.throws(() => lease.enter(key(3)), /work that has lost it has not ended yet/);
    guard.leave();
    assert.ok(lease.enter(key(3)).isHeld);
  });
});

test("answers that are too late prove nothing", async () => {
  await leased({ ttlMs: 1_000 }, async (lease, sidecar) => {
    sidecar.lateMs = 450;
    sidecar.grant(5, 3);
    await eventually("late answers are shorter grants", () => sidecar.count("PUT", /^leases/) >= 3 && lease.owns(key(3)));
    sidecar.lateMs = 1_100;
    await eventually("later ones are none", () => !lease.isLive);
  });
});

test("renewals say what was processed", async () => {
  await leased({}, async (lease, sidecar) => {
    sidecar.grant(5, 3);
    await owns(lease, 3);
    const { version } = sidecar;
    await eventually("it is seen", () => sidecar.asked.some(({ path, body }) => path.startsWith("leases/") && body["seen"] === version));
    assert.ok(sidecar.asked.filter(({ method, path }) => method === "PUT" && path.startsWith("leases/")).every(({ body }) => "seen" in body));
  });
});

test("a lease that has ended takes everything with it", async () => {
  for (const isTold of [true, false]) {
    await leased({}, async (lease, sidecar, errors) => {
      const ended: LeaseEnded[] = [];
      const stop = lease.onEnded((end) => ended.push(end));
      sidecar.grant(5, 3);
      await owns(lease, 3);
      const [guard, id] = [lease.enter(key(3)), lease.id];
      sidecar.end(isTold);
      await eventually("the work is lost", () => guard.lost.aborted);
      assert.ok(guard.lost.reason instanceof LeaseEnded && !guard.lost.reason.isFinal && !guard.isHeld);
      await eventually("it is reported", () => ended.length === 1);
      assert.match(String(ended[0]), isTold ? /the test says so/ : /not renewed in time/);
      await eventually("another one is opened", () => sidecar.lease !== undefined && lease.id !== undefined);
      assert.notEqual(lease.id, id);
      sidecar.grant(6, 3);
      await owns(lease, 3);
      assert.throws(() => lease.enter(key(3)), NotHeld);
      assert.ok(!guard.isHeld);
      guard.leave();
      const next = lease.enter(key(3));
      assert.equal(next.fence.epoch, 6);
      assert.equal(errors.length, 0, `${errors}`);
      stop();
      sidecar.end(isTold);
      await eventually("without a callback it is an error", () => errors.some((error) => error instanceof LeaseEnded));
      next.leave();
    });
  }
});

test("a lease may end for good", async () => {
  await leased({ reopens: false }, async (lease, sidecar, errors) => {
    sidecar.grant(5, 3);
    await owns(lease, 3);
    sidecar.end(true);
    await eventually("it is over", () => errors.length === 1);
    assert.ok(errors[0] instanceof LeaseEnded && errors[0].isFinal);
    for (const call of [() => lease.owned(KEYS), () => lease.owns(key(3)), () => lease.enter(key(3))]) assert.throws(call, LeaseEnded);
    await assert.rejects(lease.singleton("leader", () => undefined), LeaseEnded);
    assert.equal(sidecar.count("POST", /^leases$/), 1);
  });
  await leased({}, async (lease, sidecar, errors) => {
    sidecar.instead = ({ method }) => (method === "PUT" ? problem(401, "unauthorized") : undefined);
    await eventually("another token is needed", () => errors.length === 1);
    assert.ok(errors[0] instanceof LeaseEnded && errors[0].isFinal && errors[0].cause instanceof Problem, String(errors[0]));
  });
});

test("a second lease waits for the first", async () => {
  await leased({}, async (lease, sidecar, _, url) => {
    await assert.rejects(client(url).lease({ ttlMs: 1_000, waitMs: 3_000 }), (error) => error instanceof Problem && error.kind === "lease-taken");
    const leaving = new AbortController();
    const aborted = client(url).lease({ ttlMs: 1_000, signal: leaving.signal });
    leaving.abort(new Error("enough"));
    await assert.rejects(aborted, /enough/);
    const second = client(url).lease({ ttlMs: 1_000 });
    await lease.close();
    await (await second).close();
  });
  await FakeSidecar.with(async (sidecar, url) => {
    sidecar.instead = ({ path }) => (path === "grants" ? problem(409, "conflict", "nothing is granted") : undefined);
    await assert.rejects(client(url).lease({ ttlMs: 1_000 }), (error) => error instanceof Problem && error.detail === "nothing is granted");
    sidecar.instead = ({ path }) => (path === "grants" ? "mute" : undefined);
    sidecar.lease = undefined;
    await assert.rejects(client(url).lease({ ttlMs: 1_000, waitMs: 300 }), Unavailable);
  });
});

test("what is finished is said until it is heard", async () => {
  await leased({}, async (lease, sidecar) => {
    const numbers = sidecar.grant(5, 3, 4);
    await owns(lease, 3, 4);
    let refusals = 3;
    sidecar.instead = ({ path }) => (path === "grants/finished" && refusals-- > 0 ? problem(503, "unavailable") : undefined);
    sidecar.ask(...numbers);
    await eventually("it is heard", () => `${sidecar.finished}` === `${numbers}`);
    assert.equal(refusals, -1);
  });
});

test("what was missed is in the table of the next connection", async () => {
  await leased({}, async (lease, sidecar) => {
    const [three] = sidecar.grant(5, 3, 4);
    await owns(lease, 3, 4);
    const guard = lease.enter(key(3));
    sidecar.breaks();
    sidecar.lose(three ?? 0);
    sidecar.grant(5, 7);
    await owns(lease, 4, 7);
    assert.ok(guard.lost.aborted && !guard.isHeld);
    guard.leave();
    await eventually("its end is confirmed", () => sidecar.finished.includes(three ?? 0));
  });
});

test("a renewal from behind a change waits for the change", async () => {
  await leased({ ttlMs: 1_000 }, async (lease, sidecar) => {
    sidecar.grant(5, 3);
    await owns(lease, 3);
    // Not one line says so, as if the stream were slow: such renewals extend nothing.
    sidecar.instead = ({ method, path }) => {
      if (method !== "PUT" || !path.startsWith("leases/")) return undefined;
      return { status: 200, body: { id: lease.id, ttl_ms: 1_000, valid_ms: 1_000, version: sidecar.version + 1 } };
    };
    await eventually("it is not live", () => !lease.isLive);
    sidecar.grant(5, 4);
    await owns(lease, 3, 4);
  });
});

test("closing waits for the work", async () => {
  await leased({}, async (lease, sidecar) => {
    sidecar.grant(5, 3, 4);
    await owns(lease, 3, 4);
    const ended: string[] = [];
    lease.runOwned([key(3)], async (_, guard) => {
      await new Promise((stop) => guard.finish.addEventListener("abort", stop));
      await sleep(100);
      ended.push(guard.isHeld ? "held" : "lost");
    });
    await eventually("it runs", () => lease.slotsOwned === 2);
    await lease.close();
    assert.deepEqual([ended, sidecar.count("DELETE", /^leases/), sidecar.lease], [["held"], 1, undefined]);
    assert.throws(() => lease.owned(KEYS), LeaseEnded);
    const requests = sidecar.asked.length;
    await sleep(500);
    assert.equal(sidecar.asked.length, requests, "nothing is asked any more");
  });
  await leased({}, async (lease, sidecar) => {
    sidecar.grant(5, 3);
    await owns(lease, 3);
    const guard = lease.enter(key(3));
    const begun = Date.now();
    await lease.close({ withinMs: 100 });
    assert.ok(guard.lost.aborted && Date.now() - begun < PATIENCE_MS / 2);
    assert.equal(sidecar.count("DELETE", /^leases/), 0, "work still runs, so the slots stay until the lease expires");
  });
});

test("a clock that jumps ends the work, as after a suspend", async () => {
  let jumped = 0;
  const clock: Clock = {
    now: () => performance.now() + jumped,
    after: (ms, call) => {
      const timer = setTimeout(call, ms);
      return () => clearTimeout(timer);
    },
  };
  await leased({ ttlMs: 60_000, clock }, async (lease, sidecar) => {
    sidecar.grant(5, 3, 4);
    await owns(lease, 3, 4);
    const guard = lease.enter(key(3));
    const exclusive = lease.runExclusive(key(4), ({ lost }) => new Promise<void>((stop) => lost.addEventListener("abort", () => stop())));
    jumped = 61_000;
    assert.deepEqual([lease.owned(KEYS), lease.owns(key(3)), lease.isLive, guard.isHeld], [[], false, false, false], "at once, by the clock");
    assert.throws(() => lease.enter(key(3)), NotHeld);
    const begun = performance.now();
    await assert.rejects(exclusive, NotHeld);
    assert.ok(guard.lost.aborted && performance.now() - begun < 15_000, "not only with the next renewal, 20 s after the last one");
    guard.leave();
  });
  jumped = 0;
  await leased({ clock }, async (lease, sidecar) => {
    sidecar.grant(5, 3);
    await owns(lease, 3);
    const guard = lease.enter(key(3));
    jumped = 5_000;
    assert.ok(!guard.isHeld && !lease.owns(key(3)));
    await owns(lease, 3);
    assert.ok(!guard.isHeld && guard.lost.aborted, "a renewal after the jump does not bring it back");
    guard.leave();
    assert.ok(lease.enter(key(3)).isHeld);
  });
});

test("other processes of the worker use its lease", async () => {
  await leased({}, async (lease, sidecar, _, url) => {
    sidecar.grant(5, 3, 4);
    await owns(lease, 3, 4);
    const [other, id] = [client(url), lease.id ?? ""];
    assert.deepEqual(await other.owned(KEYS, { lease: id }), { keys: [key(3), key(4)], state: "active" });
    assert.deepEqual(await other.ownedStream(KEYS, { lease: id }).next(), { done: false, value: key(3) });
    assert.deepEqual(await other.enter([key(5), key(4)], { lease: id }), [{ key: key(4), slot: 4, epoch: 5, valid_ms: TTL_MS }]);
    const shown = sidecar.asked.filter(({ path }) => path === "owned" || path === "enter").map((request) => request.lease);
    assert.deepEqual(shown, [id, id, id]);
    await assert.rejects(other.enter("abc" as never, { lease: id }), TypeError);
    await lease.close();
    await assert.rejects(other.enter([key(4)], { lease: id }), (error) => error instanceof Problem && error.status === 410);
  });
});
