/** Requests that the sidecar forwards to one member, or to any. */

import { Problem, ShardwiseError } from "./errors.js";
import type { Call, Http } from "./http.js";

/** A request to a member. With a body it is a POST unless `method` says otherwise; a text is JSON unless `contentType` says otherwise. */
export interface Send extends Call { method?: "GET" | "POST"; query?: Record<string, string>; body?: string | Uint8Array; contentType?: string }

/** A member's answer, whatever its status is. */
export class Answer {
  constructor(readonly instance: string, readonly status: number, readonly contentType: string, readonly body: Uint8Array) {}
  get isOk(): boolean { return this.status >= 200 && this.status < 300; }
  text(): string { return new TextDecoder().decode(this.body); }
  json<T>(): T { return JSON.parse(this.text()) as T; }
}

/** Parts of plain characters with single slashes between them, none of dots only. A URL is tidied up before it is sent, and would lose dots. */
const PATH = /^(?!\.+(\/|$))[A-Za-z0-9._~-]+(\/(?!\.+(\/|$))[A-Za-z0-9._~-]+)*$/;

export async function bring(http: Http, to: string, path: string, { method, query, body, contentType, signal }: Send): Promise<Answer> {
  if (!isPath(path)) throw new ShardwiseError(`"${path}" is not a path: it has parts of letters, digits and -._~ with single slashes between them`);
  const asked = query === undefined ? "" : `?${new URLSearchParams(query)}`;
  const type = typeof body === "string" ? "application/json" : "application/octet-stream";
  const how = method ?? (body === undefined ? "GET" : "POST");
  const sent = { signal, method: how, body, headers: body === undefined ? {} : { "content-type": contentType ?? type }, isSafe: how === "GET" };
  return http.send<Answer>(to + path + asked, sent, async (response) => {
    return (await answerOf(response)) ?? (response.ok ? http.strange() : Problem.of(response));
  });
}

/** The answer, if it is a member's. */
export async function answerOf(response: Response): Promise<Answer | undefined> {
  const instance = response.headers.get("shardwise-instance");
  if (instance === null) return undefined;
  const whole = new Uint8Array(await response.arrayBuffer());
  return new Answer(decodeURIComponent(instance), response.status, response.headers.get("content-type") ?? "", whole);
}

export function isPath(path: string): boolean {
  return path.length <= 256 && PATH.test(path);
}
