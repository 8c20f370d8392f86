/**
 * Monitors that evaluate alert rules, each next to its sidecar, under exclusive ownership:
 *
 *     shardwise serve --policy alerts --forward-to http://127.0.0.1:8000 …
 *     node alert_monitor.js monitor POLICY URL RULES_FILE PORT    evaluates the rules that it holds, and answers requests at the port
 *     node alert_monitor.js status POLICY URL [ID]                what one monitor does, or what all do
 *     node alert_monitor.js mute POLICY URL RULE                  a command to the monitor that evaluates the rule
 *
 * Each rule is evaluated by one monitor, and moves when the fleet changes. `GET instances/{id}/status` is answered with `instance_id`, `rules`, `muted`
 * and `evaluated`; `POST instances/{id}/mute` with `{"rule": "cpu-high"}` is a command to that one monitor, which answers 404 if the rule is not its own;
 * `GET any/rules` is answered by any, with all rules. SHARDWISE_TOKEN is the token of the sidecar. It prints what it does as JSON lines.
 */

import { readFile } from "node:fs/promises";
import http from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

import { Client, type Guard, Reply, RequestHandlers } from "../src/index.js";

const EVERY_MS = 200;

export interface Status { instance_id: string; rules: string[]; muted: string[]; evaluated: number }

function tell(did: string, more: Record<string, unknown>): void {
  process.stdout.write(`${JSON.stringify({ did, ...more })}\n`);
}

/** The rules that one monitor evaluates. */
class Monitor {
  readonly #instance: string;
  readonly #held = new Set<string>();
  readonly #muted = new Set<string>();
  #evaluated = 0;

  constructor(instance: string) { this.#instance = instance; }

  /** Evaluates a rule until it is handed over or lost. */
  async evaluate(rule: string, guard: Guard): Promise<void> {
    this.#held.add(rule);
    tell("began", { rule, ...guard.fence });
    try {
      // Another monitor may have the rule as soon as this one does not hold it: look before each piece of work.
      while (guard.isHeld && !guard.finish.aborted) {
        // A real monitor would query its metrics here, and write its alerts with the fence.
        if (!this.#muted.has(rule)) tell("evaluated", { rule, ...guard.fence });
        this.#evaluated += 1;
        await sleep(EVERY_MS, undefined, { signal: guard.finish }).catch(() => undefined);
      }
    } finally {
      this.#held.delete(rule);
      tell("ended", { rule, ...guard.fence });
    }
  }

  mute(rule: string): unknown {
    if (!this.#held.has(rule)) return new Reply(`${rule} is not evaluated here`, 404);
    this.#muted.add(rule);
    return { rule, muted: true };
  }

  status(): Status {
    return { instance_id: this.#instance, rules: [...this.#held].sort(), muted: [...this.#muted].sort(), evaluated: this.#evaluated };
  }
}

/** Evaluates the rules that this monitor holds, and answers requests at that port, until the signal aborts. */
export async function run(client: Client, rules: string[], port: number, leaving: AbortSignal): Promise<void> {
  const { instance_id } = await client.ownership({ signal: leaving });
  const monitor = new Monitor(instance_id);
  const handlers = new RequestHandlers();
  handlers.onRequest("status", () => monitor.status());
  handlers.onRequest("mute", (request) => monitor.mute((request.json() as { rule: string }).rule));
  handlers.onAny("rules", () => rules);
  const server = http.createServer(handlers.listener).listen(port, "127.0.0.1");
  try {
    await using lease = await client.lease({ signal: leaving });
    lease.onEnded((ended) => tell("ended", { lease: ended.message }));
    lease.onRebalance(({ gained, lost, keysOwned }) => tell("rebalanced", { gained: gained.length, lost: lost.length, rules: keysOwned }), rules);
    lease.runOwned(rules, (rule, guard) => monitor.evaluate(rule, guard));
    if (!leaving.aborted) await new Promise((left) => leaving.addEventListener("abort", left));
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** What all monitors do; one that does not answer is left out, and the reason is printed. */
export async function statusOfAll(client: Client): Promise<Status[]> {
  const { members } = await client.members();
  const asked = members.map(async ({ instance_id }) => {
    try {
      const answer = await client.instance(instance_id, "status");
      return [answer.json<Status>()];
    } catch (error) {
      tell("failed", { instance_id, why: String(error) });
      return [];
    }
  });
  return (await Promise.all(asked)).flat();
}

/** Sends the command to the monitor that holds the rule. */
export async function mute(client: Client, rule: string): Promise<unknown> {
  const { holder } = await client.owner(rule);
  if (holder === null) throw new Error(`no monitor holds ${rule} at the moment`);
  const answer = await client.instance(holder, "mute", { body: JSON.stringify({ rule }) });
  return answer.isOk ? answer.json() : answer.text();
}

async function main(): Promise<void> {
  const [what = "", policy = "", url = "", ...rest] = process.argv.slice(2);
  const token = process.env["SHARDWISE_TOKEN"];
  const client = new Client(policy, token === undefined ? { url } : { url, token });
  if (what === "monitor") {
    const rules = (await readFile(rest[0] ?? "", "utf8")).split("\n").filter((line) => line !== "");
    const leaving = new AbortController();
    for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, () => leaving.abort());
    await run(client, rules, Number(rest[1]), leaving.signal);
  } else if (what === "status") {
    const [id] = rest;
    tell("status", { monitors: id === undefined ? await statusOfAll(client) : [(await client.instance(id, "status")).json()] });
  } else if (what === "mute") {
    tell("muted", { answer: await mute(client, rest[0] ?? "") });
  } else {
    throw new Error("give monitor, status or mute; the head of this file has the arguments");
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) await main();
