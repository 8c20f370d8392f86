/// <reference lib="esnext.disposable" preserve="true" />
/** One task for each key that this worker holds. */

import { Guard, type Entry } from "./guard.js";
import { slotOfKey } from "./hash.js";
import type { HoldingsChange } from "./changes.js";
import type { Holdings } from "./holdings.js";
import { type Keys, listed } from "./keys.js";
import { saysAsked } from "./named.js";
import { End, RetryPauses, sleep } from "./waits.js";

/** Work on one key. It should end soon after `guard.finish` has aborted. */
export type KeyWork = (key: string, guard: Guard) => Promise<void> | void;
export interface OwnedContext { holdings: Holdings; onError(error: unknown): void; stopped(run: OwnedRun): void }

/** The keys of a list by their slots, for the ring of the present table. */
export class KeySlots {
  readonly #holdings: Holdings;
  readonly #slots = new Map<string, number>();
  #keys: Set<string>;
  #bySlot = new Map<number, string[]>();
  #slotCount = 0;

  constructor(holdings: Holdings, keys: Keys) {
    [this.#holdings, this.#keys] = [holdings, checked(keys)];
  }

  get keys(): ReadonlySet<string> { return this.#keys; }

  replace(keys: Keys): void {
    [this.#keys, this.#slotCount] = [checked(keys), 0];
  }

  /** The slot of a key of the list; `undefined` before the first table. */
  slot(key: string): number | undefined {
    this.#place();
    return this.#slots.get(key);
  }

  of(slot: number): readonly string[] {
    this.#place();
    return this.#bySlot.get(slot) ?? [];
  }

  #place(): void {
    const { slots } = this.#holdings;
    if (this.#slotCount === slots) return;
    [this.#slotCount, this.#bySlot] = [slots, new Map()];
    this.#slots.clear();
    for (const key of this.#keys) {
      const slot = slotOfKey(key, slots);
      this.#slots.set(key, slot);
      const keys = this.#bySlot.get(slot);
      if (keys === undefined) this.#bySlot.set(slot, [key]);
      else keys.push(key);
    }
  }
}

/** The keys, each once. Throws if one is no key, here and not when its slot is computed. */
function checked(keys: Keys): Set<string> {
  const all = new Set(listed(keys));
  for (const key of all) slotOfKey(key, 1);
  return all;
}

/** The work on one key, again and again while it fails. `ends` ends the pause before the next try. */
interface Task { entry: Entry; ends: AbortController; over: Promise<void> }

/** The tasks of one `runOwned`. */
export class OwnedRun implements AsyncDisposable {
  readonly #context: OwnedContext;
  readonly #work: KeyWork;
  readonly #keys: KeySlots;
  readonly #tasks = new Map<string, Task>();
  /** The tenures in which work has ended by itself. */
  readonly #done = new Map<string, string>();
  readonly #end = new End();
  #isStopped = false;

  constructor(context: OwnedContext, keys: Keys, work: KeyWork) {
    [this.#context, this.#work, this.#keys] = [context, work, new KeySlots(context.holdings, keys)];
    for (const key of this.#keys.keys) this.#begin(key);
  }

  /** Replaces the keys: asks work on others to end, and begins work on new ones that are held. */
  setKeys(keys: Keys): void {
    this.#keys.replace(keys);
    for (const [key, task] of this.#tasks) if (!this.#keys.keys.has(key)) this.#ask(task, "the key is not wanted any more");
    for (const key of this.#done.keys()) if (!this.#keys.keys.has(key)) this.#done.delete(key);
    for (const key of this.#keys.keys) this.#begin(key);
  }

  /** What is lost ends by the signals of its guards. */
  changed({ gained, freed }: HoldingsChange): void {
    for (const slot of [...gained, ...freed]) if (typeof slot === "number") for (const key of this.#keys.of(slot)) this.#begin(key);
  }

  /** Asks all work to end, and waits until it has. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#context.stopped(this);
    const tasks = [...this.#tasks.values()];
    for (const task of tasks) this.#ask(task, "the work is stopped");
    await Promise.all(tasks.map(({ over }) => over));
    this.#end.set();
  }

  /** Resolves when the run was stopped, or the lease closed. Rejects with `LeaseEnded` when nothing will be held any more. */
  wait(): Promise<void> { return this.#end.reached; }
  /** Nothing will be held any more; without an error the lease was closed. The lease calls it. */
  ended(error?: unknown): void { this.#end.set(error); }

  [Symbol.asyncDispose](): Promise<void> { return this.stop(); }

  #ask({ entry, ends }: Task, why: string): void {
    ends.abort();
    this.#context.holdings.askToFinish(entry, new DOMException(why, "AbortError"));
  }

  /** Begins work on the key if it is held, nothing works on it, and work in this tenure has not ended by itself. */
  #begin(key: string): void {
    const { holdings } = this.#context;
    if (this.#isStopped || this.#tasks.has(key) || holdings.slots === 0) return;
    const slot = this.#keys.slot(key);
    const tenure = slot === undefined ? undefined : holdings.tenure(slot);
    if (slot === undefined || tenure === undefined || this.#done.get(key) === tenure) return;
    // Lost again by now, or lost work has not ended there: another change follows.
    const entry = holdings.tryEnter(slot);
    if (entry === undefined) return;
    this.#done.delete(key);
    const task: Task = { entry, ends: new AbortController(), over: Promise.resolve() };
    this.#tasks.set(key, task);
    task.over = task.over.then(() => this.#keep(key, slot, tenure, task));
  }

  /** Works on the key until the work ends, or the key has to go. Work that fails begins again after a pause, in which nothing is in flight. */
  async #keep(key: string, slot: number, tenure: string, task: Task): Promise<void> {
    const { holdings } = this.#context;
    for (const pauses = new RetryPauses(); ; ) {
      const begun = performance.now();
      const isWell = await this.#once(key, slot, task.entry);
      if (task.entry.finish.isSet) break;
      if (isWell) {
        this.#done.set(key, tenure);
        break;
      }
      await sleep(pauses.next(performance.now() - begun), task.ends.signal);
      // The key may have been lost meanwhile, and also regained.
      const entry = task.ends.signal.aborted || holdings.tenure(slot) !== tenure ? undefined : holdings.tryEnter(slot);
      if (entry === undefined) break;
      task.entry = entry;
    }
    this.#tasks.delete(key);
    // It may have been regained, or be wanted again, while the work was ending.
    this.#begin(key);
  }

  /** Returns whether the work has ended well. */
  async #once(key: string, slot: number, entry: Entry): Promise<boolean> {
    try {
      await this.#work(key, new Guard(entry, { slot, epoch: entry.holding.grant.epoch }));
      return true;
    } catch (error) {
      if (!saysAsked(entry, error)) this.#context.onError(error);
      return false;
    } finally {
      this.#context.holdings.left(entry);
    }
  }
}
