/**
 * A monitor that evaluates alert rules, one process next to each `shardwise serve`. Three levels:
 *
 * 1. Each rule is evaluated by exactly one monitor, which holds it: `node alert_monitor.js run POLICY URL PORT`
 * 2. A command goes to one monitor:   `node alert_monitor.js silence POLICY URL INSTANCE RULE`
 * 3. The status of one, or of all:    `node alert_monitor.js status POLICY URL [INSTANCE]`
 *    What any monitor can answer:     `node alert_monitor.js rules POLICY URL`
 *
 * URL is the sidecar's, which runs a policy with `ownership = "exclusive"` and `--forward-to http://127.0.0.1:PORT`. A command also needs the tokens of
 * the operator (`SHARDWISE_TOKEN` here) and of the members. Replace `evaluate` by yours. All output is JSON, one line each.
 */

import http from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, type Guard, Reply, RequestHandlers } from "../src/index.js";

const RULES = ["cpu", "memory", "disk", "latency", "errors", "queue", "certificates", "backups"].map((rule) => `${rule}-high`);
const ROUND_MS = 200;

/** A monitor's answer at `status`. */
interface Status { rules: string[]; silenced: string[]; evaluations: number }

function report(did: string, more: Record<string, unknown> = {}): void {
  process.stdout.write(`${JSON.stringify({ did, ...more })}\n`);
}

/** What one monitor is doing. */
class Monitor {
  readonly #evaluating = new Set<string>();
  readonly #silenced = new Set<string>();
  #evaluations = 0;

  /** Evaluates one rule again and again, until this monitor must hand it over or has lost it. */
  async evaluate(rule: string, guard: Guard): Promise<void> {
    this.#evaluating.add(rule);
    report("began", { rule, ...guard.fence });
    // It looks before each piece of work, because another monitor may evaluate the rule as soon as this one does not hold it.
    while (guard.isHeld && !guard.finish.aborted) {
      // Here a real one reads its metrics. What it writes carries the fence, so that a monitor that was paused overwrites nothing.
      this.#evaluations += 1;
      if (!this.#silenced.has(rule)) report("evaluated", { rule, epoch: guard.fence.epoch });
      await sleep(ROUND_MS, undefined, { signal: guard.finish }).catch(() => undefined);
    }
    this.#evaluating.delete(rule);
    report("ended", { rule });
  }

  handlers(): RequestHandlers {
    const status = (): Status => ({ rules: [...this.#evaluating].sort(), silenced: [...this.#silenced].sort(), evaluations: this.#evaluations });
    const handlers = new RequestHandlers();
    handlers.onRequest("status", status);
    handlers.onRequest("silence", (request) => {
      const wanted = request.method === "POST" ? (request.json() as { rule?: unknown } | null)?.rule : undefined;
      const rule = RULES.find((each) => each === wanted);
      if (rule === undefined) return new Reply(`POST {"rule": R}, where R is one of ${RULES.join(", ")}`, 400);
      this.#silenced.add(rule);
      report("silenced", { rule });
      return { silenced: status().silenced };
    });
    handlers.onAny("rules", () => ({ rules: RULES }));
    return handlers;
  }
}

/** Evaluates the rules that this monitor holds, and answers requests at that port, until the signal aborts. */
async function run(client: Client, port: number, leaving: AbortSignal): Promise<void> {
  const monitor = new Monitor();
  const server = http.createServer(monitor.handlers().listener);
  await new Promise<void>((listening, failed) => server.once("error", failed).listen(port, "127.0.0.1", listening));
  try {
    report("listening", { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` });
    await using lease = await client.lease({ ttlMs: 2_000, signal: leaving });
    lease.onRebalance(({ gained, lost, keysOwned }) => report("rebalanced", { gained: gained.length, lost: lost.length, rules: keysOwned }), RULES);
    lease.runOwned(RULES, (rule, guard) => monitor.evaluate(rule, guard));
    await new Promise<void>((left, failed) => {
      lease.onEnded((ended) => {
        report("lease_ended", { why: ended.message });
        // Such as a wrong token: another lease would be refused as well.
        if (ended.isFinal) failed(ended);
      });
      leaving.addEventListener("abort", () => left());
      if (leaving.aborted) left();
    });
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

async function silence(client: Client, instance = "", rule = ""): Promise<void> {
  const answer = await client.instance(instance, "silence", { body: JSON.stringify({ rule }) });
  report("answered", { by: instance, answer: answer.isOk ? answer.json() : answer.text() });
}

/** One that is dead and still has a record does not answer; the others do. */
async function status(client: Client, instance?: string): Promise<void> {
  const instances = instance === undefined ? (await client.members()).members.map(({ instance_id }) => instance_id) : [instance];
  for (const by of instances) {
    try {
      report("answered", { by, answer: (await client.instance(by, "status")).json() });
    } catch (error) {
      report("unanswered", { by, why: String(error) });
    }
  }
}

async function rules(client: Client): Promise<void> {
  const answer = await client.any("rules");
  report("answered", { by: answer.instance, answer: answer.json() });
}

async function main(): Promise<void> {
  const [verb = "", policy = "", url = "", ...rest] = process.argv.slice(2);
  const token = process.env["SHARDWISE_TOKEN"];
  const client = new Client(policy, token === undefined ? { url } : { url, token });
  const leaving = new AbortController();
  for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, () => leaving.abort());
  if (verb === "run") {
    await run(client, Number(rest[0]), leaving.signal).catch((error: unknown) => { if (!leaving.signal.aborted) throw error; });
    report("left");
  } else if (verb === "silence") await silence(client, ...rest);
  else if (verb === "status") await status(client, ...rest);
  else if (verb === "rules") await rules(client);
  else throw new Error("the verbs are run, silence, status and rules; the head of this file has their arguments");
}

await main();
