/** What a worker holds, with a clock that the test moves. */

import assert from "node:assert/strict";

import { type Clock, type Grant, type GrantLine, NotHeld } from "../src/index.js";
import type { Resource } from "../src/changes.js";
import { Guard, type Entry } from "../src/guard.js";
import { Holdings } from "../src/holdings.js";

export class TestClock implements Clock {
  time = 1_000;
  readonly #timers = new Set<{ at: number; call: () => void }>();
  now(): number { return this.time; }
  after(ms: number, call: () => void): () => void {
    const timer = { at: this.time + ms, call };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }
  /** Moves the time on, and lets timers run only if `runs`, as in a process that is busy. */
  pass(ms: number, runs = true): void {
    this.time += ms;
    for (const timer of runs ? [...this.#timers] : []) {
      if (timer.at > this.time) continue;
      this.#timers.delete(timer);
      timer.call();
    }
  }
}

/** What a worker holds, with a lease that has begun, and what it has reported. */
export class Held {
  readonly clock = new TestClock();
  readonly finished: number[] = [];
  readonly changes: string[] = [];
  readonly freed: Resource[] = [];
  readonly holdings = new Holdings(this.clock, {
    finished: (grants) => this.finished.push(...grants),
    changed: ({ gained, lost, freed }) => {
      if (gained.length + lost.length > 0) this.changes.push(`+${gained} -${lost}`);
      this.freed.push(...freed);
    },
  });
  version = 0;

  constructor() { this.holdings.begin(); }

  line(type: string, grants: Grant[] = [], validMs = 0, asked = this.clock.time): void {
    this.version += 1;
    this.holdings.apply({ type, version: this.version, valid_ms: validMs, slots: 16, grants } satisfies GrantLine, asked);
  }
  /** Those slots are granted as grants 10, 11 and so on under epoch 5, for 1,000 ms. */
  static of(...slots: number[]): Held {
    const held = new Held();
    held.line("all", slots.map((slot, at) => grant(10 + at, slot)), 1_000);
    return held;
  }
  guard(slot: number): [Guard, Entry] {
    const entry = this.holdings.enter(slot);
    return [new Guard(entry, { slot, epoch: entry.holding.grant.epoch }), entry];
  }
  refuses(slot: number, why: RegExp): void {
    assert.throws(() => this.holdings.enter(slot), (error) => error instanceof NotHeld && why.test(error.message), String(why));
  }
}

export function grant(number: number, slot: number, epoch = 5, finish = false): Grant {
  return { grant: number, slot, name: null, epoch, period: null, finish };
}
