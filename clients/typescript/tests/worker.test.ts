/** The example worker, with work that ends. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { follow } from "../examples/worker.js";
import type { Client } from "../src/index.js";
import { ONE, Proxy, client, eventually } from "./common.js";

const KEYS = Array.from({ length: 40 }, (_, n) => `tenant-${n}`);
const fails = (key: string) => Number(key.replace(/.*-/, "")) % 2 === 0;

test("what fails is told and what is over is begun again", async () => {
  const told: { did: string; key: string; why: string }[] = [];
  const write = process.stdout.write.bind(process.stdout);
  mock.method(process.stdout, "write", (text: string) => (`${text}`.startsWith('{"did"') ? told.push(JSON.parse(text)) > 0 : write(text)));
  const keys = (did: string) => told.filter((each) => each.did === did).map((each) => each.key).sort();
  const work = async (_client: Client, key: string) => { if (fails(key)) throw new RangeError(`no ${key}`); };
  try {
    assert.ok((await client(ONE).owned(KEYS)).keys.some(fails));
    await Proxy.with(async (proxy, url) => {
      const leaving = new AbortController();
      const following = follow(client(url), KEYS, work, leaving.signal);
      const areOver = (times: number) => {
        const began = keys("began");
        return began.length > 0 && began.every((key) => began.filter((other) => other === key).length >= times) && `${began}` === `${keys("ended")}`;
      };
      await eventually("the work is over", () => areOver(1));
      const mine = [...new Set(keys("began"))];
      assert.deepEqual([...new Set(keys("failed"))], mine.filter(fails));
      assert.deepEqual(told.find((each) => each.did === "failed")?.why, `RangeError: no ${told.find((each) => each.did === "failed")?.key}`);
      proxy.cut();
      proxy.isCut = false;
      await eventually("it is begun again with the next event", () => areOver(2));
      assert.ok(told.some((each) => each.did === "lost" && each.why !== ""));
      leaving.abort();
      await following;
    });
  } finally {
    mock.restoreAll();
  }
});
