/** What this worker holds, until when, and the work in flight in it: no I/O, and the clock is an argument. */

import { Changes, type HoldingsChange, type Resource } from "./changes.js";
import { Deadline } from "./deadline.js";
import { NotHeld, ShardwiseError } from "./errors.js";
import { Entry } from "./guard.js";
import type { Grant, GrantLine } from "./types.js";
import type { Clock } from "./waits.js";

/** The most numbers of grants of one lease that are remembered after they were let go. */
const RELEASED_MAX = 131_072;

/** A grant. `order` is that of its arrival, over all leases. */
export class Holding {
  /** Work may begin. */
  isOpen = true;
  constructor(readonly grant: Grant, readonly resource: Resource, readonly order: number) {}
}

export interface HoldingsEvents {
  /** No work is in flight any more under these grants, which must be handed over or are lost. */
  finished(grants: number[]): void;
  changed(change: HoldingsChange): void;
}

export class Holdings {
  /** The size of the ring; 0 before the first table. */
  slots = 0;
  /** Why the latest renewal has failed. */
  trouble = "";
  readonly #events: HoldingsEvents;
  readonly #deadline: Deadline;
  readonly #byNumber = new Map<number, Holding>();
  readonly #current = new Map<Resource, Holding>();
  readonly #work = new Map<Resource, Set<Entry>>();
  /** Holdings that must be handed over or are lost, and in which work is in flight. */
  readonly #owed = new Map<Resource, Holding[]>();
  readonly #released = new Set<number>();
  #orders = 0;
  /** Why no work may begin at all. */
  #refusal: NotHeld | undefined = new NotHeld("no lease is open");
  // What is reported once the state is consistent.
  readonly #changes = new Changes();
  #signals: (() => void)[] = [];
  #finished: number[] = [];
  #idle: (() => void)[] = [];

  /** Work has to stop `marginMs` before the grants end. */
  constructor(clock: Clock, events: HoldingsEvents, marginMs = 0) {
    this.#events = events;
    this.#deadline = new Deadline(clock, marginMs, {
      changed: (isAhead) => {
        // Past the deadline all work is lost, also if a renewal is answered later.
        if (!isAhead) for (const entry of this.#entries()) this.#lose(entry, this.#late());
        this.#changes.touch(this.#current.keys());
      },
      flush: () => this.#flush(),
    });
  }

  /** A lease begins, without grants. */
  begin(): void {
    this.#deadline.clear();
    this.#refusal = undefined;
  }

  /** The lease ends: everything is lost. */
  end(reason: NotHeld): void {
    this.#refusal = reason;
    for (const holding of [...this.#byNumber.values()]) this.#remove(holding);
    for (const entry of this.#entries()) this.#lose(entry, reason);
    this.#owed.clear();
    this.#released.clear();
    this.#deadline.clear();
    this.#flush();
  }

  /** Lets no work begin, and asks all work in flight to end. */
  stop(reason: NotHeld): void {
    this.#refusal = reason;
    for (const entry of this.#entries()) this.#finish(entry, reason);
    this.#changes.touch(this.#current.keys());
    this.#flush();
  }

  /** Resolves when no work is in flight. */
  idle(): Promise<void> {
    return new Promise((resolve) => (this.#work.size === 0 ? resolve() : this.#idle.push(resolve)));
  }

  /** Processes a line of the stream that was asked for at that time. */
  apply(line: GrantLine, asked: number): void {
    const { type, version, valid_ms, slots, grants } = line;
    if (type === "all") this.#replace(slots, grants);
    if (type === "granted") for (const grant of grants) this.#put(grant);
    if (type === "finish") for (const grant of grants) this.#put({ ...grant, finish: true });
    if (type === "lost") for (const { grant } of grants) this.#drop(this.#byNumber.get(grant));
    this.#deadline.processed(version);
    // Later lines of the stream prove nothing about time.
    if (type === "all") this.#deadline.extend(asked + valid_ms, version);
    this.#flush();
  }

  /** The grants of that version hold until then. */
  extend(until: number, version: number): void {
    this.#deadline.extend(until, version);
    this.#flush();
  }

  /** Whether the deadline is ahead. */
  get isValid(): boolean { return this.#deadline.isAhead; }
  /** The version that was processed; `undefined` before the first table of a lease. */
  get version(): number | undefined { return this.#deadline.version; }
  /** Why no work may begin, whatever is held. */
  get refusal(): NotHeld | undefined { return this.#refusal; }
  /** Whether there are no grants. */
  get isEmpty(): boolean { return this.#current.size === 0; }
  /** What was reported as gained, and not as lost since. */
  get reported(): Resource[] { return this.#changes.reported; }
  /** The names that are held. */
  get names(): string[] { return [...this.#current.keys()].filter((resource): resource is string => typeof resource === "string"); }

  holds(holding: Holding): boolean { return this.isValid && this.#current.get(holding.resource) === holding; }
  /** Whether work may begin, but for the deadline. */
  isOpen(resource: Resource): boolean { return this.#refusal === undefined && this.#current.get(resource)?.isOpen === true; }
  /** Whether work that has lost it has not ended yet: no other may begin meanwhile. */
  isBusy(resource: Resource): boolean { return [...this.#work.get(resource) ?? []].some(({ lost }) => lost.isSet); }
  /** Differs for each time at which the resource is gained, over all leases; `undefined` while no work may begin. */
  tenure(resource: Resource): string | undefined {
    const holding = this.#current.get(resource);
    return this.isValid && this.isOpen(resource) && holding !== undefined ? `${holding.order}/${this.#deadline.lapses}` : undefined;
  }

  /** Begins work; `undefined` if it may not begin. */
  tryEnter(resource: Resource): Entry | undefined {
    try {
      return this.enter(resource);
    } catch (error) {
      if (error instanceof NotHeld) return undefined;
      throw error;
    }
  }

  /** Begins work. Throws `NotHeld` if it may not begin. */
  enter(resource: Resource): Entry {
    const what = nameOf(resource);
    if (this.#refusal !== undefined) throw this.#refusal;
    const holding = this.#current.get(resource);
    if (holding === undefined) throw new NotHeld(`${what} is not held by this worker`);
    if (!holding.isOpen) throw new NotHeld(`${what} is being handed over to another worker`);
    if (!this.isValid) throw this.#late();
    if (this.isBusy(resource)) throw new NotHeld(`${what} is held again, but work that has lost it has not ended yet`);
    const entry = new Entry(this, holding);
    const entries = this.#work.get(resource);
    if (entries === undefined) this.#work.set(resource, new Set([entry]));
    else entries.add(entry);
    return entry;
  }

  /** Asks that work to end. */
  askToFinish(entry: Entry, reason: unknown): void {
    this.#finish(entry, reason);
    this.#flush();
  }

  /** Gives up a name whose work is over, once nothing is in flight under it. */
  giveUp(holding: Holding): void {
    if (this.#byNumber.get(holding.grant.grant) === holding) this.#close(holding);
    this.#flush();
  }

  /** The work has ended. */
  left(entry: Entry): void {
    const { resource } = entry.holding;
    const entries = this.#work.get(resource);
    if (!entries?.delete(entry)) return;
    entry.isInFlight = false;
    if (entries.size === 0) this.#work.delete(resource);
    if (entry.lost.isSet && !this.isBusy(resource)) this.#changes.free(resource);
    this.#settle(resource);
    for (const idle of this.#work.size === 0 ? this.#idle.splice(0) : []) idle();
    this.#flush();
  }

  #replace(slots: number, grants: Grant[]): void {
    // Only another sidecar has another ring, and that has another lease.
    if (slots !== this.slots && this.version !== undefined) throw new ShardwiseError(`the number of slots has changed from ${this.slots} to ${slots}`);
    this.slots = slots;
    const numbers = new Set(grants.map(({ grant }) => grant));
    for (const holding of [...this.#byNumber.values()]) if (!numbers.has(holding.grant.grant)) this.#drop(holding);
    for (const grant of grants) this.#put(grant);
  }

  #put(grant: Grant): void {
    const resource = grant.slot ?? grant.name;
    // A line may have been written before the sidecar knew that the grant was let go.
    if (resource === null || this.#released.has(grant.grant)) return;
    let holding = this.#byNumber.get(grant.grant);
    if (holding === undefined) {
      this.#drop(this.#current.get(resource));
      holding = new Holding(grant, resource, this.#orders++);
      this.#byNumber.set(grant.grant, holding);
      this.#current.set(resource, holding);
      this.#changes.touch([resource]);
    }
    if (grant.finish) this.#close(holding);
  }

  /** It must be handed over. */
  #close(holding: Holding): void {
    if (!holding.isOpen) return;
    const reason = new NotHeld(`${nameOf(holding.resource)} must be handed over to another worker`);
    for (const entry of this.#work.get(holding.resource) ?? []) this.#finish(entry, reason);
    this.#owe(holding);
  }

  /** It is lost. */
  #drop(holding: Holding | undefined): void {
    if (holding === undefined) return;
    this.#remove(holding);
    const reason = new NotHeld(`${nameOf(holding.resource)} is not held by this worker any more`);
    for (const entry of this.#work.get(holding.resource) ?? []) this.#lose(entry, reason);
    this.#owe(holding);
  }

  /** The sidecar hears of it once no work is in flight in it. */
  #owe(holding: Holding): void {
    const { resource } = holding;
    this.#changes.touch([resource]);
    if (holding.isOpen) this.#owed.set(resource, [...(this.#owed.get(resource) ?? []), holding]);
    holding.isOpen = false;
    this.#settle(resource);
  }

  /** Lets go what is owed and is older than all work in flight: work under an earlier grant of the same slot has to end as well. */
  #settle(resource: Resource): void {
    const owed = this.#owed.get(resource);
    if (owed === undefined) return;
    let oldest = Infinity;
    for (const { holding } of this.#work.get(resource) ?? []) oldest = Math.min(oldest, holding.order);
    const rest = owed.filter((holding) => holding.order >= oldest);
    if (rest.length > 0) this.#owed.set(resource, rest);
    else this.#owed.delete(resource);
    for (const holding of owed) if (holding.order < oldest) this.#release(holding);
  }

  #release(holding: Holding): void {
    const { grant } = holding.grant;
    this.#remove(holding);
    this.#released.add(grant);
    this.#finished.push(grant);
    const [first] = this.#released;
    if (this.#released.size > RELEASED_MAX && first !== undefined) this.#released.delete(first);
  }

  #remove(holding: Holding): void {
    const { grant, resource } = holding;
    this.#byNumber.delete(grant.grant);
    if (this.#current.get(resource) === holding) this.#current.delete(resource);
    this.#changes.touch([resource]);
  }

  #late(): NotHeld {
    return new NotHeld(`no renewal of the lease was answered in time${this.trouble && `: ${this.trouble}`}`);
  }

  *#entries(): Generator<Entry, void, undefined> {
    for (const entries of this.#work.values()) yield* entries;
  }

  #finish(entry: Entry, reason: unknown): void {
    if (!entry.finish.isSet) this.#signals.push(entry.finish.set(reason));
  }

  #lose(entry: Entry, reason: NotHeld): void {
    this.#finish(entry, reason);
    if (!entry.lost.isSet) this.#signals.push(entry.lost.set(reason));
  }

  /** Reports what has changed. Listeners may call back. */
  #flush(): void {
    while (this.#signals.length > 0) for (const signal of this.#signals.splice(0)) signal();
    const change = this.#changes.report((resource) => this.tenure(resource));
    const finished = this.#finished.splice(0);
    if (finished.length > 0) this.#events.finished(finished);
    if (change.gained.length + change.lost.length + change.freed.length > 0) this.#events.changed(change);
  }
}

function nameOf(resource: Resource): string {
  return typeof resource === "number" ? `slot ${resource}` : resource;
}
