/**
 * A worker that does what its sidecar says is its own: `node worker.js POLICY URL KEYS_FILE`.
 *
 * It follows the rebalances. With each it asks anew what is its own, begins what is new and stops what has gone; and before each piece of work it asks
 * whether the key is still its own. While the sidecar cannot be heard it does nothing. Replace `work` by yours. It prints what it does as JSON lines.
 */

import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, ShardwiseError } from "../src/index.js";

const PIECE_MS = 200;

interface Task { stop: AbortController; ended: Promise<void> }

function tell(did: string, key: string): void {
  process.stdout.write(`${JSON.stringify({ did, key })}\n`);
}

/** Works on one key for as long as it is ours: piece by piece, and never a piece without asking. */
async function work(client: Client, key: string, stop: AbortSignal): Promise<void> {
  tell("began", key);
  while (!stop.aborted) {
    // A sidecar that does not answer means no.
    const mine = await client.owner(key).then((owner) => owner.mine, () => false);
    if (mine && !stop.aborted) tell("worked", key);
    await sleep(PIECE_MS, undefined, { signal: stop }).catch(() => undefined);
  }
  tell("ended", key);
}

/** Ends the work on these keys and waits for it. */
async function end(tasks: Map<string, Task>, keys: string[]): Promise<void> {
  const ending = keys.flatMap((key) => tasks.get(key) ?? []);
  for (const task of ending) task.stop.abort();
  for (const key of keys) tasks.delete(key);
  await Promise.all(ending.map((task) => task.ended));
}

/** Which of the keys are ours now, as soon as that can be told; nothing is worked on until then. */
async function ask(client: Client, tasks: Map<string, Task>, keys: string[], signal: AbortSignal): Promise<Set<string>> {
  while (!signal.aborted) {
    try {
      return new Set((await client.owned(keys)).keys);
    } catch (error) {
      if (!(error instanceof ShardwiseError) || !error.passes) throw error;
      await end(tasks, [...tasks.keys()]);
      await sleep(PIECE_MS);
    }
  }
  return new Set();
}

async function follow(client: Client, keys: string[], signal: AbortSignal): Promise<void> {
  const tasks = new Map<string, Task>();
  try {
    for await (const event of client.rebalances({ signal })) {
      const mine = event.kind === "lost" ? new Set<string>() : await ask(client, tasks, keys, signal);
      await end(tasks, [...tasks.keys()].filter((key) => !mine.has(key)));
      for (const key of mine) {
        if (tasks.has(key)) continue;
        const stop = new AbortController();
        tasks.set(key, { stop, ended: work(client, key, stop.signal) });
      }
    }
  } finally {
    await end(tasks, [...tasks.keys()]);
  }
}

const [policy = "", url = "", file = ""] = process.argv.slice(2);
const keys = (await readFile(file, "utf8")).split("\n").filter((line) => line !== "");
const leaving = new AbortController();
process.once("SIGTERM", () => leaving.abort());
await follow(new Client(policy, { url }), keys, leaving.signal);
