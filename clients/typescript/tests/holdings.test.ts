/** Grants, their deadline and the work in flight, with a clock that the test moves. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Grant, LeaseEnded, NotHeld } from "../src/index.js";
import type { Guard } from "../src/guard.js";
import { Holdings } from "../src/holdings.js";
import { Held, TestClock, grant } from "./held.js";

const BUSY = /work that has lost it has not ended yet/;

test("a deadline counts from before the question", () => {
  const held = new Held();
  held.refuses(3, /slot 3 is not held/);
  const asked = held.clock.time;
  held.clock.pass(400);
  held.line("all", [grant(10, 3)], 1_000, asked);
  const [guard] = held.guard(3);
  held.clock.pass(599, false);
  assert.ok(guard.isHeld && held.holdings.isValid);
  held.clock.pass(1, false);
  assert.ok(!guard.isHeld && !held.holdings.isValid, "by the clock alone, before any timer has run");
  held.refuses(3, /no renewal of the lease was answered in time/);
  assert.ok(!guard.lost.aborted);
  held.clock.pass(0);
  assert.ok(guard.lost.aborted && guard.finish.aborted && guard.lost.reason instanceof NotHeld);
});

test("an answer that comes too late extends nothing", () => {
  const held = Held.of(3);
  const asked = held.clock.time;
  held.clock.pass(2_000);
  held.holdings.extend(asked + 1_000, held.version);
  assert.ok(!held.holdings.isValid);
  held.holdings.extend(NaN, held.version);
  assert.ok(!held.holdings.isValid);
  held.holdings.extend(held.clock.time + 1_000, held.version);
  assert.ok(held.holdings.isValid);
});

test("what was lost through a gap stays lost", () => {
  for (const runs of [true, false]) {
    const held = Held.of(3);
    const [old] = held.guard(3);
    held.clock.pass(1_000, runs);
    held.holdings.extend(held.clock.time + 1_000, held.version);
    assert.ok(!old.isHeld && old.lost.aborted, "also if the renewal is processed before the timer");
    assert.deepEqual(held.changes.at(-1), runs ? "+3 -" : "+3 -3");
    held.refuses(3, BUSY);
    held.line("finish", [grant(10, 3, 5, true)]);
    assert.deepEqual(held.finished, [], "the old work still runs in the slot");
    old.leave();
    assert.deepEqual(held.finished, [10]);
  }
});

test("a renewal counts once the stream has come so far", () => {
  const held = Held.of(3, 4);
  const [guard] = held.guard(3);
  held.holdings.extend(held.clock.time + 5_000, held.version + 1);
  held.clock.pass(999);
  held.line("lost", [grant(10, 3)]);
  assert.ok(!guard.isHeld && guard.lost.aborted, "it was lost before the renewal");
  held.clock.pass(4_000);
  assert.ok(held.holdings.isValid, "the renewal counts for the other slot");
  held.guard(4);
  for (let ahead = 2; ahead < 50; ahead++) held.holdings.extend(held.clock.time + 100 * ahead, held.version + ahead);
  held.clock.pass(1);
  assert.ok(!held.holdings.isValid, "the stream is behind");
  held.version += 60;
  held.line("alive");
  assert.ok(held.holdings.isValid, "the newest are kept");
});

test("only the first line says how long the grants hold", () => {
  const held = Held.of(3);
  held.line("alive", [], 60_000);
  held.line("granted", [grant(11, 4)], 60_000);
  held.guard(4);
  held.clock.pass(1_000);
  held.refuses(4, /no renewal/);
});

test("the deadline has a margin", () => {
  const clock = new TestClock();
  const holdings = new Holdings(clock, { finished: () => undefined, changed: () => undefined }, 50);
  holdings.begin();
  holdings.apply({ type: "all", version: 1, valid_ms: 1_000, slots: 16, grants: [grant(10, 3)] }, clock.time);
  clock.pass(949, false);
  assert.ok(holdings.isValid);
  clock.pass(1, false);
  assert.ok(!holdings.isValid);
});

test("a slot is let go when its last work has ended", () => {
  const held = Held.of(3, 4);
  const [first, second] = [held.guard(3)[0], held.guard(3)[0]];
  held.line("finish", [grant(10, 3), grant(11, 4)]);
  assert.deepEqual(held.finished, [11], "nothing works in it: at once");
  held.refuses(3, /slot 3 is being handed over/);
  held.refuses(4, /slot 4 is not held/);
  assert.ok(first.finish.aborted && !first.lost.aborted && first.isHeld, "work in flight may end");
  first.leave();
  first.leave();
  assert.deepEqual(held.finished, [11]);
  second.leave();
  assert.deepEqual(held.finished, [11, 10]);
  assert.ok(!second.isHeld);
  held.line("lost", [grant(10, 3)]);
  assert.deepEqual([held.finished, held.changes], [[11, 10], ["+3,4 -", "+ -3,4"]], "and only once");
});

test("a listener may leave", () => {
  const held = Held.of(3);
  const [guard] = held.guard(3);
  guard.finish.addEventListener("abort", () => guard.leave());
  held.line("finish", [grant(10, 3)]);
  assert.deepEqual(held.finished, [10]);
});

test("what is lost is confirmed once its work has ended", () => {
  const held = Held.of(3, 4);
  const [guard] = held.guard(3);
  held.line("lost", [grant(10, 3), grant(11, 4)]);
  assert.ok(guard.lost.aborted && !guard.isHeld);
  assert.deepEqual(held.finished, [11]);
  held.line("granted", [grant(12, 3, 6)]);
  held.refuses(3, BUSY);
  guard.leave();
  assert.deepEqual(held.finished, [11, 10]);
  assert.equal(held.guard(3)[0].fence.epoch, 6);
});

test("a handover that is called off is a new grant", () => {
  const held = Held.of(3);
  const [guard] = held.guard(3);
  held.line("finish", [grant(10, 3)]);
  guard.leave();
  held.line("granted", [grant(11, 3)]);
  assert.equal(held.guard(3)[0].fence.epoch, 5);
  assert.ok(!guard.isHeld);
  assert.deepEqual(held.changes, ["+3 -", "+ -3", "+3 -"]);
});

test("a grant that replaces another one is a loss and a gain", () => {
  const held = Held.of(3);
  const [guard] = held.guard(3);
  held.line("granted", [grant(11, 3, 6)]);
  assert.ok(guard.lost.aborted);
  assert.equal(held.changes.at(-1), "+3 -3");
  guard.leave();
  assert.ok(held.guard(3)[0].isHeld);
});

test("lost work that has not ended keeps other work out of its slot", () => {
  const held = Held.of(3, 4);
  const [one, other] = [held.guard(3)[0], held.guard(3)[0]];
  held.clock.pass(1_000);
  held.holdings.extend(held.clock.time + 1_000, held.version);
  held.refuses(3, BUSY);
  assert.ok(held.guard(4)[0].isHeld && held.holdings.isOpen(3), "the slot is owned all the same");
  one.leave();
  held.refuses(3, BUSY);
  assert.deepEqual(held.freed, []);
  other.leave();
  assert.deepEqual(held.freed, [3]);
  const [next] = held.guard(3);
  assert.ok(next.isHeld && next.fence.epoch === other.fence.epoch, "the same grant");
  next.leave();
  assert.deepEqual(held.freed, [3], "it was not lost");
});

test("another lease may count its grants anew", () => {
  const held = Held.of(3);
  const tenure = held.holdings.tenure(3);
  held.holdings.end(new LeaseEnded("the sidecar has restarted", false));
  held.holdings.begin();
  held.line("all", [grant(10, 3, 6)], 1_000);
  assert.ok(tenure !== undefined && held.holdings.tenure(3) !== undefined && held.holdings.tenure(3) !== tenure);
});

test("a new connection brings the whole table", () => {
  const held = Held.of(3, 4, 5);
  const [stays, goes, ends] = [3, 4, 5].map((slot) => held.guard(slot)[0]) as [Guard, Guard, Guard];
  held.line("finish", [grant(12, 5)]);
  ends.leave();
  assert.deepEqual(held.finished, [12]);
  held.clock.pass(500);
  held.line("all", [grant(10, 3), grant(12, 5, 5, true), grant(13, 6)], 1_000);
  assert.ok(stays.isHeld && !goes.isHeld && goes.lost.aborted);
  held.refuses(5, /not held/);
  assert.deepEqual(held.finished, [12], "a table from before it was let go does not bring it back");
  held.clock.pass(999);
  assert.ok(stays.isHeld && held.guard(6)[0].isHeld);
  goes.leave();
  assert.deepEqual(held.finished, [12, 11]);
});

test("another ring needs another lease", () => {
  const held = Held.of(3);
  const line = { type: "all", version: 9, valid_ms: 9_000, slots: 32, grants: [grant(10, 3), grant(11, 20)] };
  assert.throws(() => held.holdings.apply(line, held.clock.time), /the number of slots has changed from 16 to 32/);
  assert.ok(held.guard(3)[0].isHeld);
  held.refuses(20, /not held/);
  held.holdings.end(new LeaseEnded("it is over", false));
  held.holdings.begin();
  held.holdings.apply(line, held.clock.time);
  assert.ok(held.guard(20)[0].isHeld);
});

test("with the lease everything ends", () => {
  const held = Held.of(3);
  const [old] = held.guard(3);
  held.line("finish", [grant(10, 3)]);
  held.holdings.extend(held.clock.time + 9_000, held.version + 1);
  const ended = new LeaseEnded("it was not renewed in time", false);
  held.holdings.end(ended);
  assert.ok(!old.isHeld && old.lost.reason === ended && held.holdings.version === undefined);
  held.refuses(3, /the lease has ended: it was not renewed in time/);
  held.holdings.begin();
  held.line("all", [grant(20, 3, 6)]);
  assert.ok(!held.holdings.isValid, "a renewal of the former lease does not count for the next one");
  held.holdings.extend(held.clock.time + 1_000, held.version);
  held.refuses(3, BUSY);
  held.line("finish", [grant(20, 3, 6)]);
  assert.deepEqual(held.finished, [], "work of the former lease still runs in the slot");
  old.leave();
  assert.deepEqual(held.finished, [20], "grants of the former lease are none any more");
});

test("closing lets nothing begin and waits", async () => {
  const held = Held.of(3, 4);
  const [guard] = held.guard(3);
  held.holdings.stop(new LeaseEnded("it is being closed", true));
  held.refuses(4, /being closed/);
  assert.ok(guard.isHeld && guard.finish.aborted && !guard.lost.aborted);
  let isIdle = false;
  const idle = held.holdings.idle().then(() => { isIdle = true; });
  await Promise.resolve();
  assert.ok(!isIdle);
  guard.leave();
  await idle;
});

test("names are held like slots", () => {
  const held = new Held();
  const leader: Grant = { grant: 10, slot: null, name: "singleton/leader", epoch: 5, period: null, finish: false };
  held.line("all", [leader], 1_000);
  const entry = held.holdings.enter("singleton/leader");
  held.holdings.giveUp(entry.holding);
  assert.ok(entry.finish.isSet);
  assert.deepEqual(held.finished, []);
  held.holdings.left(entry);
  assert.deepEqual([held.finished, held.changes], [[10], ["+singleton/leader -", "+ -singleton/leader"]]);
});
