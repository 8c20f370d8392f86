/** The example on two sidecars that run: each rule is evaluated by one monitor, a command goes to one, and one and all say what they do. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { RULES, type Status, run } from "../examples/alert_monitor.js";
import type { Client } from "../src/index.js";
import { LEASED, client, eventually } from "./common.js";

test("rules have one monitor each", async () => {
  const reported: { did: string; rule?: string; by?: string }[] = [];
  const write = process.stdout.write.bind(process.stdout);
  mock.method(process.stdout, "write", (text: string) => (`${text}`.startsWith('{"did"') ? reported.push(JSON.parse(text)) > 0 : write(text)));
  const [one, other] = LEASED.map(({ url }) => client(url)) as [Client, Client];
  const ids = await Promise.all([one, other].map(async (each) => (await each.ownership()).instance_id));
  const leaving = [new AbortController(), new AbortController()] as const;
  const running = [one, other].map((each, at) => run(each, LEASED[at]?.port ?? 0, leaving[at]?.signal ?? AbortSignal.abort()));
  const statuses = () => Promise.all(ids.map(async (id) => (await one.instance(id, "status")).json<Status>()));
  const arePlaced = async (monitors: number) => {
    const rules = (await statuses()).map((status) => status.rules);
    assert.equal(new Set(rules.flat()).size, rules.flat().length, "no rule twice");
    return rules.flat().length === RULES.length && rules.filter((some) => some.length > 0).length === monitors;
  };
  try {
    await eventually("they listen", async () => reported.filter(({ did }) => did === "listening").length === 2);
    await eventually("both evaluate rules", () => arePlaced(2));
    const [id = "", rule = ""] = [ids[1], (await statuses())[1]?.rules[0]];
    const send = (wanted: string) => one.instance(id, "silence", { body: JSON.stringify({ rule: wanted }) });
    assert.deepEqual((await send(rule)).json(), { silenced: [rule] });
    assert.equal((await send("no such rule")).status, 400);
    assert.deepEqual((await statuses()).map(({ silenced }) => silenced), [[], [rule]], "only the monitor to which it was sent");
    assert.equal((await one.any("silence", { body: JSON.stringify({ rule }) })).status, 404, "a command is for one");
    assert.deepEqual((await one.any("rules")).json(), { rules: RULES });
    leaving[1].abort();
    await running[1];
    await eventually("the other one has them all", async () => (await one.instance(ids[0] ?? "", "status")).json<Status>().rules.length === RULES.length);
    for (const each of RULES) assert.ok(reported.some(({ did, rule: its }) => did === "evaluated" && its === each), each);
  } finally {
    for (const each of leaving) each.abort();
    await Promise.allSettled(running);
    mock.restoreAll();
  }
});
