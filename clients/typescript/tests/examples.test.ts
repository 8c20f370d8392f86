/** The examples of the pages, as written, each in a process that ends with SIGTERM, next to a sidecar in memory. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";

import { eventually } from "./common.js";
import { FakeSidecar } from "./fake.js";
import { key } from "./leased.js";

/** The folder of the client in the repository. */
const FOLDER = path.join(path.dirname(process.env["SHARDWISE_CLIENT"] ?? ""), "..");
/** What an example presupposes: its client asks the sidecar in memory, and its work says which key it works on. */
const BEFORE = `
import { readFile } from "node:fs/promises";
import { Client as Base } from ${JSON.stringify(new URL("../src/index.js", import.meta.url).href)};
class Client extends Base {
  constructor(_policy, options = {}) { super("workers", { ...options, url: process.argv[2] }); }
}
const [client, tenants] = [new Client("workers"), process.argv.slice(3)];
async function step(tenant, fence) {
  console.log(JSON.stringify([tenant, fence]));
  await new Promise((done) => setTimeout(done, 20));
}
`;

/** The first example below a heading, without its imports. */
async function example(page: string, heading: string): Promise<string> {
  const text = await readFile(path.join(FOLDER, page), "utf8");
  const [, found] = /```ts\n(.*?)```/s.exec(text.slice(text.indexOf(`\n${heading}\n`))) ?? [];
  assert.ok(found !== undefined, `${heading} in ${page} has an example`);
  return found.replace(/^import .*\n/gm, "");
}

/** As JavaScript, by the compiler. */
function compiled(text: string): string {
  const compiler = path.join(path.dirname(process.env["SHARDWISE_TSC"] ?? ""), "../lib/typescript.js");
  const { transpileModule, ScriptTarget, ModuleKind } = createRequire(import.meta.url)(compiler) as {
    transpileModule(text: string, options: object): { outputText: string }; ScriptTarget: { ES2022: number }; ModuleKind: { ESNext: number };
  };
  return transpileModule(text, { compilerOptions: { target: ScriptTarget.ES2022, module: ModuleKind.ESNext } }).outputText;
}

async function runs(page: string, heading: string): Promise<void> {
  const folder = await mkdtemp(path.join(tmpdir(), "shardwise-example-"));
  try {
    const file = path.join(folder, "example.mjs");
    await writeFile(path.join(folder, "worker.token"), "secret-of-the-test\n");
    await writeFile(file, compiled(`${BEFORE}{\n${await example(page, heading)}}\n`));
    await FakeSidecar.with(async (sidecar, url) => {
      sidecar.grant(5, 3, 4);
      const child = spawn(process.execPath, [file, url, key(3), key(4), key(5)], { cwd: folder, stdio: ["ignore", "pipe", "inherit"] });
      let said = "";
      child.stdout.setEncoding("utf8").on("data", (piece: string) => { said += piece; });
      const over = new Promise<number | null>((ended) => child.once("close", ended));
      try {
        const times = (slot: number) => said.split("\n").filter((line) => line === JSON.stringify([key(slot), { slot, epoch: 5 }])).length;
        await eventually("it works on the keys that are held", () => child.exitCode !== null || (times(3) > 2 && times(4) > 2));
        assert.equal(child.exitCode, null, "it goes on");
        child.kill("SIGTERM");
        assert.equal(await over, 0);
        assert.ok(!said.includes(key(5)) && sidecar.lease === undefined, "the lease is closed");
      } finally {
        child.kill("SIGKILL");
      }
    });
  } finally {
    await rm(folder, { recursive: true });
  }
}

test("the example of the how-to runs", () => runs("../../docs/howto/other-languages.md", "## Node"));

test("the example of the README runs", () => runs("README.md", "## Exclusive ownership: the lease"));
