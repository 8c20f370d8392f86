/** One lease on the sidecar: its renewals, the stream of its grants, and what the sidecar hears of them. */

import { Problem, ShardwiseError } from "./errors.js";
import { type Http, type Sent, under } from "./http.js";
import type { Holdings } from "./holdings.js";
import type { Offers } from "./offers.js";
import type { GrantLine, WorkerLease } from "./types.js";
import { Bell, type Clock, lines, pause, sleep, unless } from "./waits.js";

/** The stream has a line every second. */
const SILENCE_MS = 4_000;
/** A table of 65,536 slots has about 6 million characters. */
const LINE_CHARACTERS = 32 * 1024 * 1024;
const FINISHED_AT_ONCE = 10_000;
const [RENEW_SOONEST_MS, UNPROVEN_MS, TAKEN_MS, AGAIN_MS] = [100, 500, 1_000, 1_000];

/** A lease, and when it was asked for. */
export interface OpenedLease { lease: WorkerLease; asked: number }
/** Why a lease has ended. `isFatal`: the next one would be refused as well. */
export interface TermEnd { why: string; isFatal: boolean; cause?: unknown }
export interface TermContext {
  http: Http; clock: Clock; ttlMs: number; holdings: Holdings; offers: Offers;
  /** Called once, at the moment at which the lease ends. */
  ended(end: TermEnd): void;
  /** The table of the lease was read. */
  listed(): void;
}

/** Whether the sidecar will refuse this again. */
export function isFatal(error: ShardwiseError): boolean {
  return error instanceof Problem && error.status >= 400 && error.status < 500 && ![408, 410, 429].includes(error.status) && error.kind !== "lease-taken";
}

/** Opens a lease. Retries until waitMs has passed (without it, for ever) while another lease is live or the sidecar does not answer. */
export async function openLease({ http, clock, ttlMs }: TermContext, signal: AbortSignal, waitMs?: number): Promise<OpenedLease> {
  const until = waitMs === undefined ? Infinity : http.until(waitMs);
  // What the last answer said: it says more than that the deadline passed before the next one.
  let taken: ShardwiseError | undefined;
  for (let tries = 0; ; tries++) {
    const asked = clock.now();
    try {
      const limit = Math.min(until, http.until(Math.min(http.options.timeoutMs, ttlMs)));
      const { value } = await http.ask("leases", { signal, body: JSON.stringify({ ttl_ms: ttlMs }), isSafe: false, until: limit });
      if (!isLease(value)) throw http.strange();
      return { lease: value, asked };
    } catch (broken) {
      signal.throwIfAborted();
      const error = http.error(broken);
      // A lease that is taken may end before its time.
      const isTaken = error instanceof Problem && error.kind === "lease-taken";
      if (isTaken) taken = error;
      const retryAfter = isTaken ? Math.min(error.retryAfterMs, TAKEN_MS) : error.retryAfterMs;
      const wait = Math.max(pause(tries), retryAfter);
      if (isFatal(error) || performance.now() + wait >= until) throw error instanceof Problem ? error : (taken ?? error);
      await sleep(wait, signal);
    }
  }
}

export class Term {
  readonly #context: TermContext;
  readonly #opened: OpenedLease;
  readonly #ends = new AbortController();
  readonly #renewal = new Bell();
  readonly #changed = new Bell();
  readonly #finished = new Set<number>();
  #end: TermEnd | undefined;

  constructor(context: TermContext, opened: OpenedLease) {
    [this.#context, this.#opened] = [context, opened];
  }

  /** Keeps the lease until it ends. */
  async run(): Promise<TermEnd> {
    const { holdings, offers } = this.#context;
    const { asked, lease } = this.#opened;
    holdings.begin();
    offers.restart();
    holdings.extend(asked + lease.valid_ms, lease.version);
    const failed = (broken: unknown) => this.end({ why: String(broken), isFatal: true, cause: broken });
    await Promise.all([this.#renew(), this.#follow(), this.#report(), this.#offer()].map((loop) => loop.catch(failed)));
    return this.#end ?? { why: "it is not kept", isFatal: true };
  }

  /** The lease has ended. Only the first end counts. */
  end(end: TermEnd): void {
    if (this.#end !== undefined) return;
    this.#end = end;
    this.#context.ended(end);
    this.#ends.abort();
  }

  /** Keeps the lease no more. It ends at once if `isIdle`, best effort, and else by itself: work that still runs has the slots until then. */
  async close(isIdle: boolean): Promise<void> {
    const isLive = this.#end === undefined && isIdle;
    this.end({ why: "it was closed", isFatal: true });
    const { http } = this.#context;
    const until = http.until(Math.min(http.options.timeoutMs, this.#opened.lease.ttl_ms));
    if (isLive) await http.ask(this.#path, { method: "DELETE", until }).catch(() => undefined);
  }

  /** The sidecar hears at once that no work is in flight under these grants. */
  finished(grants: number[]): void {
    for (const grant of grants) this.#finished.add(grant);
    this.#changed.ring();
  }

  /** Whether the sidecar says that this worker holds the key. */
  async holds(key: string): Promise<boolean> {
    try {
      const { value } = await this.#ask("enter", "POST", { keys: [key] });
      if (!Array.isArray(value)) throw this.#context.http.strange();
      return value.some((held: { key?: unknown }) => held?.key === key);
    } catch (broken) {
      throw this.#failed(broken);
    }
  }

  get id(): string { return this.#opened.lease.id; }
  get #path(): string { return `leases/${encodeURIComponent(this.#opened.lease.id)}`; }
  get #isOver(): boolean { return this.#ends.signal.aborted; }

  async #renew(): Promise<void> {
    const { clock, http, holdings } = this.#context;
    let [asked, every, tries] = [this.#opened.asked, this.#every(this.#opened.lease.valid_ms), 0];
    while (!this.#isOver) {
      await this.#renewal.next(this.#ends.signal, Math.max(0, asked + every - clock.now()));
      if (this.#isOver) return;
      asked = clock.now();
      try {
        const { value } = await this.#ask(this.#path, "PUT", holdings.version === undefined ? {} : { seen: holdings.version });
        if (this.#isOver) return;
        if (!isLease(value)) throw http.strange();
        holdings.trouble = "";
        holdings.extend(asked + value.valid_ms, value.version);
        [every, tries] = [this.#every(value.valid_ms), 0];
      } catch (broken) {
        const error = this.#failed(broken);
        holdings.trouble = error.message;
        asked = clock.now();
        every = Math.min(Math.max(pause(tries++), error.retryAfterMs), this.#opened.lease.ttl_ms / 6);
      }
    }
  }

  /** How long after a renewal the next one is: the sidecar's own lease may be shorter than this one. */
  #every(validMs: number): number {
    const { ttl_ms } = this.#opened.lease;
    return Math.min(ttl_ms / 3, validMs > 0 ? Math.max(RENEW_SOONEST_MS, validMs / 3) : UNPROVEN_MS);
  }

  async #follow(): Promise<void> {
    const { clock, http } = this.#context;
    for (let tries = 0; !this.#isOver; ) {
      const connection = new AbortController();
      const end = () => connection.abort();
      this.#ends.signal.addEventListener("abort", end);
      try {
        const asked = clock.now();
        const response = await unless(connection, SILENCE_MS, http.fetch("grants", connection.signal, { headers: this.#headers }));
        if (response.status !== 200) throw await unless(connection, SILENCE_MS, Problem.of(response));
        // Lines that came together have one version, so no renewal may come between them.
        for await (const some of lines(response, connection, SILENCE_MS, LINE_CHARACTERS)) {
          for (const text of some) this.#read(text, asked);
          tries = 0;
        }
      } catch (broken) {
        this.#failed(broken);
      } finally {
        end();
        this.#ends.signal.removeEventListener("abort", end);
      }
      await sleep(Math.min(pause(tries++), AGAIN_MS), this.#ends.signal);
    }
  }

  #read(text: string, asked: number): void {
    if (this.#isOver) return;
    const { http, holdings } = this.#context;
    const line: unknown = JSON.parse(text);
    if (!isLine(line)) throw http.strange();
    if (line.type === "ended") return this.end({ why: line.why ?? "the sidecar says so", isFatal: false });
    holdings.apply(line, asked);
    if (line.type === "all") this.#context.listed();
    // Nothing was held when the lease was renewed last, so nothing had a deadline.
    if (!holdings.isEmpty && !holdings.isValid) this.#renewal.ring();
  }

  async #report(): Promise<void> {
    while (!this.#isOver) {
      await this.#changed.next(this.#ends.signal);
      for (let tries = 0; this.#finished.size > 0 && !this.#isOver; ) {
        const grants = [...this.#finished].slice(0, FINISHED_AT_ONCE);
        try {
          await this.#ask("grants/finished", "POST", { grants });
          for (const grant of grants) this.#finished.delete(grant);
          tries = 0;
        } catch (broken) {
          this.#failed(broken);
          await sleep(Math.min(pause(tries++), AGAIN_MS), this.#ends.signal);
        }
      }
    }
  }

  async #offer(): Promise<void> {
    const { offers } = this.#context;
    for (let tries = 0; !this.#isOver; ) {
      const next = offers.next();
      if (next === undefined) {
        await offers.changed.next(this.#ends.signal);
        continue;
      }
      try {
        await this.#ask("names", "PUT", next.names);
        offers.accepted(next.version);
        tries = 0;
      } catch (broken) {
        const error = this.#context.http.error(broken);
        if (isFatal(error)) offers.refused(next.version, error);
        else {
          this.#failed(error);
          await sleep(Math.max(pause(tries++), error.retryAfterMs), this.#ends.signal);
        }
      }
    }
  }

  get #headers(): Record<string, string> { return under(this.#opened.lease.id); }

  /** One question, which has to be answered while two fit into the lease. */
  #ask(path: string, method: string, body: object): Promise<{ value: unknown }> {
    const { http } = this.#context;
    const sent: Sent = { method, body: JSON.stringify(body), headers: this.#headers };
    return http.ask(path, { ...sent, isSafe: false, signal: this.#ends.signal, until: http.until(this.#opened.lease.ttl_ms / 2) });
  }

  /** Ends the lease if the sidecar says that it has ended, or refuses it for good. */
  #failed(broken: unknown): ShardwiseError {
    const error = this.#context.http.error(broken);
    if (this.#isOver) return error;
    const isGone = error instanceof Problem && error.status === 410;
    if (isGone) this.end({ why: error.detail, isFatal: false, cause: error });
    else if (isFatal(error)) this.end({ why: error.message, isFatal: true, cause: error });
    return error;
  }
}

function isLease(value: unknown): value is WorkerLease {
  const lease = value as Partial<WorkerLease> | null;
  return typeof lease?.id === "string" && [lease.ttl_ms, lease.valid_ms, lease.version].every(Number.isFinite);
}

function isLine(value: unknown): value is GrantLine {
  const line = value as Partial<GrantLine> | null;
  return typeof line?.type === "string" && [line.version, line.valid_ms, line.slots].every(Number.isFinite) && Array.isArray(line.grants);
}
