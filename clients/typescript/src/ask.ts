/** Requests to a destination, until their deadline, and what is known of those that have no answer. */

import { Busy, NotHandled, NotMine, Problem, ShardwiseError, Unknown, Unsent } from "./errors.js";
import { type Http, encoded, isUnsent } from "./http.js";
import { Answer, type Send, answerOf, isPath } from "./requests.js";
import { pause, sleep, tied, unless } from "./waits.js";

const [BODY_BYTES_MAX, WITHIN_MS_MAX, IDEMPOTENCY_KEY] = [1024 * 1024, 300_000, /^[!-~]{1,256}$/];
/** So much longer than the deadline the sidecar's own answer is waited for, and so long a cancellation may take. */
const [GRACE_MS, CANCEL_WITHIN_MS, CANCELS_MAX] = [1_000, 2_000, 64];
const PAUSE_MS = { first: 50, longest: 500 };
/** Kinds of problems that say without a header that no handler has seen the request. */
const NOTHING_DONE = ["not-handled", "unavailable", "unreachable-instance", "unreachable-worker"];

/** A destination: the owner of a key, the holder of a name such as `singleton/leader`, one member, the member that has opened a session, or any. */
export type To = { owner: string } | { holder: string } | { member: string } | { session: string } | "any";

/** `withinMs`: the deadline, 10 s if not given and 5 min at most. A GET and a request with an `idempotencyKey` may be handled more than once. */
export interface Ask extends Send { withinMs?: number; idempotencyKey?: string }

/** A request that is ready to be sent. */
interface Ready {
  method: string; path: string; body: string | Uint8Array | undefined; headers: Record<string, string>; withinMs: number; isRepeatable: boolean; signal: AbortSignal | undefined;
}

/** Checks a request: what the sidecar would refuse only after it has read a part of it may not look as if its outcome was unknown. */
export function ready(to: To, path: string, { method, query, body, contentType, signal, withinMs = 10_000, idempotencyKey }: Ask): Ready {
  const how = method ?? (body === undefined ? "GET" : "POST");
  if (!isPath(path)) throw new ShardwiseError(`"${path}" is not a path: it has parts of letters, digits and -._~ with single slashes between them`);
  if (how === "GET" && body !== undefined) throw new ShardwiseError("a GET has no body");
  if (!(withinMs >= 1 && withinMs <= WITHIN_MS_MAX)) throw new ShardwiseError(`withinMs is from 1 to ${WITHIN_MS_MAX}, not ${withinMs}`);
  const bytes = typeof body === "string" ? new TextEncoder().encode(body).length : body?.length ?? 0;
  if (bytes > BODY_BYTES_MAX) throw new ShardwiseError(`a body has at most ${BODY_BYTES_MAX} bytes, not ${bytes}`);
  const headers: Record<string, string> = {};
  if (body !== undefined) headers["content-type"] = contentType ?? (typeof body === "string" ? "application/json" : "application/octet-stream");
  if (idempotencyKey !== undefined) {
    if (!IDEMPOTENCY_KEY.test(idempotencyKey)) throw new ShardwiseError("an idempotency key is 1 to 256 characters of printable ASCII without spaces");
    headers["idempotency-key"] = idempotencyKey;
  }
  const asked = query === undefined ? "" : `?${new URLSearchParams(query)}`;
  return { method: how, path: `${routeOf(to)}${path}${asked}`, body, headers, withinMs, isRepeatable: how === "GET" || idempotencyKey !== undefined, signal };
}

/** The requests of one client to destinations. */
export class Asker {
  #cancels = 0;
  constructor(readonly http: Http) {}

  /** Sends it again while it was certainly not handled, or may be handled twice, until its deadline. */
  async ask(request: Ready): Promise<Answer> {
    const until = this.http.until(request.withinMs);
    let lastUnknown: Unknown | undefined;
    for (let tries = 0; ; tries++) {
      request.signal?.throwIfAborted();
      const outcome = await this.#attempt(request, until - performance.now());
      if (outcome instanceof Answer) return outcome;
      // It stays unknown, whatever comes later.
      if (outcome instanceof Unknown) lastUnknown = outcome;
      const goesOn = outcome instanceof NotHandled || (outcome instanceof Unknown && request.isRepeatable);
      const ms = Math.max(pause(tries, PAUSE_MS.first, PAUSE_MS.longest), outcome.retryAfterMs);
      if (!goesOn || performance.now() + ms >= until) throw lastUnknown ?? outcome;
      await sleep(ms, request.signal);
    }
  }

  async #attempt({ method, path, body, headers, signal }: Ready, leftMs: number): Promise<Answer | ShardwiseError> {
    const id = requestId();
    const [ends, end] = tied(signal);
    const sent = { method, body, headers: { ...headers, "shardwise-request-id": id, "shardwise-within-ms": `${Math.max(1, Math.round(leftMs))}` } };
    const outcome = async () => {
      const response = await this.http.fetch(path, ends.signal, sent);
      return (await answerOf(response)) ?? (response.ok ? this.http.strange() : outcomeOf(await Problem.of(response)));
    };
    try {
      return await unless(ends, leftMs + GRACE_MS, outcome());
    } catch (broken) {
      const { message } = this.http.error(broken);
      if (isUnsent(broken)) return new Unsent(message);
      this.#cancel(id);
      signal?.throwIfAborted();
      return new Unknown(message);
    } finally {
      end();
    }
  }

  /** Has the handler ended, in the background. The connection is closed too, so nothing is lost if this does not arrive. */
  #cancel(id: string): void {
    if (this.#cancels >= CANCELS_MAX) return;
    this.#cancels += 1;
    const ends = new AbortController();
    const cancelled = unless(ends, CANCEL_WITHIN_MS, this.http.fetch(`requests/${id}`, ends.signal, { method: "DELETE" }));
    cancelled.then((response) => response.body?.cancel()).catch(() => undefined).finally(() => { this.#cancels -= 1; });
  }
}

/** What a refusal says of a request. */
function outcomeOf(problem: Problem): ShardwiseError {
  const { status, kind, isRefused, message } = problem;
  if (isRefused || status === 429 || NOTHING_DONE.includes(kind)) {
    return status === 421 ? new NotMine(message, problem) : status === 429 ? new Busy(message, problem) : new Unsent(message, problem);
  }
  return status < 500 ? problem : new Unknown(message, problem);
}

/** The path of requests to a destination, before that of the handler. */
function routeOf(to: To): string {
  if (to === "any") return "any/";
  if ("owner" in to) return `keys/${encoded(to.owner)}/`;
  if ("holder" in to) return `names/${encoded(to.holder)}/`;
  return "member" in to ? `instances/${encoded(to.member)}/` : `sessions/${encoded(to.session)}/`;
}

/** 128 bits. They are no secret, and the older Node has no `crypto`. */
function requestId(): string {
  return Array.from({ length: 4 }, () => Math.floor(Math.random() * 2 ** 32).toString(16).padStart(8, "0")).join("");
}
