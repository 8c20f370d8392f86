/** Work on keys, on a sidecar that grants what the test says. */

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { test } from "node:test";

import { type Guard, LeaseEnded, NotHeld, type SlotChange } from "../src/index.js";
import { RetryPauses } from "../src/waits.js";
import { eventually } from "./common.js";
import { KEYS, asked, key, leased, owns } from "./leased.js";

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
    await eventually("the failure is reported", () => errors[0] instanceof RangeError);
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
    await eventually("the end of its former work is said", () => sidecar.finished.includes(four));

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


test("a run that was stopped is over", async () => {
  await leased({}, async (lease, sidecar) => {
    sidecar.grant(5, 3);
    await owns(lease, 3);
    const ended: string[] = [];
    const run = lease.runOwned([key(3)], async (_, guard) => {
      await asked(guard);
      await sleep(50);
      ended.push("work");
    });
    const waiting = run.wait().then(() => ended.push("run"));
    await sleep(100);
    assert.deepEqual(ended, []);
    await run.stop();
    await waiting;
    assert.deepEqual(ended, ["work", "run"]);
    await run.wait();
  });
});

test("with the lease its runs are over", async () => {
  await leased({}, async (lease, sidecar) => {
    sidecar.grant(5, 3);
    await owns(lease, 3);
    const runs = [lease.runOwned([key(3)], () => new Promise<void>(() => undefined)), await lease.singleton("leader", asked)];
    const waiting = runs.map((run) => run.wait());
    await lease.close({ withinMs: 50 });
    await Promise.all(waiting);
    await assert.rejects(lease.runOwned(KEYS, () => undefined).wait(), LeaseEnded);
  });
  await leased({ reopens: false }, async (lease, sidecar) => {
    const runs = [lease.runOwned(KEYS, (_, guard) => asked(guard)), await lease.singleton("leader", asked)];
    const waiting = runs.map((run) => run.wait());
    sidecar.end(true);
    for (const wait of waiting) await assert.rejects(wait, (error) => error instanceof LeaseEnded && error.isFinal);
    for (const run of runs) await run.stop();
    for (const run of runs) await assert.rejects(run.wait(), LeaseEnded, "the first end counts");
  });
});

test("work that fails begins again after a pause", async () => {
  await leased({}, async (lease, sidecar, errors) => {
    const begun: { at: number; epoch: number }[] = [];
    let failures = 2;
    const work = async (_: string, guard: Guard) => {
      begun.push({ at: performance.now(), epoch: guard.fence.epoch });
      if (failures-- > 0) throw new RangeError("not yet");
      await asked(guard);
    };
    const [three = 0] = sidecar.grant(5, 3);
    await owns(lease, 3);
    const run = lease.runOwned([key(3)], work);
    await eventually("it has failed twice", () => begun.length === 3);
    const [first = 0, second = 0, third = 0] = begun.map(({ at }) => at);
    assert.ok(second - first > 450 && third - second > 950, `${[first, second, third]}`);
    assert.deepEqual(errors.map(String), ["RangeError: not yet", "RangeError: not yet"]);
    await run.stop();

    failures = 1_000;
    const failing = lease.runOwned([key(3)], work);
    await eventually("it fails", () => begun.length === 4);
    sidecar.ask(three);
    await eventually("nothing is in flight in the pause", () => sidecar.finished.includes(three));
    sidecar.grant(6, 3);
    await eventually("it begins under the next grant", () => begun.at(-1)?.epoch === 6);
    failing.setKeys([]);
    failing.setKeys([key(3)]);
    const tries = begun.length;
    await eventually("it is wanted again", () => begun.length > tries);
    await failing.stop();
    const last = begun.length;
    await sleep(1_200);
    assert.equal(begun.length, last, "nothing begins after the stop");
  });
});

test("pauses grow, and are short again after work that ran well", () => {
  const pauses = new RetryPauses();
  assert.deepEqual(Array.from({ length: 8 }, () => pauses.next(10)), [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
  assert.deepEqual([pauses.next(60_000), pauses.next(10)], [500, 1_000]);
});

test("work waits for the end of work that has lost its slot", async () => {
  await leased({}, async (lease, sidecar) => {
    sidecar.grant(5, 3);
    await owns(lease, 3);
    const [old, begun] = [lease.enter(key(3)), [] as Guard[]];
    lease.runOwned([key(3)], async (_, guard) => {
      begun.push(guard);
      await asked(guard);
    });
    await eventually("both are held at the same time", () => begun.length === 1);
    sidecar.instead = ({ method, path }) => (method === "PUT" && path.startsWith("leases/") ? "mute" : undefined);
    await eventually("all is lost", () => old.lost.aborted && begun[0]?.lost.aborted === true);
    sidecar.instead = () => undefined;
    await owns(lease, 3);
    await assert.rejects(lease.runExclusive(key(3), () => 0), NotHeld);
    await sleep(100);
    assert.equal(begun.length, 1);
    old.leave();
    await eventually("it begins again", () => begun[1]?.isHeld === true);
    assert.equal(begun[1]?.fence.epoch, old.fence.epoch);
  });
});
