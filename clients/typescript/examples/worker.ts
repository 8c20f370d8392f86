/**
  * A worker that works on the keys that its sidecar says it owns: `node worker.js POLICY URL KEYS_FILE`.
 *
  * It follows the rebalances. After each it queries its keys again, starts the new ones and stops those that it has lost. Before each piece of work it
 * asks whether it still owns the key. While the sidecar does not answer it does nothing. Work that failed or ended is started again after the next
 * event; failures are printed. Replace `work` by yours. It prints what it does as JSON lines.
 */

import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { realpathSync } from "node:fs";
import { pathToFileURL } from "node:url";

import { Client, ShardwiseError } from "../src/index.js";

const PIECE_MS = 200;

/** Works on one key until the signal aborts. */
export type Work = (client: Client, key: string, stop: AbortSignal) => Promise<void>;

function report(did: string, more: Record<string, string>): void {
  process.stdout.write(`${JSON.stringify({ did, ...more })}\n`);
}

/** Works on one key while this worker owns it, and asks before each piece of work. */
async function work(client: Client, key: string, stop: AbortSignal): Promise<void> {
  while (!stop.aborted) {
    // A sidecar that does not answer means no.
    const mine = await client.owner(key, { signal: stop }).then((owner) => owner.mine, () => false);
    if (mine && !stop.aborted) report("worked", { key });
    await sleep(PIECE_MS, undefined, { signal: stop }).catch(() => undefined);
  }
}

/** The running task of each key. A task that has ended is removed; a failure is printed. */
class Tasks {
  readonly #running = new Map<string, { stop: AbortController; over: Promise<void> }>();
  readonly #client: Client;
  readonly #work: Work;

  constructor(client: Client, work: Work) {
    this.#client = client;
    this.#work = work;
  }

  /** Stops the work on all other keys and waits until it has ended; then starts what is not running. */
  async only(keys: ReadonlySet<string>): Promise<void> {
    const ending = [...this.#running].filter(([key]) => !keys.has(key)).map(([, task]) => task);
    for (const task of ending) task.stop.abort();
    await Promise.all(ending.map((task) => task.over));
    for (const key of keys) {
      if (this.#running.has(key)) continue;
      const stop = new AbortController();
      report("began", { key });
      this.#running.set(key, { stop, over: Promise.resolve().then(() => this.#run(key, stop.signal)) });
    }
  }

  async #run(key: string, stop: AbortSignal): Promise<void> {
    try {
      await this.#work(this.#client, key, stop);
    } catch (error) {
      const isStopped = stop.aborted && error instanceof Error && error.name === "AbortError";
      if (!isStopped) report("failed", { key, why: String(error) });
    }
    this.#running.delete(key);
    report("ended", { key });
  }
}

/** The keys that this worker owns now, as soon as the sidecar answers; no task runs until then. */
async function ask(client: Client, tasks: Tasks, keys: string[], signal: AbortSignal): Promise<Set<string>> {
  while (!signal.aborted) {
    try {
      return new Set((await client.owned(keys, { signal })).keys);
    } catch (error) {
      if (signal.aborted) break;
      if (!(error instanceof ShardwiseError) || !error.passes) throw error;
      await tasks.only(new Set());
      await sleep(PIECE_MS);
    }
  }
  return new Set();
}

/** Follows the rebalances until the signal aborts. */
export async function follow(client: Client, keys: string[], work: Work, signal: AbortSignal): Promise<void> {
  const tasks = new Tasks(client, work);
  try {
    for await (const event of client.rebalances({ signal })) {
      if (event.kind === "lost") report("lost", { why: event.error.message });
      await tasks.only(event.kind === "lost" ? new Set() : await ask(client, tasks, keys, signal));
    }
  } finally {
    await tasks.only(new Set());
  }
}

async function main(): Promise<void> {
  const [policy = "", url = "", file = ""] = process.argv.slice(2);
  const keys = (await readFile(file, "utf8")).split("\n").filter((line) => line !== "");
  const leaving = new AbortController();
  process.once("SIGTERM", () => leaving.abort());
  await follow(new Client(policy, { url }), keys, work, leaving.signal);
}

// Node resolves links in the address of a module.
if (import.meta.url === pathToFileURL(realpathSync(process.argv[1] ?? ".")).href) await main();
