/** A server with a worker's handlers, and how to send to it as a sidecar does. */

import http from "node:http";
import type net from "node:net";

import type { RequestHandlers } from "../src/index.js";

export type SendTo = (path: string, to?: string, sent?: RequestInit) => Promise<Response>;

export async function served(handlers: RequestHandlers, use: (send: SendTo) => Promise<void>): Promise<void> {
  const server = http.createServer(handlers.listener);
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  const base = `http://127.0.0.1:${(server.address() as net.AddressInfo).port}`;
  try {
    await use((path, to, sent) => sends(base + path, { ...sent, headers: { ...sent?.headers, ...(to === undefined ? {} : { "shardwise-to": to }) } }));
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** Without `fetch`, which sends a request again by itself if the answer is 421, and in Node 18 without its body. */
function sends(url: string, { method, body, headers, signal }: RequestInit): Promise<Response> {
  return new Promise((answered, failed) => {
    const options = { method: method ?? "GET", headers: headers as http.OutgoingHttpHeaders, ...(signal ? { signal } : {}) };
    const request = http.request(url, options, (response) => {
      const pieces: Buffer[] = [];
      const whole = () => (pieces.length > 0 ? Buffer.concat(pieces) : null);
      const head = () => ({ status: response.statusCode ?? 0, headers: response.headers as Record<string, string> });
      response.on("data", (piece: Buffer) => pieces.push(piece)).on("end", () => answered(new Response(whole(), head()))).on("error", failed);
    });
    request.on("error", failed).end(body as string | Uint8Array | undefined);
  });
}
