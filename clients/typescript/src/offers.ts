/** The names that this worker offers to hold: the sidecar hears of each change, and of all under a new lease. */

import { ShardwiseError } from "./errors.js";
import { Bell } from "./waits.js";

/** A timer: `name` fires every so many milliseconds since 1970, shifted by the phase. */
export interface TimerOffer { name: string; every_ms: number; phase_ms: number }
/** `counts`: the number of daemons of a set, unless the group has one already. */
export interface OfferedNames { singletons: string[]; daemons: string[]; timers: TimerOffer[]; counts?: Record<string, number> }
/** One kind and name of work, such as the singleton `leader`. */
export type Offer = { singleton: string } | { daemons: string; count?: number } | { timer: TimerOffer };

interface Offered {
  offer: Offer; version: number; isAccepted: boolean;
  accepted(): void; reject(error: ShardwiseError): void; refused(error: ShardwiseError): void;
}

export class Offers {
  /** Rings when `next` has something. */
  readonly changed = new Bell();
  readonly #offered = new Map<string, Offered>();
  readonly #onError: (error: unknown) => void;
  #version = 0;
  /** What the sidecar knows, under the present lease. */
  #known = 0;

  /** `onError` learns that the sidecar refuses, under a new lease, what it has accepted before. */
  constructor(onError: (error: unknown) => void) {
    this.#onError = onError;
  }

  /**
   * Offers a name. Resolves when the sidecar has accepted it; throws if the sidecar refuses it, or when `end` is called. Calls `refused` if the sidecar
   * has accepted it, and refuses it under a later lease.
   */
  add(offer: Offer, refused: (error: ShardwiseError) => void): Promise<void> {
    const key = JSON.stringify("timer" in offer ? { timer: offer.timer.name } : "daemons" in offer ? { daemons: offer.daemons } : offer);
    if (this.#offered.has(key)) throw new ShardwiseError(`this lease offers ${key} already`);
    return new Promise((accepted, reject) => {
      this.#version += 1;
      this.#offered.set(key, { offer, version: this.#version, isAccepted: false, accepted, reject, refused });
      this.changed.ring();
    });
  }

  withdraw(offer: Offer): void {
    for (const [key, offered] of this.#offered) if (offered.offer === offer) this.#offered.delete(key);
    this.#version += 1;
    this.changed.ring();
  }

  /** A new lease, under which the sidecar knows of no names. */
  restart(): void {
    this.#known = this.#offered.size === 0 ? this.#version : -1;
  }

  /** What the sidecar has to hear; `undefined` if it knows. */
  next(): { names: OfferedNames; version: number } | undefined {
    if (this.#known === this.#version) return undefined;
    const names: OfferedNames = { singletons: [], daemons: [], timers: [] };
    const counts: [string, number][] = [];
    for (const { offer } of this.#offered.values()) {
      if ("singleton" in offer) names.singletons.push(offer.singleton);
      else if ("timer" in offer) names.timers.push(offer.timer);
      else {
        names.daemons.push(offer.daemons);
        if (offer.count !== undefined) counts.push([offer.daemons, offer.count]);
      }
    }
    if (counts.length > 0) names.counts = Object.fromEntries(counts);
    return { names, version: this.#version };
  }

  /** The sidecar has accepted that version. */
  accepted(version: number): void {
    this.#known = version;
    for (const offered of this.#offered.values()) {
      if (offered.version > version) continue;
      offered.isAccepted = true;
      offered.accepted();
    }
  }

  /** The sidecar refuses that version: what is new in it is withdrawn. */
  refused(version: number, error: ShardwiseError): void {
    const known = this.#known;
    this.#known = version;
    let isWithdrawn = false;
    for (const [key, offered] of this.#offered) {
      if (offered.version <= known || offered.version > version) continue;
      this.#offered.delete(key);
      isWithdrawn = true;
      if (!offered.isAccepted) offered.reject(error);
      else {
        this.#onError(error);
        offered.refused(error);
      }
    }
    if (isWithdrawn) this.#version += 1;
    else this.#onError(error);
  }

  /** The lease has ended for good. */
  end(error: ShardwiseError): void {
    for (const { reject } of this.#offered.values()) reject(error);
    this.#offered.clear();
  }
}
