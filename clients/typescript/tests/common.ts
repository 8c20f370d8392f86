/**
 * What several tests need: two sidecars that run, and ways to them that fail.
 *
 * SHARDWISE_ONE and SHARDWISE_OTHER are their addresses, SHARDWISE_TOKEN is the token of all; the policy is `workers`. Two more are of another group
 * with exclusive ownership: SHARDWISE_LEASED_ONE and SHARDWISE_LEASED_OTHER, which forward requests to the ports SHARDWISE_FORWARD_ONE and
 * SHARDWISE_FORWARD_OTHER.
 */

import assert from "node:assert/strict";
import http from "node:http";
import net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, type Options } from "../src/index.js";

export const [ONE, OTHER, TOKEN] = ["ONE", "OTHER", "TOKEN"].map((name) => process.env[`SHARDWISE_${name}`] ?? "") as [string, string, string];
const leased = (name: string) => ({ url: process.env[`SHARDWISE_LEASED_${name}`] ?? "", port: Number(process.env[`SHARDWISE_FORWARD_${name}`]) });
export const LEASED = [leased("ONE"), leased("OTHER")] as const;
export const PATIENCE_MS = 60_000;

export function client(url: string, options: Options = {}, policy = "workers"): Client {
  return new Client(policy, { url, token: TOKEN, timeoutMs: PATIENCE_MS, ...options });
}

export async function eventually(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  const until = Date.now() + PATIENCE_MS;
  while (!(await condition())) {
    assert.ok(Date.now() < until, `waited ${PATIENCE_MS} ms in vain: ${what}`);
    await sleep(20);
  }
}

/** A way to a sidecar that can be cut, refuse, keep silent, or swallow answers. */
export class Proxy {
  requests = 0;
  refusals = 0;
  isCut = false;
  isMute = false;
  swallows = false;
  target = ONE;
  readonly #sockets = new Set<net.Socket>();
  readonly #server = net.createServer((socket) => this.#serve(socket));

  static async with(use: (proxy: Proxy, url: string) => Promise<void>): Promise<void> {
    const proxy = new Proxy();
    await new Promise<void>((listening) => proxy.#server.listen(0, "127.0.0.1", listening));
    try {
      await use(proxy, `http://127.0.0.1:${(proxy.#server.address() as net.AddressInfo).port}`);
    } finally {
      proxy.cut();
      proxy.#server.close();
    }
  }

  cut(): void {
    this.isCut = true;
    for (const socket of this.#sockets) socket.destroy();
  }

  #serve(socket: net.Socket): void {
    this.#sockets.add(socket);
    socket.on("error", () => undefined);
    if (this.isCut) {
      socket.destroy();
      return;
    }
    this.requests += 1;
    if (this.isMute) return;
    if (this.refusals > 0) {
      this.refusals -= 1;
      socket.once("data", () => socket.end("HTTP/1.1 503 Not Now\r\nretry-after: 0\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"));
      return;
    }
    const target = new URL(this.target);
    const back = net.connect(Number(target.port), target.hostname);
    this.#sockets.add(back);
    back.on("error", () => undefined);
    socket.pipe(back);
    if (this.swallows) back.once("data", () => { socket.destroy(); back.destroy(); });
    else back.on("data", (piece) => { if (!this.isMute) socket.write(piece); }).on("end", () => socket.end());
    socket.on("close", () => back.destroy());
    back.on("close", () => socket.destroy());
  }
}

/**
 * Answers lists in these states one after the other, the last one for ever, each after so many ms, as if every key were owned. A sidecar that runs
 * cannot be made to change its state within one list.
 */
export class Scripted {
  asked = 0;

  static async with(states: [string, ...string[]], ms: number, use: (scripted: Scripted, url: string) => Promise<void>): Promise<void> {
    const scripted = new Scripted();
    const server = http.createServer((request, response) => {
      const body: Buffer[] = [];
      request.on("data", (piece: Buffer) => body.push(piece));
      request.on("end", () => {
        const state = states[Math.min(scripted.asked++, states.length - 1)] ?? "";
        setTimeout(() => response.writeHead(200, { "content-type": "application/json", "shardwise-state": state }).end(Buffer.concat(body)), ms);
      });
    });
    await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
    try {
      await use(scripted, `http://127.0.0.1:${(server.address() as net.AddressInfo).port}`);
    } finally {
      server.close();
    }
  }
}
