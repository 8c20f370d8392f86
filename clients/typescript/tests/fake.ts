/** A sidecar that grants what the test says, and fails where a real one does not: late, mute, forgetful. It keeps one lease on one policy. */

import http from "node:http";
import type net from "node:net";

import { slotOfKey } from "../src/hash.js";
import type { Grant } from "../src/index.js";

interface Request { method: string; path: string; lease: string; body: Record<string, unknown> }
type Answer = { status: number; body: unknown };

const problem = (status: number, kind: string, detail = "because"): Answer => ({ status, body: { type: `urn:shardwise:problem:${kind}`, title: kind, status, detail } });

export class FakeSidecar {
  readonly asked: Request[] = [];
  readonly grants = new Map<number, Grant>();
  /** The numbers that were finished, in their order. */
  readonly finished: number[] = [];
  version = 1;
  lease: { id: string; ttlMs: number } | undefined;
  /** Answers instead, if it returns something; "mute" answers never. */
  instead: (request: Request) => Answer | "mute" | undefined = () => undefined;
  /** Answers to renewals come so late. */
  lateMs = 0;
  #leases = 0;
  #numbers = 0;
  readonly #streams = new Set<http.ServerResponse>();
  readonly #server = http.createServer((request, response) => void this.#serve(request, response));

  static async with(use: (sidecar: FakeSidecar, url: string) => Promise<void>): Promise<void> {
    const sidecar = new FakeSidecar();
    await new Promise<void>((listening) => sidecar.#server.listen(0, "127.0.0.1", listening));
    const alive = setInterval(() => sidecar.#send("alive", []), 100);
    try {
      await use(sidecar, `http://127.0.0.1:${(sidecar.#server.address() as net.AddressInfo).port}`);
    } finally {
      clearInterval(alive);
      sidecar.#server.closeAllConnections();
      sidecar.#server.close();
    }
  }

  /** Grants slots or names; returns the numbers. */
  grant(epoch: number, ...resources: (number | string)[]): number[] {
    const grants = resources.map((resource) => {
      const [slot, name] = typeof resource === "number" ? [resource, null] : [null, resource];
      return { grant: ++this.#numbers, slot, name, epoch, period: null, finish: false };
    });
    this.add(...grants);
    return grants.map(({ grant }) => grant);
  }
  fire(name: string, number: number): void {
    this.add({ grant: ++this.#numbers, slot: null, name, epoch: 5, period: { due_ms: number * 1_000, number }, finish: false });
  }
  add(...grants: Grant[]): void {
    for (const grant of grants) this.grants.set(grant.grant, grant);
    this.#change("granted", grants);
  }
  /** Asks to finish. */
  ask(...numbers: number[]): void {
    const grants = numbers.map((number) => ({ ...(this.grants.get(number) as Grant), finish: true }));
    for (const grant of grants) this.grants.set(grant.grant, grant);
    this.#change("finish", grants);
  }
  lose(...numbers: number[]): void {
    const grants = numbers.map((number) => this.grants.get(number) as Grant);
    for (const number of numbers) this.grants.delete(number);
    this.#change("lost", grants);
  }
  /** The lease ends, and the stream says so if `isTold`. */
  end(isTold: boolean): void {
    this.lease = undefined;
    this.grants.clear();
    if (!isTold) return this.breaks();
    this.#change("ended", [], { why: "the test says so" });
    for (const stream of this.#streams) stream.end();
    this.#streams.clear();
  }
  /** Breaks the streams. */
  breaks(): void {
    for (const stream of this.#streams) stream.destroy();
    this.#streams.clear();
  }
  count(method: string, path: RegExp): number {
    return this.asked.filter((request) => request.method === method && path.test(request.path)).length;
  }

  #change(type: string, grants: Grant[], more = {}): void {
    this.version += 1;
    this.#send(type, grants, more);
  }
  #send(type: string, grants: Grant[], more = {}, streams: Iterable<http.ServerResponse> = this.#streams): void {
    const valid_ms = this.lease?.ttlMs ?? 0;
    for (const stream of streams) stream.write(`${JSON.stringify({ type, version: this.version, valid_ms, slots: 16, grants, ...more })}\n`);
  }

  async #serve(message: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const pieces: Buffer[] = [];
    for await (const piece of message) pieces.push(piece as Buffer);
    const text = Buffer.concat(pieces).toString();
    const [path, lease] = [(message.url ?? "").replace("/v1/policies/workers/", ""), String(message.headers["shardwise-lease"] ?? "")];
    const request: Request = { method: message.method ?? "", path, lease, body: text === "" ? {} : JSON.parse(text) as Record<string, unknown> };
    this.asked.push(request);
    const answer = this.instead(request) ?? this.#answer(request, response);
    if (answer === "mute" || answer === undefined) return;
    const headers = { "content-type": answer.status < 400 ? "application/json" : "application/problem+json", "shardwise-state": "active" };
    const send = () => response.writeHead(answer.status, headers).end(JSON.stringify(answer.body));
    if (request.method === "PUT" && path.startsWith("leases/") && this.lateMs > 0) setTimeout(send, this.lateMs);
    else send();
  }

  #answer({ method, path, lease, body }: Request, response: http.ServerResponse): Answer | undefined {
    if (method === "POST" && path === "leases") {
      if (this.lease !== undefined) return problem(409, "lease-taken", "another lease is live");
      this.version += 1;
      this.lease = { id: `lease-${++this.#leases}`, ttlMs: Number(body["ttl_ms"]) };
      return { status: 201, body: this.#shown(this.lease) };
    }
    const id = path.startsWith("leases/") ? path.slice(7) : lease;
    if (this.lease === undefined || id !== this.lease.id) return problem(410, "lease-ended", "it was not renewed in time");
    if (method === "PUT" && path === `leases/${id}`) return { status: 200, body: this.#shown(this.lease) };
    if (method === "DELETE" && path === `leases/${id}`) {
      this.end(false);
      return { status: 200, body: {} };
    }
    if (method === "GET" && path === "grants") {
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      this.#streams.add(response);
      response.on("close", () => this.#streams.delete(response));
      this.#send("all", [...this.grants.values()], {}, [response]);
      return undefined;
    }
    if (method === "POST" && path === "grants/finished") {
      const numbers = (body["grants"] as number[]).filter((number) => this.grants.delete(number));
      this.finished.push(...(body["grants"] as number[]));
      this.version += 1;
      return { status: 200, body: { finished: numbers.length } };
    }
    if (method === "POST" && path === "enter") return { status: 200, body: this.#held(body["keys"] as string[]) };
    if (method === "POST" && path === "owned") return { status: 200, body: this.#held(body as unknown as string[]).map(({ key }) => key) };
    if (method === "PUT" && path === "names") return { status: 200, body: { names: 1 } };
    return problem(404, "not-found");
  }

  #held(keys: string[]): { key: string; slot: number | null; epoch: number; valid_ms: number }[] {
    const [open, valid_ms] = [[...this.grants.values()].filter(({ finish }) => !finish), this.lease?.ttlMs ?? 0];
    return keys.flatMap((key) => open.filter(({ slot }) => slot === slotOfKey(key, 16)).map(({ slot, epoch }) => ({ key, slot, epoch, valid_ms })));
  }

  #shown({ id, ttlMs }: { id: string; ttlMs: number }): unknown {
    return { id, ttl_ms: ttlMs, valid_ms: ttlMs, version: this.version };
  }
}

export { problem };
