/** The example on two sidecars that run: each rule is evaluated by one monitor, a command goes to one, and one and all say what they do. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { mute, run, statusOfAll } from "../examples/alert_monitor.js";
import type { Client } from "../src/index.js";
import { LEASED, client, eventually } from "./common.js";

const RULES = ["cpu", "memory", "disk", "latency", "errors", "queue", "certificates", "backups"].flatMap((rule) => [`${rule}-high`, `${rule}-low`]);

test("rules have one monitor each", async () => {
  const write = process.stdout.write.bind(process.stdout);
  mock.method(process.stdout, "write", (text: string) => (`${text}`.startsWith('{"did"') ? true : write(text)));
  const [one, other] = LEASED.map(({ url }) => client(url)) as [Client, Client];
  const leaving = [new AbortController(), new AbortController()] as const;
  const running = [run(one, RULES, LEASED[0].port, leaving[0].signal), run(other, RULES, LEASED[1].port, leaving[1].signal)] as const;
  try {
    const arePlaced = async (busy: number) => {
      const all = await statusOfAll(one);
      const rules = all.flatMap((status) => status.rules ?? []);
      assert.equal(new Set(rules).size, rules.length, "no rule twice");
      return rules.length === RULES.length && all.filter((status) => status.rules?.length > 0).length === busy;
    };
    await eventually("both evaluate rules", () => arePlaced(2));
    const [rule = ""] = RULES;
    assert.deepEqual(await mute(other, rule), { rule, muted: true });
    const muting = (await statusOfAll(other)).filter(({ muted }) => muted.includes(rule));
    assert.ok(muting.length === 1 && muting[0]?.rules.includes(rule), "only the monitor that evaluates it");
    const elsewhere = (await statusOfAll(one)).find(({ rules }) => !rules.includes(rule))?.instance_id ?? "";
    assert.equal((await one.instance(elsewhere, "mute", { body: JSON.stringify({ rule }) })).status, 404);
    assert.deepEqual((await one.any("rules")).json(), RULES);
    leaving[1].abort();
    await running[1];
    await eventually("the other one has them all", () => arePlaced(1));
  } finally {
    for (const each of leaving) each.abort();
    await Promise.allSettled(running);
    mock.restoreAll();
  }
});
