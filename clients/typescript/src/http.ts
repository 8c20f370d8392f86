/** Requests to one sidecar about one policy, with retries and time limits. */

import { Problem, ShardwiseError, Unavailable } from "./errors.js";
import { pause, sleep, tied, unless } from "./waits.js";

/** `timeoutMs` is for a whole call, retries included; of `ownedStream` for each part. What changes nothing is tried `attempts` times while the sidecar
 * is away, busy or no member yet; the rest once. The sidecar sends something every 3 s: after `silenceMs` without data a follower reports `lost`. */
export interface Options { url?: string; token?: string; timeoutMs?: number; attempts?: number; silenceMs?: number }
/** When the signal aborts, the call ends at once and throws the signal's reason. */
export interface Call { signal?: AbortSignal | undefined }
export interface Sent { method?: string; body?: string | Uint8Array | undefined; headers?: Record<string, string> }
/** `lease`: the id of a lease that this process or another one of the worker keeps. */
export interface UnderLease extends Call { lease?: string | undefined }
export interface Asked extends Call, Sent { isSafe?: boolean; until?: number }

export class Http {
  readonly base: string;
  readonly options: Required<Omit<Options, "url" | "token">>;
  readonly #headers: Record<string, string>;

  constructor(policy: string, { url = "http://127.0.0.1:8087", token, timeoutMs = 15_000, attempts = 3, silenceMs = 10_000 }: Options) {
    this.base = `${reachable(url)}/v1/policies/${encoded(policy)}/`;
    this.options = { timeoutMs, attempts: Math.max(1, attempts), silenceMs };
    this.#headers = token === undefined ? {} : { authorization: `Bearer ${sendable(token)}` };
  }

  /** When a call that begins now has to be over. */
  until(ms = this.options.timeoutMs): number { return performance.now() + ms; }

  /** An answer that is a JSON object. */
  async json<T>(path: string, asked: Asked): Promise<T> {
    const { value } = await this.ask(path, asked);
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw this.strange();
    return value as T;
  }

  /** An answer in JSON, `null` if it is empty, with its headers. */
  ask(path: string, asked: Asked): Promise<{ value: unknown; headers: Headers }> {
    return this.send<{ value: unknown; headers: Headers }>(path, asked, async (response) => {
      if (response.status !== 200 && response.status !== 201 && response.status !== 204) return Problem.of(response);
      return { value: response.status === 204 ? null : await response.json(), headers: response.headers };
    });
  }

  /** Returns what `read` makes of the answer. An error that `read` returns is thrown, or tried again if it passes. */
  async send<T>(path: string, { isSafe = true, signal, until = this.until(), ...sent }: Asked, read: (response: Response) => Promise<T | ShardwiseError>): Promise<T> {
    const [ends, end] = tied(signal);
    const left = () => until - performance.now();
    let error: ShardwiseError = new Unavailable(`${this.base} has not answered within ${Math.ceil(left())} ms`);
    try {
      for (let attempt = 0; attempt < this.options.attempts && left() > 0; attempt++) {
        if (attempt > 0) await sleep(Math.min(Math.max(pause(attempt - 1), error.retryAfterMs), left()), signal);
        signal?.throwIfAborted();
        try {
          const response = await unless(ends, left(), this.fetch(path, ends.signal, sent));
          const value = await unless(ends, left(), read(response));
          if (!(value instanceof ShardwiseError)) return value;
          error = value;
        } catch (broken) {
          signal?.throwIfAborted();
          if (!ends.signal.aborted) error = this.error(broken);
        }
        if (!isSafe || !error.passes) break;
      }
    } finally {
      end();
    }
    throw error;
  }

  fetch(path: string, signal: AbortSignal, { method, body, headers }: Sent): Promise<Response> {
    const how = method ?? (body === undefined ? "GET" : "POST");
    const sent = body === undefined ? {} : { body: body as BodyInit };
    const type = body === undefined ? {} : { "content-type": "application/json" };
    const all = { ...type, ...this.#headers, ...headers };
    return fetch(this.base + path, { method: how, ...sent, headers: all, signal, cache: "no-store", credentials: "omit", redirect: "error" });
  }

  error(broken: unknown): ShardwiseError {
    if (broken instanceof ShardwiseError) return broken;
    if (broken instanceof SyntaxError) return this.strange();
    const { why, code } = causeOf(broken);
    return new Unavailable(`${this.base} does not answer: ${why}${code === "ECONNREFUSED" ? "; start `shardwise serve`, or correct the URL" : ""}`, { cause: broken });
  }

  strange(): ShardwiseError { return new ShardwiseError(`${this.base} answers something else: is a shardwise sidecar there?`); }
}

/** What a failed `fetch` says of its cause. In a browser there is no code. */
function causeOf(broken: unknown): { why: unknown; code: unknown } {
  const why = broken instanceof Error && broken.cause !== undefined ? broken.cause : broken;
  return { why, code: typeof why === "object" && why !== null && "code" in why ? why.code : undefined };
}

/** Whether nothing was sent, or not all of it. */
export function isUnsent(broken: unknown): boolean {
  const { code } = causeOf(broken);
  // The last is what Node 18 says after 421, when it sends the request again by itself, without its body: the sidecar brings nothing incomplete.
  return ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT", "UND_ERR_REQ_CONTENT_LENGTH_MISMATCH"].some((each) => each === code);
}

/** The header that names a lease. */
export function under(lease: string | undefined): Record<string, string> {
  return lease === undefined ? {} : { "shardwise-lease": lease };
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
  throw new ShardwiseError("the URL of the sidecar must be like http://127.0.0.1:8087: http or https, a host, and no name, query or fragment");
}

/** A name as one part of a URL. */
export function encoded(text: string, instead = ""): string {
  // URLs are tidied up before they are sent, whatever the dots are written as.
  if (text === "." || text === "..") throw new ShardwiseError(`no URL can have "${text}" as a part${instead}`);
  return encodeURIComponent(text);
}
