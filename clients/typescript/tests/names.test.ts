/** Work under names, on a sidecar that grants what the test says. */

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { test } from "node:test";

import { NotHeld, Problem, ShardwiseError, type Tenure } from "../src/index.js";
import { eventually } from "./common.js";
import { problem } from "./fake.js";
import { asked, leased } from "./leased.js";

test("singletons, daemons and timers run while their names are held", async () => {
  await leased({}, async (lease, sidecar, errors) => {
    const events: string[] = [];
    const until = (what: string) => eventually(what, () => events.includes(what));
    const leader = await lease.singleton("leader", async (tenure) => {
      events.push(`leader ${tenure.fence.epoch} ${events.length}`);
      if (tenure.fence.epoch === 5 && errors.length === 0) throw new RangeError("not yet");
      if (tenure.fence.epoch === 6) await new Promise((stop) => tenure.finish.addEventListener("abort", stop));
    });
    await lease.daemons("", async (number, { finish }) => {
      events.push(`daemon ${number}`);
      await new Promise((stop) => finish.addEventListener("abort", stop));
    });
    await lease.daemons("indexers", (number) => void events.push(`indexer ${number}`));
    await lease.timer("report", { everyMs: 60_000, phaseMs: 5 }, (period) => {
      events.push(`report ${period.number}`);
      if (period.number === 12) throw new RangeError("no report");
    });
    const timers = [{ name: "report", every_ms: 60_000, phase_ms: 5 }];
    assert.deepEqual(sidecar.asked.filter(({ path }) => path === "names").at(-1)?.body, { singletons: ["leader"], daemons: ["", "indexers"], timers });
    assert.throws(() => void lease.enter("singleton/leader"), NotHeld);

    const [first = 0] = sidecar.grant(5, "singleton/leader");
    await until("leader 5 0");
    await eventually("it begins again under the same epoch, and ends well", () => events.some((each) => each.startsWith("leader 5") && each !== "leader 5 0"));
    await eventually("its name is given up", () => sidecar.finished.includes(first));
    assert.deepEqual(errors.map(String), ["RangeError: not yet"]);

    const [second = 0, daemon = 0] = sidecar.grant(6, "singleton/leader", "daemon/3", "daemon/indexers/7", "daemon/others/1");
    await until("daemon 3");
    await until("indexer 7");
    await eventually("it runs", () => events.some((each) => each.startsWith("leader 6")));
    sidecar.ask(daemon);
    await eventually("the daemon has ended", () => sidecar.finished.includes(daemon));
    assert.ok(!sidecar.finished.includes(second));

    for (const number of [11, 12, 12, 11, 13]) {
      sidecar.fire("timer/report", number);
      await eventually("the end of each job is reported", () => [...sidecar.grants.values()].every(({ period }) => period === null));
    }
    assert.deepEqual(events.filter((each) => each.startsWith("report")), ["report 11", "report 12", "report 13"], "no period twice");
    assert.deepEqual(errors.map(String).slice(1), ["RangeError: no report"]);

    await leader.stop();
    await eventually("the offer is withdrawn", () => !JSON.stringify(sidecar.asked.filter(({ path }) => path === "names").at(-1)?.body).includes("leader"));
    sidecar.ask(second);
    await eventually("it is let go", () => sidecar.finished.includes(second));
    await assert.rejects(lease.daemons("indexers", () => undefined), ShardwiseError);
  });
});

test("names that are refused are withdrawn, and a new lease offers the rest", async () => {
  await leased({}, async (lease, sidecar) => {
    await lease.singleton("leader", () => undefined);
    sidecar.instead = ({ path, body }) => (path === "names" && JSON.stringify(body).includes("bad") ? problem(400, "bad-request", "no such name") : undefined);
    await assert.rejects(lease.singleton("bad\n", () => undefined), (error) => error instanceof Problem && error.status === 400);
    lease.onEnded(() => undefined);
    sidecar.end(false);
    await eventually("the good one is offered again", () => {
      const last = sidecar.asked.filter(({ path, lease: id }) => path === "names" && id === "lease-2").at(-1);
      return JSON.stringify(last?.body["singletons"]) === '["leader"]';
    });
  });
});


test("a set of daemons may come with their number", async () => {
  await leased({}, async (lease, sidecar) => {
    const last = () => sidecar.asked.filter(({ path }) => path === "names").at(-1)?.body;
    const work = () => undefined;
    await lease.daemons("plain", work);
    assert.deepEqual(last(), { singletons: [], daemons: ["plain"], timers: [] });
    await lease.daemons("", work, { count: 3 });
    const none = await lease.daemons("none", work, { count: 0 });
    assert.deepEqual(last(), { singletons: [], daemons: ["plain", "", "none"], timers: [], counts: { "": 3, none: 0 } });
    await assert.rejects(lease.daemons("", work, { count: 4 }), ShardwiseError, "one offer of a set at a time");
    await none.stop();
    await eventually("it is withdrawn with its number", () => JSON.stringify(last()?.["counts"]) === '{"":3}');
  });
});

test("a name that a later lease refuses ends its run", async () => {
  await leased({}, async (lease, sidecar, errors) => {
    const run = await lease.singleton("leader", () => undefined);
    lease.onEnded(() => undefined);
    sidecar.instead = ({ path }) => (path === "names" ? problem(400, "bad-request", "no such name") : undefined);
    sidecar.end(false);
    await assert.rejects(run.wait(), (error) => error instanceof Problem && error.detail === "no such name");
    assert.ok(errors.length > 0 && errors.every((error) => error instanceof Problem), `${errors}`);
    await sleep(100);
    assert.ok(sidecar.count("PUT", /^names$/) <= 4, "an empty list that is refused is not sent again");
    sidecar.instead = () => undefined;
    await (await lease.singleton("leader", () => undefined)).stop();
  });
});

test("work under a name waits for work that has lost the name", async () => {
  await leased({}, async (lease, sidecar) => {
    const [leader = 0] = sidecar.grant(5, "singleton/leader");
    const [tenures, ends] = [[] as Tenure[], [] as (() => void)[]];
    const first = await lease.singleton("leader", (tenure) => {
      tenures.push(tenure);
      return new Promise<void>((end) => ends.push(end));
    });
    await eventually("the first works", () => tenures.length === 1);
    const stopping = first.stop();
    sidecar.lose(leader);
    await eventually("its work has lost the name", () => tenures[0]?.lost.aborted === true);
    const epochs: number[] = [];
    await lease.singleton("leader", async (tenure) => {
      epochs.push(tenure.fence.epoch);
      await asked(tenure);
    });
    sidecar.grant(6, "singleton/leader");
    await sleep(200);
    assert.deepEqual(epochs, []);
    for (const end of ends) end();
    await stopping;
    await eventually("the second works", () => `${epochs}` === "6");
  });
});
