/** Answers requests that the sidecar forwards to this worker (`serve --forward-to`), with the HTTP server of Node. */

import { ShardwiseError } from "./errors.js";
import { type ForwardedRequest, Refusal, Reply, type RequestHandler, problem } from "./forwarded.js";
import type { Fence } from "./guard.js";
import type { Lease } from "./lease.js";
import { type HeldHandler, type OwnedHandler, ofHolder, underLease } from "./owned_requests.js";
import { isPath } from "./requests.js";

/** The most bytes of a body, in both directions. */
const BODY_BYTES_MAX = 1024 * 1024;
const AT_ONCE_MAX = 64;
/** A caller waits so long at most. The sidecar ends the connection when this one's does not wait any more. */
const ANSWER_WITHIN_MS = 300_000;
/** The sidecar says here whom a request is for. */
const TO = "shardwise-to";
const MEANT = { instance: "one instance", any: "any instance", owner: "the owner of a key", holder: "the holder of a name", session: "a session" };
/** In an answer: no handler has seen the request, so the sidecar may bring it to another member. */
const REFUSED = { "shardwise-peer": "refused", "retry-after": "1" };

type HeaderFields = Pick<ForwardedRequest, "contentType" | "key" | "fence" | "name" | "epoch" | "idempotencyKey">;

/** The parts of `IncomingMessage` and `ServerResponse` of node:http that are used here. */
export interface IncomingRequest extends AsyncIterable<Uint8Array> { method?: string | undefined; url?: string | undefined; headers: Record<string, string | string[] | undefined> }
export interface OutgoingResponse {
  writeHead(status: number, headers: Record<string, string>): unknown;
  end(body: string | Uint8Array): unknown;
  on(event: "close", call: () => void): unknown;
}

/**
 * Handlers of forwarded requests: `http.createServer(handlers.listener).listen(8000, "127.0.0.1")`. Without a handler the answer is 404, and the sidecar
 * answers `status` itself. `prefix` is the path of the address in `--forward-to`. Errors of handlers are answered with 500 and go to `onError`.
 */
export class RequestHandlers {
  readonly #prefix: string;
  readonly #onError: (error: unknown) => void;
  readonly #handlers = new Map<string, Map<string, RequestHandler>>(Object.keys(MEANT).map((to) => [to, new Map()]));
  #running = 0;

  constructor({ prefix = "", onError = console.error }: { prefix?: string; onError?: (error: unknown) => void } = {}) {
    [this.#prefix, this.#onError] = [`${prefix.replace(/\/+$/, "")}/`, onError];
  }

  /** Answers requests to this instance at that path, and none to any. */
  onRequest(path: string, handler: RequestHandler): this { return this.#register("instance", path, handler); }
  /** Answers requests to any instance at that path, and none to this one. */
  onAny(path: string, handler: RequestHandler): this { return this.#register("any", path, handler); }
  /**
   * Answers requests to keys at that path. With this worker's `lease` the handler works under a guard of the key, as in `lease.runExclusive`: the slot moves
   * once the handler has ended; if it is lost before, the caller learns that the outcome is unknown. If this worker does not hold the key, no handler runs,
   * and the sidecar brings the request to the member that does. A process that does not keep the lease leaves `lease` out, and has the fence alone.
   */
  onOwned(path: string, handler: OwnedHandler, { lease }: { lease?: Lease } = {}): this { return this.#register("owner", path, underLease(handler, lease)); }
  /** Answers requests to names that this worker holds, such as `singleton/leader`. The name moves once the handler has ended; if it is lost before, `signal` aborts. */
  onHeld(path: string, handler: HeldHandler): this { return this.#register("holder", path, ofHolder(handler)); }

  readonly listener = (request: IncomingRequest, response: OutgoingResponse): void => {
    const leaving = new AbortController();
    response.on("close", () => leaving.abort());
    this.#answer(request, leaving).catch((error: unknown) => this.#failed(error)).then((reply) => {
      const refused = reply instanceof Refusal ? REFUSED : {};
      response.writeHead(reply.status, { "content-type": reply.contentType, "cache-control": "no-store", ...refused });
      response.end(reply.body);
    }).catch(this.#onError);
  };

  #register(to: keyof typeof MEANT, path: string, handler: RequestHandler): this {
    if (!isPath(path)) throw new ShardwiseError(`"${path}" is not a path: it has parts of letters, digits and -._~ with single slashes between them`);
    if (path === "shardwise" || path.startsWith("shardwise/")) throw new ShardwiseError(`"${path}" is reserved: the sidecar answers it`);
    this.#handlers.get(to)?.set(path, handler);
    return this;
  }

  async #answer(incoming: IncomingRequest, leaving: AbortController): Promise<Reply> {
    const { method = "", headers } = incoming;
    const url = new URL(incoming.url ?? "/", "http://worker");
    // A web page cannot set the header, so it cannot reach the handlers either.
    const to = String(headers[TO]);
    const handlers = this.#handlers.get(to);
    if (handlers === undefined) {
      return problem(400, "not a forwarded request", `the header ${TO} is missing or unknown: only requests that a sidecar forwards are answered`);
    }
    const path = url.pathname.startsWith(this.#prefix) ? url.pathname.slice(this.#prefix.length) : "";
    const handler = handlers.get(path);
    if (handler === undefined) {
      return problem(404, "no such path", `this worker has no handler at "${path}" for requests to ${MEANT[to as keyof typeof MEANT]}`);
    }
    if (method !== "GET" && method !== "POST") return problem(405, "not allowed", "send GET or POST");
    if (this.#running >= AT_ONCE_MAX) return new Refusal(429, "too many requests", `at most ${AT_ONCE_MAX} requests are answered at a time`);
    const said = saidOf(headers);
    if (said === undefined) return problem(400, "not understood", "a header of the sidecar cannot be read");
    // Until the handler has ended, also if its answer comes too late.
    this.#running += 1;
    const ended = () => { this.#running -= 1; };
    const answering = whole(incoming).then((body) => {
      if (body === undefined) return problem(413, "too large", `a body has at most ${BODY_BYTES_MAX} bytes`);
      const text = () => new TextDecoder().decode(body);
      const { signal } = leaving;
      return replied(handler, { method, path, query: url.searchParams, body, signal, text, ...said, json: (): unknown => JSON.parse(text()) });
    }).catch((error: unknown) => this.#failed(error)).finally(ended);
    return limited(answering, leaving);
  }

  #failed(error: unknown): Reply {
    this.#onError(error);
    return problem(500, "the handler has failed", "its error is in the worker's log");
  }
}

/** What the headers say of a request; `undefined` if they cannot be read. */
function saidOf(headers: IncomingRequest["headers"]): HeaderFields | undefined {
  const text = (header: string) => [headers[header]].flat()[0];
  const number = (header: string) => { const digits = text(header); return digits === undefined ? undefined : Number(digits); };
  const decoded = (header: string) => { const encoded = text(header); return encoded === undefined ? undefined : decodeURIComponent(encoded); };
  const [slot, epoch] = [number("shardwise-slot"), number("shardwise-epoch")];
  if ([slot, epoch].some((each) => each !== undefined && !Number.isSafeInteger(each))) return undefined;
  const fence: Fence | undefined = slot === undefined || epoch === undefined ? undefined : { slot, epoch };
  const [contentType = "", idempotencyKey] = [text("content-type"), text("idempotency-key")];
  try {
    return { contentType, key: decoded("shardwise-key"), fence, name: decoded("shardwise-name"), epoch, idempotencyKey };
  } catch {
    return undefined;
  }
}

async function replied(handler: RequestHandler, request: ForwardedRequest): Promise<Reply> {
  const answer = await handler(request);
  return answer instanceof Reply ? answer : new Reply(JSON.stringify(answer ?? null), 200, "application/json");
}

/** The answer, if it comes in time and is not too large. */
async function limited(coming: Promise<Reply>, leaving: AbortController): Promise<Reply> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<Reply>((resolve) => {
    timer = setTimeout(() => {
      leaving.abort();
      resolve(problem(504, "too late", `a handler has ${ANSWER_WITHIN_MS} ms`));
    }, ANSWER_WITHIN_MS);
  });
  const reply = await Promise.race([coming, late]).finally(() => clearTimeout(timer));
  const bytes = typeof reply.body === "string" ? new TextEncoder().encode(reply.body).length : reply.body.length;
  return bytes <= BODY_BYTES_MAX ? reply : problem(500, "the answer is too large", `it has ${bytes} bytes; at most ${BODY_BYTES_MAX} are forwarded`);
}

/** The body; `undefined` if it is too large. */
async function whole(incoming: IncomingRequest): Promise<Uint8Array | undefined> {
  let [pieces, size] = [[] as Uint8Array[], 0];
  for await (const piece of incoming) {
    size += piece.length;
    if (size > BODY_BYTES_MAX) return undefined;
    pieces.push(piece);
  }
  const body = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    body.set(piece, at);
    at += piece.length;
  }
  return body;
}
