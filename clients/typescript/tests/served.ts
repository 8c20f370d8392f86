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
    await use((path, to, sent) => fetch(base + path, { ...sent, headers: { ...sent?.headers, ...(to === undefined ? {} : { "shardwise-to": to }) } }));
  } finally {
    server.closeAllConnections();
    server.close();
  }
}
