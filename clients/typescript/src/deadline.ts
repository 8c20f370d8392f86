/** The moment until which everything that is granted holds. */

import type { Clock } from "./waits.js";

/** Timers may not count while the machine sleeps, so the clock is read at least so often. */
const POLL_EVERY_MS = 200;
/** The most renewals that wait for the lines of the stream that they presuppose. */
const PENDING_MAX = 16;

export interface DeadlineEvents {
  /** It is ahead now and was not before, or it was reached. The second comes once, and before it is moved on: there was a gap. */
  changed(isAhead: boolean): void;
  /** A timer has fired: what the clock ends is to be flushed. */
  flush(): void;
}

export class Deadline {
  /** How often it was reached. */
  lapses = 0;
  /** The version of the grants that was processed; `undefined` before the first table of a lease. */
  version: number | undefined;
  readonly #clock: Clock;
  readonly #marginMs: number;
  readonly #events: DeadlineEvents;
  #at = -Infinity;
  #pending: { version: number; at: number }[] = [];
  /** It was ahead when the clock was last read for `changed`. */
  #isWatched = false;
  #stop = () => {};

  /** Work has to stop `marginMs` before the grants end, because it takes a moment. */
  constructor(clock: Clock, marginMs: number, events: DeadlineEvents) {
    [this.#clock, this.#marginMs, this.#events] = [clock, marginMs, events];
  }

  /** Whether it is ahead, by the clock. */
  get isAhead(): boolean { return this.#clock.now() < this.#at; }

  /**
   * The grants of that version hold until then. A later version may have lost some of those that are known, so the moment counts only once the changes
   * up to that version are processed.
   */
  extend(at: number, version: number): void {
    if (this.version !== undefined && version <= this.version) this.#move(at);
    else this.#pending = [...this.#pending, { version, at }].slice(-PENDING_MAX);
  }

  /** The changes up to that version are processed. */
  processed(version: number): void {
    this.version = version;
    for (const pending of this.#pending) if (pending.version <= version) this.#move(pending.at);
    this.#pending = this.#pending.filter((pending) => pending.version > version);
  }

  clear(): void {
    [this.#at, this.#pending, this.#isWatched, this.version] = [-Infinity, [], false, undefined];
    this.#stop();
  }

  #move(until: number): void {
    this.#check();
    const at = until - this.#marginMs;
    // A moment that is no number moves nothing.
    if (!(at > this.#at)) return;
    this.#at = at;
    if (!this.#isWatched && this.isAhead) {
      this.#isWatched = true;
      this.#events.changed(true);
    }
    this.#watch();
  }

  #check(): void {
    if (!this.#isWatched || this.isAhead) return;
    this.#isWatched = false;
    this.lapses += 1;
    this.#events.changed(false);
  }

  #watch(): void {
    this.#stop();
    if (!this.#isWatched) return;
    const left = Math.max(1, Math.min(POLL_EVERY_MS, Math.ceil(this.#at - this.#clock.now())));
    this.#stop = this.#clock.after(left, () => {
      this.#check();
      this.#watch();
      this.#events.flush();
    });
  }
}
