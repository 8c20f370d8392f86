/**
 * A worker that does what its sidecar says is its own: `node worker.js POLICY URL KEYS_FILE`.
 *
 * It follows the rebalances. With each it asks anew what is its own, begins what is new and stops what has gone; and before each piece of work it asks
 * whether the key is still its own. While the sidecar cannot be heard it does nothing. Work that fails is told, and begun again with the next event,
 * as is work that has come to its end. Replace `work` by yours. It prints what it does as JSON lines.
 */

import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

import { Client, ShardwiseError } from "../src/index.js";

const PIECE_MS = 200;

/** Works on one key until the signal aborts. */
export type Work = (client: Client, key: string, stop: AbortSignal) => Promise<void>;

function tell(did: string, more: Record<string, string>): void {
  process.stdout.write(`${JSON.stringify({ did, ...more })}\n`);
}

/** Works on one key for as long as it is ours: piece by piece, and never a piece without asking. */
async function work(client: Client, key: string, stop: AbortSignal): Promise<void> {
  while (!stop.aborted) {
    // A sidecar that does not answer means no.
    const mine = await client.owner(key, { signal: stop }).then((owner) => owner.mine, () => false);
    if (mine && !stop.aborted) tell("worked", { key });
    await sleep(PIECE_MS, undefined, { signal: stop }).catch(() => undefined);
  }
}

/** The keys that are worked on. A task that is over is dropped, and told if it failed. */
class Tasks {
  readonly #running = new Map<string, { stop: AbortController; over: Promise<void> }>();
  readonly #client: Client;
  readonly #work: Work;

  constructor(client: Client, work: Work) {
    this.#client = client;
    this.#work = work;
  }

  /** Ends the work on all other keys and waits for it; then begins what is not begun yet. */
  async only(keys: ReadonlySet<string>): Promise<void> {
    const ending = [...this.#running].filter(([key]) => !keys.has(key)).map(([, task]) => task);
    for (const task of ending) task.stop.abort();
    await Promise.all(ending.map((task) => task.over));
    for (const key of keys) {
      if (this.#running.has(key)) continue;
      const stop = new AbortController();
      tell("began", { key });
      this.#running.set(key, { stop, over: Promise.resolve().then(() => this.#run(key, stop.signal)) });
    }
  }

  async #run(key: string, stop: AbortSignal): Promise<void> {
    try {
      await this.#work(this.#client, key, stop);
    } catch (error) {
      const isStopped = stop.aborted && error instanceof Error && error.name === "AbortError";
      if (!isStopped) tell("failed", { key, why: String(error) });
    }
    this.#running.delete(key);
    tell("ended", { key });
  }
}

/** Which of the keys are ours now, as soon as that can be told; nothing is worked on until then. */
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
      if (event.kind === "lost") tell("lost", { why: event.error.message });
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

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) await main();
