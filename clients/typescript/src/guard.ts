/// <reference lib="esnext.disposable" preserve="true" />
/** Work in flight in a slot, or under a name. */

import type { Holding, Holdings } from "./holdings.js";

/** For your own writes: a database that has seen a higher epoch of the slot refuses a lower one. */
export interface Fence { slot: number; epoch: number }
/** The same for a name, such as `singleton/leader`. */
export interface NameFence { name: string; epoch: number }

/** A signal that is made when it is asked for. */
class Latch {
  isSet = false;
  #reason: unknown;
  #controller: AbortController | undefined;

  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.isSet) this.#controller.abort(this.#reason);
    return this.#controller.signal;
  }

  /** Sets it, and returns what makes its listeners run. */
  set(reason: unknown): () => void {
    [this.isSet, this.#reason] = [true, reason];
    return () => this.#controller?.abort(reason);
  }
}

/** What the holdings know of a guard. */
export class Entry {
  readonly finish = new Latch();
  readonly lost = new Latch();
  isInFlight = true;
  constructor(readonly holdings: Holdings, readonly holding: Holding) {}
}

/**
 * Work in flight. A slot is handed over only once no work is in flight in it, so leave when the work has ended, also when it fails.
 *
 * The promise rests on the worker: work that goes on after it has left, or after `lost`, can overlap with the next holder's. Give the fence to your
 * database for that.
 */
export class Guard<F = Fence> implements AsyncDisposable {
  readonly #entry: Entry;
  constructor(entry: Entry, readonly fence: F) { this.#entry = entry; }

  /** Whether the slot was held without a gap since the work began. It reads the clock, so it is right also before a signal has run. */
  get isHeld(): boolean {
    const { holdings, holding, lost, isInFlight } = this.#entry;
    return isInFlight && !lost.isSet && holdings.holds(holding);
  }
  /** Aborts when the work should end: the slot must be handed over or is lost, the key is not wanted any more, or the lease is being closed. */
  get finish(): AbortSignal { return this.#entry.finish.signal; }
  /** Aborts when the work has to stop at once: the slot is lost, or the lease was not renewed in time. Its reason is a `NotHeld`. */
  get lost(): AbortSignal { return this.#entry.lost.signal; }

  /** Ends this work's part in the slot. */
  leave(): void { this.#entry.holdings.left(this.#entry); }
  async [Symbol.asyncDispose](): Promise<void> { this.leave(); }
}
