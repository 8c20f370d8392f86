/** Leases on a sidecar that does what a real one cannot be made to do. */

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { test } from "node:test";

import { type Guard, type Lease, LeaseEnded, type LeaseOptions, NotHeld, Problem, ShardwiseError, type SlotChange, Unavailable } from "../src/index.js";
import { slotOfKey } from "../src/hash.js";
import { PATIENCE_MS, client, eventually } from "./common.js";
import { FakeSidecar, problem } from "./fake.js";

const ALL = Array.from({ length: 16 }, (_, slot) => slot);
/** A key of each of the 16 slots. */
const KEYS = ALL.map((slot) => Array.from({ length: 1_000 }, (_, n) => `key-${n}`).find((key) => slotOfKey(key, 16) === slot) ?? "");
const key = (slot: number) => KEYS[slot] ?? "";

/** A lease on a fake sidecar, and what the lease has reported. */
async function leased(options: LeaseOptions, use: (lease: Lease, sidecar: FakeSidecar, errors: unknown[], url: string) => Promise<void>): Promise<void> {
  await FakeSidecar.with(async (sidecar, url) => {
    const errors: unknown[] = [];
    const lease = await client(url).lease({ ttlMs: 1_000, onError: (error) => errors.push(error), ...options });
    try {
      await use(lease, sidecar, errors, url);
    } finally {
      await lease.close({ withinMs: 0 });
    }
  });
}

const owns = (lease: Lease, ...slots: number[]) => eventually(`it owns ${slots}`, () => `${lease.owned(KEYS)}` === `${slots.map(key)}`);

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
    assert.ok(lost - renewed < 1_000, `${lost - renewed} ms after the first renewal that was not answered`);
    assert.match(String(guard.lost.reason), /no renewal of the lease was answered in time/);
    assert.deepEqual([lease.owned(KEYS), lease.isLive, guard.isHeld, errors], [[], false, false, []]);
    sidecar.instead = () => undefined;
    await owns(lease, 3);
    assert.ok(!guard.isHeld && lease.enter(key(3)).isHeld, "the old guard stays lost");
    guard.leave();
  });
});

test("answers that are too late prove nothing", async () => {
  await leased({}, async (lease, sidecar) => {
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
      const next = lease.enter(key(3));
      assert.equal(next.fence.epoch, 6);
      assert.ok(!guard.isHeld);
      guard.leave();
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
  await leased({}, async (lease, sidecar) => {
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

test("work runs while its key is held", async () => {
  await leased({}, async (lease, sidecar, errors) => {
    const events: string[] = [];
    const guards = new Map<string, Guard>();
    let slow: Promise<void> | undefined;
    const run = lease.runOwned(KEYS.slice(0, 6), async (each, guard) => {
      events.push(`+${each}`);
      guards.set(each, guard);
      if (each === key(1)) return;
      if (each === key(2)) throw new RangeError("no such tenant");
      await new Promise((stop) => guard.finish.addEventListener("abort", stop));
      if (each === key(4)) await slow;
      events.push(`-${each}`);
    });
    const said = (...all: string[]) => eventually(`${all}`, () => all.every((each) => events.includes(each)));
    const times = (what: string) => events.filter((each) => each === what).length;
    const [one = 0, , three = 0, four = 0] = sidecar.grant(5, 1, 2, 3, 4);
    await said(`+${key(1)}`, `+${key(2)}`, `+${key(3)}`, `+${key(4)}`);
    await eventually("the failure is reported", () => errors.length === 1 && errors[0] instanceof RangeError);
    sidecar.ask(one, three);
    await said(`-${key(3)}`);
    await eventually("both are let go", () => sidecar.finished.includes(one) && sidecar.finished.includes(three));

    // Regained while its last work is still ending.
    let end = () => {};
    slow = new Promise((ends) => { end = ends; });
    sidecar.lose(four);
    await eventually("its work is asked to stop", () => guards.get(key(4))?.lost.aborted === true);
    sidecar.grant(6, 4, 1);
    await eventually("work that had ended begins again", () => times(`+${key(1)}`) === 2);
    assert.equal(times(`+${key(4)}`), 1, "one task of a key at a time");
    end();
    await eventually("and then it begins", () => times(`+${key(4)}`) === 2 && guards.get(key(4))?.isHeld === true);
    assert.ok(sidecar.finished.includes(four));

    run.setKeys([key(4), key(5), key(9)]);
    sidecar.grant(6, 9);
    await said(`+${key(9)}`);
    run.setKeys([key(5)]);
    await said(`-${key(9)}`);
    assert.equal(lease.owns(key(9)), true, "the slot stays");
    run.setKeys(KEYS);
    await eventually("it is wanted again", () => times(`+${key(9)}`) === 2);
    await run.stop();
    assert.equal(times(`-${key(9)}`), 2);
    assert.deepEqual(errors.length, times(`+${key(2)}`), `${errors}`);
    sidecar.grant(7, 12);
    await eventually("it is granted", () => lease.owns(key(12)));
    assert.ok(!events.includes(`+${key(12)}`), "nothing begins after the stop");
  });
});

test("exclusive work says if it has lost its key", async () => {
  await leased({}, async (lease, sidecar) => {
    const [three = 0] = sidecar.grant(5, 3);
    await owns(lease, 3);
    assert.equal(await lease.runExclusive(key(3), (guard) => guard.fence.epoch), 5);
    await assert.rejects(lease.runExclusive(key(3), () => Promise.reject(new RangeError("no"))), RangeError);
    await assert.rejects(lease.runExclusive(key(4), () => 0), NotHeld);
    const lost = lease.runExclusive(key(3), (guard) => new Promise((end) => guard.lost.addEventListener("abort", end)));
    sidecar.lose(three);
    await assert.rejects(lost, (error) => error instanceof NotHeld && /slot 3 is not held/.test(error.message));
    await eventually("its end is confirmed", () => sidecar.finished.includes(three));
  });
});

test("changes are reported with the keys that are owned", async () => {
  await leased({}, async (lease, sidecar, errors) => {
    const changes: SlotChange[] = [];
    sidecar.grant(5, 1, 2);
    await owns(lease, 1, 2);
    const stop = lease.onRebalance((change) => changes.push(change), KEYS.slice(2));
    lease.onRebalance(() => { throw new RangeError("no"); });
    const last = (slotsOwned: number, keysOwned: number) => eventually(`${slotsOwned}`, () => changes.at(-1)?.slotsOwned === slotsOwned && changes.at(-1)?.keysOwned === keysOwned);
    await last(2, 1);
    const [three = 0] = sidecar.grant(5, 3, 4);
    await last(4, 3);
    sidecar.ask(three);
    await last(3, 2);
    assert.deepEqual(changes.at(-1)?.lost, [3]);
    sidecar.end(true);
    await last(0, 0);
    const seen = changes.length;
    stop();
    await eventually("another lease is opened", () => lease.id !== undefined);
    sidecar.grant(6, 1);
    await owns(lease, 1);
    assert.equal(changes.length, seen);
    assert.ok(errors.length > 0 && errors.every((error) => error instanceof RangeError || error instanceof LeaseEnded));
  });
});

test("singletons, daemons and timers run while their names are held", async () => {
  await leased({}, async (lease, sidecar, errors) => {
    const events: string[] = [];
    const until = (what: string) => eventually(what, () => events.includes(what));
    const leader = await lease.singleton("leader", async (tenure) => {
      events.push(`leader ${tenure.fence.epoch} ${events.length}`);
      if (tenure.fence.epoch === 5 && errors.length === 0) throw new RangeError("not yet");
      if (tenure.fence.epoch === 6) await new Promise((stop) => tenure.finish.addEventListener("abort", stop));
    });
    await lease.daemons("", async (number, { finish }) => {
      events.push(`daemon ${number}`);
      await new Promise((stop) => finish.addEventListener("abort", stop));
    });
    await lease.daemons("indexers", (number) => void events.push(`indexer ${number}`));
    await lease.timer("report", { everyMs: 60_000, phaseMs: 5 }, (period) => {
      events.push(`report ${period.number}`);
      if (period.number === 12) throw new RangeError("no report");
    });
    const timers = [{ name: "report", every_ms: 60_000, phase_ms: 5 }];
    assert.deepEqual(sidecar.asked.filter(({ path }) => path === "names").at(-1)?.body, { singletons: ["leader"], daemons: ["", "indexers"], timers });
    assert.throws(() => void lease.enter("singleton/leader"), NotHeld);

    const [first = 0] = sidecar.grant(5, "singleton/leader");
    await until("leader 5 0");
    await eventually("it begins again under the same epoch, and ends well", () => events.some((each) => each.startsWith("leader 5") && each !== "leader 5 0"));
    await eventually("its name is given up", () => sidecar.finished.includes(first));
    assert.deepEqual(errors.map(String), ["RangeError: not yet"]);

    const [second = 0, daemon = 0] = sidecar.grant(6, "singleton/leader", "daemon/3", "daemon/indexers/7", "daemon/others/1");
    await until("daemon 3");
    await until("indexer 7");
    await eventually("it runs", () => events.some((each) => each.startsWith("leader 6")));
    sidecar.ask(daemon);
    await eventually("the daemon has ended", () => sidecar.finished.includes(daemon));
    assert.ok(!sidecar.finished.includes(second));

    for (const number of [11, 12, 12, 11, 13]) {
      sidecar.fire("timer/report", number);
      await eventually("the end of each job is reported", () => [...sidecar.grants.values()].every(({ period }) => period === null));
    }
    assert.deepEqual(events.filter((each) => each.startsWith("report")), ["report 11", "report 12", "report 13"], "no period twice");
    assert.deepEqual(errors.map(String).slice(1), ["RangeError: no report"]);

    await leader.stop();
    await eventually("the offer is withdrawn", () => !JSON.stringify(sidecar.asked.filter(({ path }) => path === "names").at(-1)?.body).includes("leader"));
    sidecar.ask(second);
    await eventually("it is let go", () => sidecar.finished.includes(second));
    await assert.rejects(lease.daemons("indexers", () => undefined), ShardwiseError);
  });
});

test("names that are refused are withdrawn, and a new lease offers the rest", async () => {
  await leased({}, async (lease, sidecar) => {
    await lease.singleton("leader", () => undefined);
    sidecar.instead = ({ path, body }) => (path === "names" && JSON.stringify(body).includes("bad") ? problem(400, "bad-request", "no such name") : undefined);
    await assert.rejects(lease.singleton("bad\n", () => undefined), (error) => error instanceof Problem && error.status === 400);
    lease.onEnded(() => undefined);
    sidecar.end(false);
    await eventually("the good one is offered again", () => {
      const last = sidecar.asked.filter(({ path, lease: id }) => path === "names" && id === "lease-2").at(-1);
      return JSON.stringify(last?.body["singletons"]) === '["leader"]';
    });
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
