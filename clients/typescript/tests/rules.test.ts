/** What no sequence of events may break, with a clock that the test moves. */

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Grant } from "../src/index.js";
import { Guard } from "../src/guard.js";
import { Held, grant } from "./held.js";

/** Numbers that look random, the same for the same seed. */
function numbers(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

test("whatever happens, work and grants keep to the rules", () => {
  for (let seed = 1; seed <= 40; seed++) {
    const [held, next] = [new Held(), numbers(seed)];
    const { clock, holdings } = held;
    // The sidecar's side: what is granted, and what was asked back; and each guard with the grant under which it began.
    const [granted, asked, guards] = [new Map<number, Grant>(), new Set<number>(), new Map<Guard, Grant>()];
    let [count, proven, heard] = [0, -Infinity, 0];
    const check = () => {
      for (const number of held.finished.slice(heard)) {
        assert.ok(asked.delete(number), `seed ${seed}: ${number} was let go without need, or twice`);
        const slot = granted.get(number)?.slot;
        const rest = [...guards].filter(([, under]) => under.slot === slot && under.grant <= number);
        assert.equal(rest.length, 0, `seed ${seed}: ${number} was let go while work runs`);
      }
      heard = held.finished.length;
      for (const [guard, { grant: number }] of guards) {
        if (guard.isHeld) assert.ok(clock.time < proven && held.holdings.isValid && !gone.has(number), `seed ${seed}: ${number} is not held`);
      }
    };
    const gone = new Set<number>();
    held.line("all");
    for (let step = 0; step < 1_000; step++) {
      const slot = next(4);
      const live = [...granted.values()].filter((each) => each.slot === slot && !gone.has(each.grant) && !held.finished.includes(each.grant));
      const at = live.at(-1);
      const [what, guard] = [next(8), [...guards.keys()][next(guards.size)]];
      if (what === 0 && at === undefined) {
        const fresh = grant(++count, slot, count);
        granted.set(count, fresh);
        held.line("granted", [fresh]);
      } else if (what === 1 && at !== undefined && !asked.has(at.grant)) {
        asked.add(at.grant);
        held.line("finish", [at]);
      } else if (what === 2 && at !== undefined && next(4) === 0) {
        gone.add(at.grant);
        asked.add(at.grant);
        held.line("lost", [at]);
      } else if (what === 3) {
        const until = clock.time + 50 - next(60);
        proven = Math.max(proven, until);
        holdings.extend(until, held.version);
      } else if (what === 4) {
        clock.pass(next(30), next(2) === 0);
      } else if (what === 5 && guard !== undefined) {
        guards.delete(guard);
        guard.leave();
      } else if (what >= 6) {
        const entry = holdings.tryEnter(slot);
        const isBusy = [...guards].some(([each, under]) => under.slot === slot && each.lost.aborted);
        const mayBegin = at !== undefined && !asked.has(at.grant) && clock.time < proven && !isBusy;
        assert.equal(entry !== undefined, mayBegin, `seed ${seed}: whether work may begin in slot ${slot}`);
        if (entry !== undefined) guards.set(new Guard(entry, { slot, epoch: entry.holding.grant.epoch }), entry.holding.grant);
      }
      check();
    }
    for (const guard of [...guards.keys()]) {
      guards.delete(guard);
      guard.leave();
    }
    check();
  }
});
