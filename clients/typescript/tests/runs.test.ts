/** Work on keys, on a sidecar that grants what the test says. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Guard, LeaseEnded, NotHeld, type SlotChange } from "../src/index.js";
import { eventually } from "./common.js";
import { KEYS, key, leased, owns } from "./leased.js";

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

