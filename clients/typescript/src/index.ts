/** Asks `shardwise serve`, the process beside this worker: which of these keys are mine, who owns what, and what moves. */

/** The most characters of a list in one request. The sidecar buffers nothing, and `fetch` sends the whole body before it reads. */
const LIST_CHARACTERS = 256 * 1024;
const [EVENT_CHARACTERS, PAUSE_FIRST_MS, PAUSE_LONGEST_MS] = [1024 * 1024, 100, 5_000];
const OWNING = ["active", "stale", "unsharded"];
type Str = string | null;
type Num = number | null;
// Answers, as /openapi.json describes them; a test compares the two. A newer sidecar may add fields.
/** Who holds a slot, under exclusive ownership: its epoch and since when, and if that is not the member that the placement names, which one is and why. */
export interface Held { holder: Str; incarnation: Str; epoch: Num; since: Str; wanted: Str; why: Str }
export interface Owner extends Held { key: string; slot: Num; owner: Str; address: Str; mine: boolean; revision: number }
export interface Ownership {
  policy: string; group: string; instance_id: string; state: string; hint: Str; drained: boolean; worker: Str; worker_failure: Str; spared: boolean; owned_for_ms: Num; revision: number;
  renewed_ms_ago: Num; viewed_ms_ago: Num; view_age_ms: Num; view_fingerprint: string; policy_fingerprint: Str; members: number; slots: Num; slots_owned: Num;
  ranges: number[][] | null; claims_seen: Num; stands_still: boolean;
}
export interface Member { instance_id: string; incarnation: string; state: string; worker: Str; address: Str; zone: Str; version: Str; weight: number;
  slots: Num; holds: Num; metadata: Record<string, string> }
export interface Vanished { instance_id: string; incarnation: string; at: string; ms_ago: number; is_back: boolean }
export interface Group { revision: number; view_fingerprint: string; members: Member[]; foreign: string[]; vanished: Vanished[] }
export interface Step { instance_id: string; point: Num; place: Str; slots: Num; capacity: Num; weight_slots: Num; weight_capacity: Num }
export interface Explanation extends Held {
  key: string; placement: Str; hash: Str; slot: Num; start: Str; passed: Step[]; owner: Step | null; before: Step | null; next: Str;
}
export interface Evenness { members: number; peak: number; least: number }
export interface Move { from: Str; to: Str; share: number }
export interface Plan { placement: string; moved_share: number; exact_share: number; moves: Move[]; before: Evenness; after: Evenness }
export interface Wish { instance_id: string; drained: boolean; changed: boolean }
export interface Changed { instance_id: string; state: string[] | null; weight: number[] | null }
export interface Rebalance {
  id: string; at: string; cause: string; took_ms: number; revision: number; members: number; joined: number; members_joined: string[];
  left: number; members_left: string[]; vanished: number; members_vanished: string[]; members_changed: Changed[]; slots_owned: Num; gained: Num; lost: Num; moved_share: Num;
}

/** The keys of a list that this worker owns. It owns none unless `state` is active, stale or unsharded. */
export interface Owned { keys: string[]; state: string }
/** `rebalance`: this worker's ownership has changed. `gap`: events may be missing, so query the ownership now; it comes first, and after each
 * reconnection. `lost`: the connection to the sidecar is lost (`error` says why), so ownership may end unnoticed. */
export type Event = { kind: "rebalance"; rebalance: Rebalance } | { kind: "gap" } | { kind: "lost"; error: ShardwiseError };

/** The base of all errors. `passes`: the error is transient, and a retry may succeed after `retryAfterMs`. */
export class ShardwiseError extends Error {
  override name = "ShardwiseError";
  readonly passes: boolean = false;
  readonly retryAfterMs: number = 0;
}

/** The sidecar did not answer in time. */
export class Unavailable extends ShardwiseError { override name = "Unavailable"; override readonly passes = true; }

/** This worker owns no keys at the moment; `state` says why. */
export class NotOwning extends Unavailable {
  override name = "NotOwning";
  constructor(readonly state: string) { super(`this worker owns nothing at the moment: it is ${state}`); }
}

/** The sidecar refused the request (RFC 9457). `kind` is a stable name, such as `unknown-instance`. */
export class Problem extends ShardwiseError {
  override name = "Problem";
  override readonly passes: boolean;
  readonly kind: string;
  constructor(readonly status: number, readonly type: string, readonly title: string, readonly detail: string, override readonly retryAfterMs: number) {
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

/** `timeoutMs` is for a whole call, retries included; of `ownedStream` for each part. What changes nothing is tried `attempts` times while the sidecar
 * is away, busy or no member yet; `drain` and `undrain` once. The sidecar sends something every 3 s: after `silenceMs` without data
 * a follower reports `lost`. */
export interface Options { url?: string; token?: string; timeoutMs?: number; attempts?: number; silenceMs?: number }
/** When the signal aborts, the call ends at once and throws the signal's reason. */
export interface Call { signal?: AbortSignal | undefined }
interface Asked extends Call { body?: string; isSafe?: boolean; until?: number }

/** Asks one sidecar about one policy. */
export class Client {
  readonly #base: string;
  readonly #headers: Record<string, string>;
  readonly #options: Required<Omit<Options, "url" | "token">>;

  constructor(policy: string, { url = "http://127.0.0.1:8087", token, timeoutMs = 15_000, attempts = 3, silenceMs = 10_000 }: Options = {}) {
    this.#base = `${reachable(url)}/v1/policies/${encoded(policy)}/`;
    this.#headers = token === undefined ? {} : { authorization: `Bearer ${sendable(token)}` };
    this.#options = { timeoutMs, attempts: Math.max(1, attempts), silenceMs };
  }

  /** The keys that this worker owns, in their order. Each was owned when its part was answered. Empty in a state without ownership. */
  async owned(keys: Iterable<string>, { signal }: Call = {}): Promise<Owned> {
    const [until, owned] = [this.#until(), { keys: [] as string[], state: "" }];
    for await (const part of parts(keys)) {
      const { keys: mine, state } = await this.#owned(part, { signal, until });
      if (!OWNING.includes(state)) return { keys: [], state };
      for (const key of mine) owned.keys.push(key);
      owned.state = state;
    }
    return owned;
  }

  /** Like `owned`, for a list of any length; one part at a time is in memory. Throws `NotOwning` as soon as this worker owns nothing. */
  async *ownedStream(keys: Iterable<string> | AsyncIterable<string>, { signal }: Call = {}): AsyncGenerator<string, void, undefined> {
    for await (const part of parts(keys)) {
      const { keys: mine, state } = await this.#owned(part, { signal });
      if (!OWNING.includes(state)) throw new NotOwning(state);
      yield* mine;
    }
  }

  /** The key's owner in the newest view, and whether this worker owns it right now, by its own deadline. */
  async owner(key: string, call: Call = {}): Promise<Owner> { return this.#json(`owner/${encoded(key)}`, call); }
  /** Explains the key's owner in readable form. */
  async explain(key: string, call: Call = {}): Promise<Explanation> { return this.#json(`explain/${encoded(key)}`, call); }
  /** This worker's ownership, and how long it lasts without a renewal. */
  ownership(call: Call = {}): Promise<Ownership> { return this.#json("ownership", call); }
  /** The members of the group. */
  members(call: Call = {}): Promise<Group> { return this.#json("members", call); }
  /** What would move if `join` joined and `leave` left; changes nothing. */
  plan(wanted: { join?: { instance_id: string; weight?: number }[]; leave?: string[] } = {}, { signal }: Call = {}): Promise<Plan> {
    return this.#json("plan", { signal, body: JSON.stringify(wanted) });
  }
  /** Drains a member: it stays registered and owns no slots, even after restarts. Needs the token. */
  drain(instance_id: string, call: Call = {}): Promise<Wish> { return this.#wish("drain", instance_id, call); }
  /** Ends a drain: the member takes its share again. Needs the token. */
  undrain(instance_id: string, call: Call = {}): Promise<Wish> { return this.#wish("undrain", instance_id, call); }

  /** What moves, as it happens, until the iteration is left or the signal aborts it. It goes on behind the event of that id, and by itself behind the
   * last one after each break of the connection. A refusal that does not pass by itself is thrown. */
  async *rebalances({ lastEventId, signal }: Call & { lastEventId?: string } = {}): AsyncGenerator<Event, void, undefined> {
    let [last, isLost, tries] = [lastEventId, false, 0];
    while (!signal?.aborted) {
      const [ends, end] = tied(signal);
      let error: ShardwiseError = new Unavailable(`${this.#base}rebalances has ended`);
      try {
        const headers = { accept: "text/event-stream", ...(last === undefined ? {} : { "last-event-id": last }) };
        const response = await unless(ends, this.#options.timeoutMs, this.#fetch("rebalances", ends.signal, headers));
        if (response.status !== 200) throw await unless(ends, this.#options.timeoutMs, Problem.of(response));
        if (isLost || last === undefined) yield { kind: "gap" };
        [isLost, tries] = [false, 0];
        for await (const fields of events(response, ends, this.#options.silenceMs)) {
          if (fields.get("event") === "gap") yield { kind: "gap" };
          if (fields.get("event") !== "rebalance") continue;
          const rebalance = JSON.parse(fields.get("data") ?? "null") as Rebalance;
          last = rebalance.id;
          yield { kind: "rebalance", rebalance };
        }
      } catch (broken) {
        error = this.#error(broken);
        if (!error.passes) throw error;
      } finally {
        end();
      }
      if (!isLost && !signal?.aborted) yield { kind: "lost", error };
      isLost = true;
      await sleep(pause(tries++), signal);
    }
  }

  async #owned(part: string, call: Asked): Promise<Owned> {
    const { value, state } = await this.#ask("owned", { ...call, body: part });
    if (!Array.isArray(value)) throw this.#strange();
    return { keys: value as string[], state };
  }
  #wish(route: string, instance_id: string, { signal }: Call): Promise<Wish> {
    return this.#json(route, { signal, body: JSON.stringify({ instance_id }), isSafe: false });
  }
  async #json<T>(path: string, asked: Asked): Promise<T> {
    const { value } = await this.#ask(path, asked);
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw this.#strange();
    return value as T;
  }
  /** Returns an answer with status 200, or throws when the time is over. */
  async #ask(path: string, { body, isSafe = true, signal, until = this.#until() }: Asked): Promise<{ value: unknown; state: string }> {
    const [ends, end] = tied(signal);
    let error: ShardwiseError = new Unavailable(`${this.#base} has not answered within ${this.#options.timeoutMs} ms`);
    try {
      for (let attempt = 0; attempt < this.#options.attempts && Date.now() < until; attempt++) {
        if (attempt > 0) await sleep(Math.min(Math.max(pause(attempt - 1), error.retryAfterMs), until - Date.now()), signal);
        signal?.throwIfAborted();
        try {
          const response = await unless(ends, until - Date.now(), this.#fetch(path, ends.signal, { "content-type": "application/json" }, body));
          const value: unknown = await unless(ends, until - Date.now(), response.status === 200 ? response.json() : Problem.of(response));
          if (!(value instanceof Problem)) return { value, state: response.headers.get("shardwise-state") || "unknown" };
          error = value;
        } catch (broken) {
          signal?.throwIfAborted();
          if (!ends.signal.aborted) error = this.#error(broken);
        }
        if (!isSafe || !error.passes) break;
      }
    } finally {
      end();
    }
    throw error;
  }
  #fetch(path: string, signal: AbortSignal, headers: Record<string, string>, body?: string): Promise<Response> {
    const sent = { ...(body === undefined ? {} : { method: "POST", body }), headers: { ...this.#headers, ...headers }, signal };
    return fetch(this.#base + path, { cache: "no-store", credentials: "omit", redirect: "error", ...sent });
  }
  #error(broken: unknown): ShardwiseError {
    if (broken instanceof ShardwiseError) return broken;
    if (broken instanceof SyntaxError) return this.#strange();
    const why = broken instanceof Error && broken.cause !== undefined ? broken.cause : broken;
    return new Unavailable(`${this.#base} does not answer: ${why}`, { cause: broken });
  }
  #until(): number { return Date.now() + this.#options.timeoutMs; }
  #strange(): ShardwiseError { return new ShardwiseError(`${this.#base} answers something else: is a shardwise sidecar there?`); }
}

/** The token without a final line feed. `fetch` would show a header that it cannot send in its error. */
function sendable(token: string): string {
  const text = token.replace(/\r?\n$/, "");
  if (!/^[!-~]+$/.test(text) || text.includes("\n")) throw new ShardwiseError("the token is not printable ASCII");
  return text;
}

/** The URL without final slashes. Throws if `fetch` cannot use it; the error does not show it, as it may contain a password. */
function reachable(url: string): string {
  try {
    const { href, protocol } = new URL(url);
    if (/^https?:$/.test(protocol) && !/[@?#]/.test(url)) return href.replace(/\/+$/, "");
  } catch { /* It is none. */ }
  throw new ShardwiseError("the URL of the sidecar is to be like http://127.0.0.1:8087: http or https, a host, and no name, query or fragment");
}

function encoded(text: string): string {
  // URLs are tidied up before they are sent, whatever the dots are written as.
  if (text === "." || text === "..") throw new ShardwiseError(`no URL can have "${text}" as a part: ask by a list, owned(["${text}"])`);
  return encodeURIComponent(text);
}

function pause(tries: number): number {
  return Math.min(PAUSE_LONGEST_MS, PAUSE_FIRST_MS * 2 ** Math.min(tries, 10)) * (0.5 + Math.random() / 2);
}

/** Resolves early, without an error, when the signal aborts. */
async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  const [ends, end] = tied(signal);
  await unless(ends, ms, new Promise<never>(() => undefined)).catch(end);
}

/** JSON lists of bounded size, at least one; a longer key is alone in its list. */
async function* parts(keys: Iterable<string> | AsyncIterable<string>): AsyncGenerator<string, void, undefined> {
  let [part, size] = [[] as string[], 0];
  for await (const key of keys) {
    const text = JSON.stringify(key);
    if (part.length > 0 && size + text.length > LIST_CHARACTERS) {
      yield `[${part.join(",")}]`;
      [part, size] = [[], 0];
    }
    part.push(text);
    size += text.length + 1;
  }
  yield `[${part.join(",")}]`;
}

/** A controller that ends with the signal as well, and how to end and untie it. */
function tied(signal: AbortSignal | undefined): [AbortController, () => void] {
  const ends = new AbortController();
  const end = () => { ends.abort(); signal?.removeEventListener("abort", end); };
  signal?.addEventListener("abort", end);
  if (signal?.aborted) end();
  return [ends, end];
}

/** The result, unless `ends` aborts first, which it does after the timeout. Node sometimes forgets to end an aborted request. */
async function unless<T>(ends: AbortController, ms: number, coming: Promise<T>): Promise<T> {
  let stop = () => {};
  const aborted = new Promise<never>((_, reject) => { stop = () => reject(new Error(`nothing for ${ms} ms`)); });
  const timer = setTimeout(() => ends.abort(), ms);
  ends.signal.addEventListener("abort", stop);
  if (ends.signal.aborted) stop();
  return Promise.race([coming, aborted]).finally(() => { clearTimeout(timer); ends.signal.removeEventListener("abort", stop); });
}

/** Server-sent events. Only a line feed ends a line. */
async function* events(response: Response, ends: AbortController, silenceMs: number): AsyncGenerator<Map<string, string>, void, undefined> {
  if (response.body === null) return;
  const [reader, decoder] = [response.body.getReader(), new TextDecoder()];
  try {
    for (let kept = ""; ; ) {
      const { done, value } = await unless(ends, silenceMs, reader.read());
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
