/** Waits that end with a signal or a time limit, and lines of an answer as they come. */

import { ShardwiseError } from "./errors.js";

const [PAUSE_FIRST_MS, PAUSE_LONGEST_MS] = [100, 5_000];
const [RETRY_FIRST_MS, RETRY_LONGEST_MS, RUNS_WELL_MS] = [500, 30_000, 60_000];
/** The most characters of a server-sent event. */
const EVENT_CHARACTERS = 1024 * 1024;

/** The time in milliseconds on a clock that never goes back, and one call after so many milliseconds, unless the result is called before. */
export interface Clock { now(): number; after(ms: number, call: () => void): () => void }

export const systemClock: Clock = {
  now: () => performance.now(),
  after: (ms, call) => {
    const timer = setTimeout(call, ms);
    return () => clearTimeout(timer);
  },
};

/** `firstMs` doubled so many times, but at most `longestMs`. */
function exponential(firstMs: number, doublings: number, longestMs: number): number {
  return Math.min(longestMs, firstMs * 2 ** Math.min(doublings, 10));
}

/** The pause before the next try, at random by half, so that clients do not come back together. */
export function pause(tries: number, firstMs = PAUSE_FIRST_MS, longestMs = PAUSE_LONGEST_MS): number {
  return exponential(firstMs, tries, longestMs) * (0.5 + Math.random() / 2);
}

/** The pauses before work that has failed begins again: first 0.5 s, each time twice as long, and at most 30 s. */
export class RetryPauses {
  #failures = 0;

  /** The next one. After work that ran for a minute it is the first again. */
  next(ranMs: number): number {
    if (ranMs >= RUNS_WELL_MS) this.#failures = 0;
    return exponential(RETRY_FIRST_MS, this.#failures++, RETRY_LONGEST_MS);
  }
}

/** The end of something, for all that wait for it. Only the first one counts. */
export class End {
  readonly reached: Promise<void>;
  #resolve: () => void = () => {};
  #reject: (error: unknown) => void = () => {};

  constructor() {
    this.reached = new Promise((resolve, reject) => { [this.#resolve, this.#reject] = [resolve, reject]; });
    // An error that nothing waits for is no unhandled rejection.
    this.reached.catch(() => undefined);
  }

  set(error?: unknown): void {
    if (error === undefined) this.#resolve();
    else this.#reject(error);
  }
}

/** Resolves early, without an error, when the signal aborts. */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  const [ends, end] = tied(signal);
  await unless(ends, ms, new Promise<never>(() => undefined)).catch(end);
}

/** A controller that ends with the signal as well, and how to end and untie it. */
export function tied(signal: AbortSignal | undefined): [AbortController, () => void] {
  const ends = new AbortController();
  const end = () => { ends.abort(); signal?.removeEventListener("abort", end); };
  signal?.addEventListener("abort", end);
  if (signal?.aborted) end();
  return [ends, end];
}

/** The result, unless `ends` aborts first, which it does after the timeout. Node sometimes forgets to end an aborted request. */
export async function unless<T>(ends: AbortController, ms: number, coming: Promise<T>): Promise<T> {
  let stop = () => {};
  const aborted = new Promise<never>((_, reject) => { stop = () => reject(new Error(`nothing for ${ms} ms`)); });
  // First the reason: whatever waits for the signal fails as well.
  const timer = setTimeout(() => { stop(); ends.abort(); }, ms);
  ends.signal.addEventListener("abort", stop);
  if (ends.signal.aborted) stop();
  return Promise.race([coming, aborted]).finally(() => { clearTimeout(timer); ends.signal.removeEventListener("abort", stop); });
}

/** Wakes a loop that waits. A ring while nothing waits ends the next wait at once. */
export class Bell {
  #isRung = false;
  #wake: (() => void) | undefined;

  ring(): void {
    this.#isRung = true;
    this.#wake?.();
  }

  /** Resolves with a ring, when the signal aborts, or after the time. */
  async next(signal: AbortSignal, ms?: number): Promise<void> {
    if (!this.#isRung && !signal.aborted) {
      await new Promise<void>((resolve) => {
        const timer = ms === undefined ? undefined : setTimeout(() => this.#wake?.(), ms);
        this.#wake = () => {
          clearTimeout(timer);
          signal.removeEventListener("abort", wake);
          resolve();
        };
        const wake = this.#wake;
        signal.addEventListener("abort", wake);
      });
    }
    [this.#isRung, this.#wake] = [false, undefined];
  }
}

/** The lines of an answer, those of a piece together. Only a line feed ends a line. Throws after `silenceMs` without data. */
export async function* lines(response: Response, ends: AbortController, silenceMs: number, characters: number): AsyncGenerator<string[], void, undefined> {
  if (response.body === null) return;
  const [reader, decoder] = [response.body.getReader(), new TextDecoder()];
  let [pieces, size] = [[] as string[], 0];
  try {
    for (;;) {
      const { done, value } = await unless(ends, silenceMs, reader.read());
      if (done) return;
      const parts = decoder.decode(value, { stream: true }).split("\n");
      const rest = parts.pop() ?? "";
      if (parts.length > 0) {
        parts[0] = pieces.join("") + parts[0];
        [pieces, size] = [[], 0];
        yield parts;
      }
      pieces.push(rest);
      size += rest.length;
      if (size > characters) throw new ShardwiseError("a line without an end: is a shardwise sidecar there?");
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** Server-sent events. */
export async function* events(response: Response, ends: AbortController, silenceMs: number): AsyncGenerator<Map<string, string>, void, undefined> {
  let [fields, size] = [new Map<string, string>(), 0];
  for await (const some of lines(response, ends, silenceMs, EVENT_CHARACTERS)) {
    for (const line of some) {
      size += line.length;
      if (size > EVENT_CHARACTERS) throw new ShardwiseError("an event without an end: is a shardwise sidecar there?");
      if (line !== "") {
        fields.set(line.replace(/:.*/s, ""), line.replace(/^[^:]*: ?/, ""));
        continue;
      }
      yield fields;
      [fields, size] = [new Map(), 0];
    }
  }
}
