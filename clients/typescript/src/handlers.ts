/** Answers requests that the sidecar forwards to this worker (`serve --forward-to`), with the HTTP server of Node. */

import { ShardwiseError } from "./errors.js";
import { isPath } from "./requests.js";

/** The most bytes of a body, in both directions. */
const BODY_BYTES_MAX = 1024 * 1024;
const AT_ONCE_MOST = 64;
/** The sidecar waits so long for an answer. */
const ANSWER_WITHIN_MS = 10_000;
/** The sidecar says here whether a request is for this one instance or for any. */
const TO = "shardwise-to";

/** A request from a member. `signal` aborts when the sidecar does not wait any more, or has its answer. */
export interface ForwardedRequest { method: string; path: string; query: URLSearchParams; contentType: string; body: Uint8Array; signal: AbortSignal; text(): string; json(): unknown }

/** An answer that is not JSON with the status 200. */
export class Reply {
  constructor(readonly body: string | Uint8Array, readonly status = 200, readonly contentType = typeof body === "string" ? "text/plain; charset=utf-8" : "application/octet-stream") {}
}

/** Returns a `Reply`, or a value that is sent as JSON. */
export type RequestHandler = (request: ForwardedRequest) => unknown;

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
  readonly #ofInstance = new Map<string, RequestHandler>();
  readonly #ofAny = new Map<string, RequestHandler>();
  #running = 0;

  constructor({ prefix = "", onError = console.error }: { prefix?: string; onError?: (error: unknown) => void } = {}) {
    [this.#prefix, this.#onError] = [`${prefix.replace(/\/+$/, "")}/`, onError];
  }

  /** Answers requests to this instance at that path, and none to any. */
  onRequest(path: string, handler: RequestHandler): this { return this.#register(this.#ofInstance, path, handler); }
  /** Answers requests to any instance at that path, and none to this one. */
  onAny(path: string, handler: RequestHandler): this { return this.#register(this.#ofAny, path, handler); }

  readonly listener = (request: IncomingRequest, response: OutgoingResponse): void => {
    const leaving = new AbortController();
    response.on("close", () => leaving.abort());
    this.#answer(request, leaving).catch((error: unknown) => this.#failed(error)).then(({ status, contentType, body }) => {
      response.writeHead(status, { "content-type": contentType, "cache-control": "no-store" });
      response.end(body);
    }).catch(this.#onError);
  };

  #register(handlers: Map<string, RequestHandler>, path: string, handler: RequestHandler): this {
    if (!isPath(path)) throw new ShardwiseError(`"${path}" is no path: it has parts of letters, digits and -._~ with single slashes between them`);
    if (path === "shardwise" || path.startsWith("shardwise/")) throw new ShardwiseError(`"${path}" is reserved: the sidecar answers it`);
    handlers.set(path, handler);
    return this;
  }

  async #answer(incoming: IncomingRequest, leaving: AbortController): Promise<Reply> {
    const { method = "", headers } = incoming;
    const url = new URL(incoming.url ?? "/", "http://worker");
    // A web page cannot set the header, so it cannot reach the handlers either.
    const to = headers[TO];
    if (to !== "instance" && to !== "any") {
      return problem(400, "not a forwarded request", `the header ${TO} is missing: only requests that a sidecar forwards are answered`);
    }
    const path = url.pathname.startsWith(this.#prefix) ? url.pathname.slice(this.#prefix.length) : "";
    const handler = (to === "any" ? this.#ofAny : this.#ofInstance).get(path);
    if (handler === undefined) {
      const meant = to === "any" ? "any instance" : "one instance";
      return problem(404, "no such path", `this worker has no handler at "${path}" for requests to ${meant}`);
    }
    if (method !== "GET" && method !== "POST") return problem(405, "not allowed", "send GET or POST");
    if (this.#running >= AT_ONCE_MOST) return problem(503, "too many requests", `at most ${AT_ONCE_MOST} requests are answered at a time`);
    // Until the handler has ended, also if its answer comes too late.
    this.#running += 1;
    const ended = () => { this.#running -= 1; };
    const answering = whole(incoming).then((body) => {
      if (body === undefined) return problem(413, "too large", `a body has at most ${BODY_BYTES_MAX} bytes`);
      const text = () => new TextDecoder().decode(body);
      const contentType = [headers["content-type"] ?? ""].flat()[0] ?? "";
      const { signal } = leaving;
      return replied(handler, { method, path, query: url.searchParams, contentType, body, signal, text, json: (): unknown => JSON.parse(text()) });
    }).catch((error: unknown) => this.#failed(error)).finally(ended);
    return limited(answering, leaving);
  }

  #failed(error: unknown): Reply {
    this.#onError(error);
    return problem(500, "the handler has failed", "its error is in the worker's log");
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

function problem(status: number, title: string, detail: string): Reply {
  return new Reply(JSON.stringify({ type: "urn:shardwise:problem:worker", title, status, detail }), status, "application/problem+json");
}
