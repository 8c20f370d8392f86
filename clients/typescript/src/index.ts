/** Asks `shardwise serve`, the process beside this worker: which of these keys are mine, who owns what, and what moves. */

/** The most characters of a list in one request. The sidecar keeps nothing for us, and we send everything before we read. */
const LIST_CHARACTERS = 256 * 1024;
/** The sidecar says something every 3 s; a stream that is silent for longer than this is dead. */
const SILENCE_MS = 10_000;
const [PAUSE_FIRST_MS, PAUSE_LONGEST_MS] = [100, 5_000];
const EVENT_CHARACTERS = 1024 * 1024;
// Answers, as /openapi.json describes them. A newer sidecar may add fields.
export interface Owner { key: string; slot: number | null; owner: string | null; address: string | null; mine: boolean; revision: number }
export interface Ownership {
  policy: string; group: string; instance_id: string; state: string; hint: string | null; drained: boolean; owned_for_ms: number | null;
  revision: number; view_fingerprint: string; policy_fingerprint: string | null; members: number; slots: number | null;
  slots_owned: number | null; ranges: [number, number][] | null; stands_still: boolean; renewed_ms_ago: number | null; viewed_ms_ago: number | null;
}
export interface Member {
  instance_id: string; incarnation: string; state: string; address: string | null; zone: string | null; version: string | null;
  weight: number; slots: number | null; metadata: Record<string, string>;
}
export interface Group { revision: number; view_fingerprint: string; members: Member[]; foreign: string[] }
export interface Step {
  instance_id: string; point: number | null; place: string | null; slots: number | null; capacity: number | null;
  weight_slots: number | null; weight_capacity: number | null;
}
export interface Explanation {
  key: string; placement: string | null; hash: string | null; slot: number | null; start: string | null; passed: Step[];
  owner: Step | null; before: Step | null; next: string | null;
}
export interface Evenness { members: number; peak: number; least: number }
export interface Plan {
  placement: string; moved_share: number; exact_share: number; moves: { from: string | null; to: string | null; share: number }[];
  before: Evenness; after: Evenness;
}
export interface Wish { instance_id: string; drained: boolean; changed: boolean }
export interface Rebalance {
  id: string; at: string; cause: string; revision: number; members: number; joined: number; members_joined: string[]; left: number;
  members_left: string[]; slots_owned: number | null; gained: number | null; lost: number | null; moved_share: number | null;
  took_ms: number;
}

/** The keys of a list that are this worker's. Unless `state` is active, stale or unsharded, nothing is. */
export interface Owned { keys: string[]; state: string }

/**
 * `rebalance`: what this worker owns has changed. `gap`: ask now what is owned, something may have changed that is not told; it comes first, and
 * whenever the sidecar is back. `lost`: the sidecar cannot be heard, so what is owned may end unseen.
 */
export type Event = { kind: "rebalance"; rebalance: Rebalance } | { kind: "gap" } | { kind: "lost" };

/** Whatever goes wrong with the sidecar; `passes` where it may pass by itself. */
export class ShardwiseError extends Error {
  override name = "ShardwiseError";
  readonly passes: boolean = false;
}

/** The sidecar does not answer, or not in time. */
export class Unavailable extends ShardwiseError {
  override name = "Unavailable";
  override readonly passes = true;
}

/** The sidecar refuses, as RFC 9457 has it. `kind` is a name that does not change, such as `unknown-instance`. */
export class Problem extends ShardwiseError {
  override name = "Problem";
  override readonly passes: boolean;
  readonly kind: string;

  constructor(readonly status: number, readonly type: string, readonly title: string, readonly detail: string, readonly retryAfterMs: number) {
    super(`${status} ${title}: ${detail}`);
    this.passes = status === 429 || status === 503;
    this.kind = type.slice(type.lastIndexOf(":") + 1);
  }

  static async of(response: Response): Promise<Problem> {
    const isProblem = response.headers.get("content-type") === "application/problem+json";
    const told = (isProblem ? await response.json() : {}) as Partial<Problem>;
    if (!isProblem) await response.body?.cancel();
    const after = Number(response.headers.get("retry-after") ?? 0);
    const title = String(told.title ?? response.statusText);
    return new Problem(response.status, String(told.type ?? "about:blank"), title, String(told.detail ?? ""), after > 0 ? after * 1000 : 0);
  }
}

/**
 * `timeoutMs` is for a whole call, retries included. What changes nothing is tried `attempts` times while the sidecar is away, busy or no member yet;
 * `drain` and `undrain` once.
 */
export interface Options { url?: string; token?: string; timeoutMs?: number; attempts?: number }
interface Asked { method?: string; body?: string; isSafe?: boolean }

/** Asks one sidecar about one policy. */
export class Client {
  readonly #base: string;
  readonly #headers: Record<string, string>;
  readonly #timeoutMs: number;
  readonly #attempts: number;

  constructor(policy: string, { url = "http://127.0.0.1:8087", token, timeoutMs = 15_000, attempts = 3 }: Options = {}) {
    this.#base = `${url.replace(/\/+$/, "")}/v1/policies/${encoded(policy)}/`;
    this.#headers = token === undefined ? {} : { authorization: `Bearer ${sendable(token)}` };
    this.#timeoutMs = timeoutMs;
    this.#attempts = Math.max(1, attempts);
  }

  /** Those of the keys that are mine, in their order; each holds for the moment when its part of the list was answered. */
  async owned(keys: Iterable<string>): Promise<Owned> {
    const owned: Owned = { keys: [], state: "" };
    for (const part of parts(keys)) {
      const { keys: mine, state } = await this.#owned(part);
      for (const key of mine) owned.keys.push(key);
      owned.state = state;
    }
    return owned.state === "" ? this.#owned("[]") : owned;
  }

  /** The same for a list of any length, of which one part at a time is in memory. */
  async *ownedStream(keys: Iterable<string> | AsyncIterable<string>): AsyncGenerator<string, void, undefined> {
    if (Symbol.iterator in keys) {
      for (const part of parts(keys)) yield* (await this.#owned(part)).keys;
      return;
    }
    let gathered: string[] = [];
    for await (const key of keys) {
      if (gathered.push(key) < 10_000) continue;
      yield* (await this.owned(gathered)).keys;
      gathered = [];
    }
    yield* (await this.owned(gathered)).keys;
  }

  /** Who owns the key by the newest view, and whether it is mine right now, by this worker's own deadline. */
  async owner(key: string): Promise<Owner> { return this.#json(`owner/${encoded(key)}`); }

  /** Why the key has its owner, for people. */
  async explain(key: string): Promise<Explanation> { return this.#json(`explain/${encoded(key)}`); }

  /** What this worker has, and for how long unless it is renewed. */
  ownership(): Promise<Ownership> { return this.#json("ownership"); }

  /** Who is in the group. */
  members(): Promise<Group> { return this.#json("members"); }

  /** What would move if these joined and those left; nothing is changed. */
  plan(wanted: { join?: { instance_id: string; weight?: number }[]; leave?: string[] } = {}): Promise<Plan> {
    return this.#json("plan", { method: "POST", body: JSON.stringify(wanted) });
  }

  /** Lets a member stay and own nothing, over its restarts too. Needs the token. */
  drain(instance_id: string): Promise<Wish> { return this.#wish("drain", instance_id); }

  /** Lets a drained member take its share again. Needs the token. */
  undrain(instance_id: string): Promise<Wish> { return this.#wish("undrain", instance_id); }

  /**
   * What moves, as it happens, until the iteration is left or the signal aborts it. It goes on behind the event of that id, and by itself behind the
   * last one after each break of the connection. A refusal that does not pass by itself is thrown.
   */
  async *rebalances({ lastEventId, signal }: { lastEventId?: string; signal?: AbortSignal } = {}): AsyncGenerator<Event, void, undefined> {
    let [last, isLost, tries] = [lastEventId, false, 0];
    while (!signal?.aborted) {
      const ends = new AbortController();
      const end = () => ends.abort();
      signal?.addEventListener("abort", end);
      try {
        const headers = { accept: "text/event-stream", ...(last === undefined ? {} : { "last-event-id": last }) };
        const response = await unless(ends, this.#timeoutMs, this.#fetch("rebalances", { headers, signal: ends.signal }));
        if (response.status !== 200) throw await unless(ends, this.#timeoutMs, Problem.of(response));
        if (isLost || last === undefined) yield { kind: "gap" };
        [isLost, tries] = [false, 0];
        for await (const fields of events(response, ends)) {
          if (fields.get("event") === "gap") yield { kind: "gap" };
          if (fields.get("event") !== "rebalance") continue;
          const rebalance = JSON.parse(fields.get("data") ?? "null") as Rebalance;
          last = rebalance.id;
          yield { kind: "rebalance", rebalance };
        }
      } catch (error) {
        if (error instanceof ShardwiseError && !error.passes) throw error;
      } finally {
        signal?.removeEventListener("abort", end);
        end();
      }
      if (signal?.aborted) return;
      if (!isLost) yield { kind: "lost" };
      isLost = true;
      await sleep(pause(tries++), signal);
    }
  }

  async #owned(part: string): Promise<Owned> {
    const { value, state } = await this.#ask("owned", { method: "POST", body: part });
    if (!Array.isArray(value)) throw this.#strange();
    return { keys: value as string[], state };
  }

  #wish(route: string, instance_id: string): Promise<Wish> {
    return this.#json(route, { method: "POST", body: JSON.stringify({ instance_id }), isSafe: false });
  }

  async #json<T>(path: string, asked: Asked = {}): Promise<T> {
    const { value } = await this.#ask(path, asked);
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw this.#strange();
    return value as T;
  }

  /** An answer with status 200, at the latest when the time is over. */
  async #ask(path: string, { method = "GET", body, isSafe = true }: Asked): Promise<{ value: unknown; state: string }> {
    const [ends, until] = [new AbortController(), Date.now() + this.#timeoutMs];
    let error: ShardwiseError = new Unavailable(`${this.#base} has not answered within ${this.#timeoutMs} ms`);
    for (let attempt = 0; attempt < this.#attempts && Date.now() < until; attempt++) {
      const rest = Math.max(pause(attempt - 1), error instanceof Problem ? error.retryAfterMs : 0);
      if (attempt > 0) await sleep(Math.min(rest, until - Date.now()));
      try {
        const sent = body === undefined ? {} : { body, headers: { "content-type": "application/json" } };
        const response = await unless(ends, until - Date.now(), this.#fetch(path, { method, signal: ends.signal, ...sent }));
        const answer = response.status === 200 ? response.json() : Problem.of(response);
        const value: unknown = await unless(ends, until - Date.now(), answer);
        if (!(value instanceof Problem)) return { value, state: response.headers.get("shardwise-state") ?? "" };
        error = value;
      } catch (broken) {
        if (broken instanceof SyntaxError) throw this.#strange();
        if (!ends.signal.aborted) error = new Unavailable(`${this.#base} does not answer: ${broken}`, { cause: broken });
      }
      if (!isSafe || !error.passes) break;
    }
    throw error;
  }

  #fetch(path: string, request: RequestInit): Promise<Response> {
    const headers = { ...this.#headers, ...(request.headers as Record<string, string> | undefined) };
    return fetch(this.#base + path, { cache: "no-store", credentials: "omit", redirect: "error", ...request, headers });
  }

  #strange(): ShardwiseError {
    return new ShardwiseError(`${this.#base} answers something else: is a shardwise sidecar there?`);
  }
}

/** The token without the line feed at the end of its file. `fetch` would show a header that it cannot send. */
function sendable(token: string): string {
  const text = token.replace(/\r?\n$/, "");
  if (!/^[!-~]+$/.test(text) || text.includes("\n")) throw new ShardwiseError("the token is not printable ASCII");
  return text;
}

function encoded(text: string): string {
  // URLs are tidied up before they are sent, whatever the dots are written as.
  if (text === "." || text === "..") throw new ShardwiseError(`no URL can have "${text}" as a part: ask by a list, owned(["${text}"])`);
  return encodeURIComponent(text);
}

function pause(tries: number): number {
  return Math.min(PAUSE_LONGEST_MS, PAUSE_FIRST_MS * 2 ** Math.min(tries, 10)) * (0.5 + Math.random() / 2);
}

/** Ends early, and well, when the signal aborts. */
function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const wake = () => { clearTimeout(timer); signal?.removeEventListener("abort", wake); resolve(); };
    const timer = setTimeout(wake, ms);
    if (signal?.aborted) wake();
    signal?.addEventListener("abort", wake);
  });
}

/** JSON lists of bounded size; a longer key is alone in its list. */
function* parts(keys: Iterable<string>): Generator<string, void, undefined> {
  let [part, size] = [[] as string[], 0];
  for (const key of keys) {
    const text = JSON.stringify(key);
    if (part.length > 0 && size + text.length > LIST_CHARACTERS) {
      yield `[${part.join(",")}]`;
      [part, size] = [[], 0];
    }
    part.push(text);
    size += text.length + 1;
  }
  if (part.length > 0) yield `[${part.join(",")}]`;
}

/** What comes of it, unless `ends` aborts before, as it does after so long. Node forgets at times that it was to end a request. */
async function unless<T>(ends: AbortController, ms: number, coming: Promise<T>): Promise<T> {
  let stop = () => {};
  const aborted = new Promise<never>((_, reject) => { stop = () => reject(new Error("aborted")); });
  const timer = setTimeout(() => ends.abort(), ms);
  ends.signal.addEventListener("abort", stop);
  if (ends.signal.aborted) stop();
  return Promise.race([coming, aborted]).finally(() => { clearTimeout(timer); ends.signal.removeEventListener("abort", stop); });
}

/** Server-sent events, whose lines end with a line feed. */
async function* events(response: Response, ends: AbortController): AsyncGenerator<Map<string, string>, void, undefined> {
  if (response.body === null) return;
  const [reader, decoder] = [response.body.getReader(), new TextDecoder()];
  try {
    for (let kept = ""; ; ) {
      const { done, value } = await unless(ends, SILENCE_MS, reader.read());
      if (done) return;
      const whole = (kept + decoder.decode(value, { stream: true })).split("\n\n");
      kept = whole.pop() ?? "";
      if (kept.length > EVENT_CHARACTERS) throw new ShardwiseError("an event without an end: is a shardwise sidecar there?");
      for (const event of whole) yield new Map(event.split("\n").map((line) => [line.replace(/:.*/s, ""), line.replace(/^[^:]*: ?/, "")]));
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
