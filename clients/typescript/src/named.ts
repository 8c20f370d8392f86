/// <reference lib="esnext.disposable" preserve="true" />
/** Work under a name, which one worker of the group holds at a time: singletons, daemons and timers. */

import { Guard, type Entry, type NameFence } from "./guard.js";
import type { Holdings } from "./holdings.js";
import type { Period } from "./types.js";
import { End, RetryPauses, sleep } from "./waits.js";

/** The time in which this worker holds a name, as the guard of the work. */
export type Tenure = Guard<NameFence>;
export interface NamedContext { holdings: Holdings; onError(error: unknown): void }

/** Work under names of one kind. */
export interface NamedWork {
  /** Whether a name belongs to it. */
  has(name: string): boolean;
  /** The name is given up after the work, however that has ended. */
  isOnce: boolean;
  /** Works while the name is held. Resolves when the name is lost or given up. */
  hold(name: string, run: NamedRun): Promise<void>;
  /** Withdraws the offer. */
  stopped(run: NamedRun): void;
}

/** A singleton, a set of daemons, or a timer that this worker offers to run. */
export class NamedRun implements AsyncDisposable {
  readonly #context: NamedContext;
  readonly #work: NamedWork;
  readonly #stopping = new AbortController();
  readonly #inFlight = new Set<Entry>();
  readonly #tasks = new Map<string, Promise<void>>();
  /** Names whose next task waits for the end of the one before. */
  readonly #queued = new Set<string>();
  readonly #end = new End();

  constructor(context: NamedContext, work: NamedWork) {
    [this.#context, this.#work] = [context, work];
  }

  get stopping(): AbortSignal { return this.#stopping.signal; }

  /** Work may begin under the name from now on. Work of an earlier tenure ends first. */
  gained(name: string): void {
    if (this.stopping.aborted || !this.#work.has(name) || this.#queued.has(name)) return;
    this.#queued.add(name);
    const before = this.#tasks.get(name) ?? Promise.resolve();
    const begin = () => {
      this.#queued.delete(name);
      return this.#work.hold(name, this);
    };
    const task = before.then(begin).catch((error: unknown) => this.#context.onError(error));
    this.#tasks.set(name, task);
    void task.then(() => { if (this.#tasks.get(name) === task) this.#tasks.delete(name); });
  }

  /** Runs the work once. Returns how it ended; `undefined` if the name is not held any more. */
  async once(name: string, work: (tenure: Tenure, period: Period | null) => Promise<void> | void): Promise<"well" | "failed" | "asked" | undefined> {
    const { holdings, onError } = this.#context;
    const entry = this.stopping.aborted ? undefined : holdings.tryEnter(name);
    if (entry === undefined) return undefined;
    this.#inFlight.add(entry);
    let outcome: "well" | "failed" = "well";
    try {
      await work(new Guard(entry, { name, epoch: entry.holding.grant.epoch }), entry.holding.grant.period);
    } catch (error) {
      outcome = "failed";
      if (!saysAsked(entry, error)) onError(error);
    }
    this.#inFlight.delete(entry);
    holdings.left(entry);
    const isAsked = entry.finish.isSet;
    // Work that has ended well is over: under another epoch it begins again.
    if (this.#work.isOnce || (outcome === "well" && !isAsked)) holdings.giveUp(entry.holding);
    return isAsked ? "asked" : outcome;
  }

  /** Asks the work to end, waits for its end, and lets other workers run it. */
  async stop(): Promise<void> {
    if (!this.stopping.aborted) {
      this.#stopping.abort();
      this.#work.stopped(this);
    }
    for (const entry of [...this.#inFlight]) this.#context.holdings.askToFinish(entry, this.stopping.reason);
    await Promise.all(this.#tasks.values());
    this.#end.set();
  }

  /**
   * Resolves when the run was stopped, or the lease closed. Rejects when nothing will be held any more: with `LeaseEnded`, or with the refusal if the
   * sidecar refuses the name under a later lease.
   */
  wait(): Promise<void> { return this.#end.reached; }
  /** Nothing will be held any more; without an error the lease was closed. The lease calls it. */
  ended(error?: unknown): void { this.#end.set(error); }

  [Symbol.asyncDispose](): Promise<void> { return this.stop(); }
}

/** Whether the error only says that the work was asked to end. */
export function saysAsked({ finish, lost }: Entry, error: unknown): boolean {
  const isReason = [finish, lost].some((latch) => latch.isSet && latch.signal.reason === error);
  return finish.isSet && (isReason || (error instanceof Error && error.name === "AbortError"));
}

/** Begins work that fails again under the same tenure, after a pause. */
export function repeated(work: (name: string, tenure: Tenure) => Promise<void> | void): NamedWork["hold"] {
  return async (name, run) => {
    for (const pauses = new RetryPauses(); ; ) {
      const begun = performance.now();
      if (await run.once(name, (tenure) => work(name, tenure)) !== "failed") return;
      await sleep(pauses.next(performance.now() - begun), run.stopping);
    }
  };
}

/** Does the job of each period once, also if the name is lost and regained meanwhile. A job that fails is not done again. */
export function eachPeriod(job: (period: Period, tenure: Tenure) => Promise<void> | void): NamedWork["hold"] {
  let last = -Infinity;
  return async (name, run) => {
    await run.once(name, async (tenure, period) => {
      if (period === null || period.number <= last) return;
      last = period.number;
      await job(period, tenure);
    });
  };
}
