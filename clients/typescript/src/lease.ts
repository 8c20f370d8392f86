/// <reference lib="esnext.disposable" preserve="true" />
/** This worker's lease on its sidecar, under exclusive ownership: what it holds, and the work in it. */

import { LeaseEnded, NotHeld, Unavailable } from "./errors.js";
import type { HoldingsChange } from "./changes.js";
import { Guard } from "./guard.js";
import { slotOfKey } from "./hash.js";
import { Holdings } from "./holdings.js";
import type { Call, Http } from "./http.js";
import { type Keys, listed } from "./keys.js";
import { NamedRun, type NamedWork, type Tenure, eachPeriod, repeated } from "./named.js";
import { type Offer, Offers } from "./offers.js";
import { KeySlots, type KeyWork, OwnedRun } from "./owned.js";
import { type OpenedLease, Term, type TermContext, type TermEnd, openLease } from "./term.js";
import type { Period } from "./types.js";
import { type Clock, pause, sleep, systemClock, tied } from "./waits.js";

const TTL_MS = { least: 1_000, most: 60_000 };
/** Work has to stop before the deadline by this part of the ttl, and by at most so many milliseconds. */
const MARGIN = { part: 0.02, most: 50 };

/**
 * `ttlMs`: how long the lease lasts after a renewal, 1,000 to 60,000. `reopens`: another lease is opened when one has ended. `waitMs`: how long `lease`
 * waits while another lease is live or the sidecar does not answer. `onError` gets errors of work and callbacks, and ends of the lease that no
 * `onEnded` gets. `clock`: another one, such as one that counts while the machine sleeps.
 */
export interface LeaseOptions { ttlMs?: number; reopens?: boolean; waitMs?: number; onError?: (error: unknown) => void; clock?: Clock }

/** `slotsOwned` counts the slots in which work may begin, `keysOwned` such keys among those that were given. */
export interface SlotChange { gained: number[]; lost: number[]; slotsOwned: number; keysOwned: number | null }
interface Follower { call(change: SlotChange): unknown; keys: KeySlots | undefined; owned: number }

export class Lease implements AsyncDisposable {
  readonly #context: TermContext;
  readonly #reopens: boolean;
  readonly #onError: (error: unknown) => void;
  readonly #closing = new AbortController();
  readonly #followers = new Set<Follower>();
  readonly #onEnded = new Set<(ended: LeaseEnded) => unknown>();
  readonly #owned = new Set<OwnedRun>();
  readonly #named = new Set<NamedRun>();
  /** Aborts when the grants are known for the first time. */
  readonly #listed = new AbortController();
  #slotsOwned = 0;
  #term: Term | undefined;
  #closed: Promise<void> | undefined;

  private constructor(http: Http, { ttlMs = 5_000, reopens = true, onError = console.error, clock = systemClock }: LeaseOptions) {
    if (!Number.isInteger(ttlMs) || ttlMs < TTL_MS.least || ttlMs > TTL_MS.most) {
      throw new RangeError(`ttlMs = ${ttlMs} is not allowed: a lease lasts ${TTL_MS.least} to ${TTL_MS.most} ms`);
    }
    [this.#reopens, this.#onError] = [reopens, onError];
    const events = { finished: (grants: number[]) => this.#term?.finished(grants), changed: (change: HoldingsChange) => this.#changed(change) };
    const holdings = new Holdings(clock, events, Math.min(MARGIN.part * ttlMs, MARGIN.most));
    const offers = new Offers(onError);
    this.#context = { http, clock, ttlMs, holdings, offers, ended: (end) => this.#ended(end), listed: () => this.#listed.abort() };
  }

  /** Opens a lease, and keeps it until it is closed. Resolves when its grants are known. */
  static async open(http: Http, { signal = new AbortController().signal, ...options }: LeaseOptions & Call): Promise<Lease> {
    const lease = new Lease(http, options);
    const waitMs = options.waitMs ?? http.options.timeoutMs + lease.#context.ttlMs;
    const until = http.until(waitMs);
    const opened = await openLease(lease.#context, signal, waitMs);
    const over = lease.onEnded(({ isFinal }) => { if (isFinal) lease.#listed.abort(); });
    const [leaving, leave] = tied(signal);
    lease.#listed.signal.addEventListener("abort", leave);
    void lease.#keep(opened);
    await sleep(until - performance.now(), leaving.signal);
    leave();
    over();
    const { slots, refusal } = lease.#holdings;
    if (slots > 0 && !signal.aborted) return lease;
    await lease.close({ withinMs: 0 });
    signal.throwIfAborted();
    const cause = refusal?.cause ?? refusal;
    throw cause ?? new Unavailable(`${http.base}grants has not answered in time`);
  }

  /** Whether the grants hold now, by this worker's own clock. */
  get isLive(): boolean { return this.#holdings.refusal === undefined && this.#holdings.isValid; }
  /** The id of the lease that is kept, for requests of your own (`shardwise-lease`). */
  get id(): string | undefined { return this.#holdings.refusal === undefined ? this.#term?.id : undefined; }
  /** In how many slots work may begin. */
  get slotsOwned(): number { return this.#slotsOwned; }

  /**
   * The keys that this worker owns, in their order, without a request: those in whose slots work may begin now. None while the lease is not live. Throws
   * `LeaseEnded` once it has ended for good.
   */
  owned(keys: Keys): string[] {
    const { slots } = this.#holdings;
    const all = [...listed(keys)];
    this.#refuseIfOver();
    const mine = slots === 0 ? [] : all.filter((key) => this.#holdings.isOpen(slotOfKey(key, slots)));
    // After the hashes, which take time.
    return this.isLive ? mine : [];
  }

  /** Whether this worker owns the key now. */
  owns(key: string): boolean {
    this.#refuseIfOver();
    const { slots } = this.#holdings;
    return slots > 0 && this.#holdings.isOpen(slotOfKey(key, slots)) && this.isLive;
  }

  /**
   * Begins work on the key. Its slot is not handed over before `leave`. Throws `NotHeld` if this worker does not hold the key, and while work that has
   * lost the slot has not ended.
   */
  enter(key: string): Guard {
    const { slots, refusal } = this.#holdings;
    if (slots === 0) throw refusal ?? new NotHeld("the sidecar has not sent the grants yet");
    const entry = this.#holdings.enter(slotOfKey(key, slots));
    return new Guard(entry, { slot: entry.holding.resource as number, epoch: entry.holding.grant.epoch });
  }

  /** Asks the sidecar too whether this worker holds the key. Throws `NotHeld` if not. */
  async confirm(key: string): Promise<void> {
    this.#refuseIfOver();
    if (!(await this.#term?.holds(key))) throw new NotHeld(`this worker does not hold ${JSON.stringify(key)}: its sidecar says so`);
  }

  /**
   * Runs work on the key. JavaScript cannot stop it, so it has to end soon after `guard.lost` aborts. Throws `NotHeld` if this worker does not hold the
   * key, and also if the key was lost before the work had ended.
   */
  async runExclusive<T>(key: string, work: (guard: Guard) => Promise<T> | T): Promise<T> {
    const guard = this.enter(key);
    try {
      const done = await work(guard);
      if (!guard.isHeld) throw guard.lost.aborted ? guard.lost.reason : new NotHeld("no renewal of the lease was answered in time");
      return done;
    } finally {
      guard.leave();
    }
  }

  /**
   * Runs work in one task for each key that this worker holds, from when it is gained. Work that ends by itself begins again when its key is lost and
   * regained, work that fails after a pause of 0.5 to 30 s. A key that is regained waits until work that has lost its slot has ended.
   */
  runOwned(keys: Keys, work: KeyWork): OwnedRun {
    const context = { holdings: this.#holdings, onError: this.#onError, stopped: (run: OwnedRun) => this.#owned.delete(run) };
    const run = new OwnedRun(context, keys, work);
    if (this.#over === undefined) this.#owned.add(run);
    else run.ended(this.#over);
    return run;
  }

  /** Calls back when slots are gained or lost, first with those that are owned. With keys it says how many of these are owned. Returns what ends it. */
  onRebalance(callback: (change: SlotChange) => unknown, keys?: Keys): () => void {
    const slots = keys && new KeySlots(this.#holdings, keys);
    const follower: Follower = { call: callback, keys: slots, owned: 0 };
    this.#followers.add(follower);
    const gained = this.#holdings.reported.filter((one): one is number => typeof one === "number");
    if (gained.length > 0) this.#follow(follower, gained, []);
    return () => this.#followers.delete(follower);
  }

  /** Calls back when a lease has ended: its work was asked to stop. Returns what ends it. */
  onEnded(callback: (ended: LeaseEnded) => unknown): () => void {
    this.#onEnded.add(callback);
    return () => this.#onEnded.delete(callback);
  }

  /** Offers to run the work that one worker of the group runs at a time. Work that fails begins again after a pause, work that ends well does not. */
  singleton(name: string, work: (tenure: Tenure) => Promise<void> | void): Promise<NamedRun> {
    const full = `singleton/${name}`;
    return this.#offer({ singleton: name }, false, (held) => held === full, repeated((_, tenure) => work(tenure)));
  }

  /**
   * Offers to run the daemons of a set, each of which one worker runs at a time. The group keeps their number; `count` is the number unless the group has
   * one already. Without any, none runs.
   */
  daemons(set: string, work: (number: number, tenure: Tenure) => Promise<void> | void, { count }: { count?: number } = {}): Promise<NamedRun> {
    const prefix = set === "" ? "daemon/" : `daemon/${set}/`;
    const has = (held: string) => held.startsWith(prefix) && /^[0-9]+$/.test(held.slice(prefix.length));
    const offer: Offer = count === undefined ? { daemons: set } : { daemons: set, count };
    return this.#offer(offer, false, has, repeated((held, tenure) => work(Number(held.slice(prefix.length)), tenure)));
  }

  /** Offers to run a timer's job, once for each period in the whole group, or not at all. */
  timer(name: string, { everyMs, phaseMs = 0 }: { everyMs: number; phaseMs?: number }, job: (period: Period, tenure: Tenure) => Promise<void> | void): Promise<NamedRun> {
    const full = `timer/${name}`;
    return this.#offer({ timer: { name, every_ms: everyMs, phase_ms: phaseMs } }, true, (held) => held === full, eachPeriod(job));
  }

  /** Asks all work to end, waits for it up to `withinMs`, and ends the lease: its slots go to others at once, or after `ttlMs` if work still runs. */
  close({ withinMs = 10_000 }: { withinMs?: number } = {}): Promise<void> {
    this.#closed ??= this.#close(withinMs);
    return this.#closed;
  }

  [Symbol.asyncDispose](): Promise<void> { return this.close(); }

  get #holdings(): Holdings { return this.#context.holdings; }

  /** Why nothing will be held any more. */
  get #over(): LeaseEnded | undefined {
    const { refusal } = this.#holdings;
    return refusal instanceof LeaseEnded && refusal.isFinal ? refusal : undefined;
  }

  #refuseIfOver(): void {
    if (this.#over !== undefined) throw this.#over;
  }

  async #keep(opened: OpenedLease): Promise<void> {
    const { clock, ttlMs } = this.#context;
    try {
      for (let [next, tries] = [opened, 0]; !this.#closing.signal.aborted; next = await openLease(this.#context, this.#closing.signal)) {
        this.#term = new Term(this.#context, next);
        const { isFatal } = await this.#term.run();
        if (isFatal || !this.#reopens) return;
        tries = clock.now() - next.asked < ttlMs ? tries + 1 : 0;
        await sleep(pause(tries), this.#closing.signal);
      }
    } catch (error) {
      if (!this.#closing.signal.aborted) this.#ended({ why: `no other one can be opened: ${error}`, isFatal: true, cause: error });
    }
  }

  #ended({ why, isFatal, cause }: TermEnd): void {
    const isFinal = isFatal || !this.#reopens || this.#closing.signal.aborted;
    const ended = new LeaseEnded(why, isFinal, cause === undefined ? {} : { cause });
    this.#holdings.end(ended);
    if (isFinal) this.#context.offers.end(ended);
    if (this.#closing.signal.aborted) return;
    for (const run of isFinal ? [...this.#owned, ...this.#named] : []) run.ended(ended);
    for (const callback of this.#onEnded) this.#call(() => callback(ended));
    if (this.#onEnded.size === 0) this.#onError(ended);
  }

  async #close(withinMs: number): Promise<void> {
    this.#closing.abort();
    this.#holdings.stop(new LeaseEnded("it is being closed", true));
    const runs = [...this.#owned, ...this.#named];
    for (const run of runs) void run.stop();
    const idle = new AbortController();
    await Promise.race([this.#holdings.idle().then(() => idle.abort()), sleep(withinMs, idle.signal)]);
    await this.#term?.close(idle.signal.aborted);
    for (const run of runs) run.ended();
  }

  async #offer(offer: Offer, isOnce: boolean, has: NamedWork["has"], hold: NamedWork["hold"]): Promise<NamedRun> {
    this.#refuseIfOver();
    const stopped = (stopping: NamedRun) => {
      this.#named.delete(stopping);
      this.#context.offers.withdraw(offer);
    };
    const run = new NamedRun({ holdings: this.#holdings, onError: this.#onError }, { has, isOnce, hold, stopped });
    this.#named.add(run);
    for (const name of this.#holdings.names) run.gained(name);
    try {
      await this.#context.offers.add(offer, (refusal) => {
        run.ended(refusal);
        void run.stop();
      });
    } catch (error) {
      this.#named.delete(run);
      throw error;
    }
    return run;
  }

  #changed(change: HoldingsChange): void {
    const [gained, lost] = [change.gained, change.lost].map((all) => all.filter((one): one is number => typeof one === "number")) as [number[], number[]];
    this.#slotsOwned += gained.length - lost.length;
    for (const name of [...change.gained, ...change.freed]) if (typeof name === "string") for (const run of [...this.#named]) run.gained(name);
    for (const run of [...this.#owned]) run.changed(change);
    if (gained.length + lost.length === 0) return;
    for (const follower of [...this.#followers]) this.#follow(follower, gained, lost);
  }

  #follow(follower: Follower, gained: number[], lost: number[]): void {
    const { keys } = follower;
    const count = (slots: number[]) => slots.reduce((sum, slot) => sum + (keys?.of(slot).length ?? 0), 0);
    follower.owned += count(gained) - count(lost);
    const change = { gained, lost, slotsOwned: this.#slotsOwned, keysOwned: keys === undefined ? null : follower.owned };
    this.#call(() => follower.call(change));
  }

  #call(callback: () => unknown): void {
    Promise.resolve().then(callback).catch((error: unknown) => this.#onError(error));
  }
}
