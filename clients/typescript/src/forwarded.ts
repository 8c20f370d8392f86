/** A request that the sidecar forwards to this worker, and its answer. */

import type { Fence } from "./guard.js";

/**
 * A request from a member. `key` and `fence` are those of a request to the owner of a key, `fence` under exclusive ownership alone; `name` and `epoch`
 * those of a request to the holder of a name. `idempotencyKey`: the caller may send it again, so the handler recognises by it what it has done before.
 * `signal` aborts when the sidecar does not wait any more, or has its answer.
 */
export interface ForwardedRequest {
  method: string; path: string; query: URLSearchParams; contentType: string; body: Uint8Array; key: string | undefined; fence: Fence | undefined;
  name: string | undefined; epoch: number | undefined; idempotencyKey: string | undefined; signal: AbortSignal; text(): string; json(): unknown;
}

/** An answer that is not JSON with the status 200. */
export class Reply {
  constructor(readonly body: string | Uint8Array, readonly status = 200, readonly contentType = typeof body === "string" ? "text/plain; charset=utf-8" : "application/octet-stream") {}
}

/** No handler has seen the request, so the sidecar may bring it to another member. */
export class Refusal extends Reply {
  constructor(status: number, title: string, detail: string) { super(problemText(status, title, detail), status, PROBLEM_JSON); }
}

/** Returns a `Reply`, or a value that is sent as JSON. */
export type RequestHandler = (request: ForwardedRequest) => unknown;

const PROBLEM_JSON = "application/problem+json";

export function problem(status: number, title: string, detail: string): Reply {
  return new Reply(problemText(status, title, detail), status, PROBLEM_JSON);
}

function problemText(status: number, title: string, detail: string): string {
  return JSON.stringify({ type: "urn:shardwise:problem:worker", title, status, detail });
}
