/** The client against two sidecars of one group that run: `cargo test -p shardwise-cli --test clients` starts them and runs this with Node's test runner. */

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { Client, type Event, NotOwning, Problem, ShardwiseError, Unavailable } from "../src/index.js";
import { ONE, OTHER, PATIENCE_MS, Proxy, Scripted, TOKEN, client, eventually } from "./common.js";

const [one, other] = [client(ONE), client(OTHER)];
/** Each is alone in its part of a list. */
const LONG = Array.from({ length: 5 }, (_, n) => `${n}`.repeat(300_000));

async function isShared(): Promise<boolean> {
  const [here, there] = await Promise.all([one, other].map(async (each) => (await each.ownership()).slots_owned ?? 0));
  return here !== undefined && there !== undefined && here + there === 256 && Math.min(here, there) > 0;
}

async function collected(stream: AsyncIterable<string>): Promise<string[]> {
  const keys = [];
  for await (const key of stream) keys.push(key);
  return keys;
}

beforeEach(() => eventually("both share the slots", isShared));

test("lists are shared, whole and in parts", async () => {
  const keys = Array.from({ length: 30_000 }, (_, n) => `tenant-${n} "größe" \u2028 \u{1f4a1} \\`);
  const [mine, theirs] = [await one.owned(keys), await other.owned(keys)];
  const owned = new Set(mine.keys);
  assert.deepEqual([mine.state, theirs.state], ["active", "active"]);
  assert.ok(mine.keys.length > 5_000 && theirs.keys.length > 5_000);
  assert.deepEqual(mine.keys, keys.filter((key) => owned.has(key)), "in their order");
  assert.deepEqual(theirs.keys, keys.filter((key) => !owned.has(key)), "each key has one owner");
  assert.deepEqual(await collected(one.ownedStream(keys)), mine.keys);
  async function* slowly() { yield* keys; }
  assert.deepEqual(await collected(one.ownedStream(slowly())), mine.keys);
  assert.deepEqual(await one.owned([]), { keys: [], state: "active" });
  assert.deepEqual(await collected(one.ownedStream([])), []);
});

test("a list has one deadline", async () => {
  await Scripted.with(["active"], 500, async (slow, url) => {
    const begun = Date.now();
    await assert.rejects(client(url, { timeoutMs: 1_200 }).owned(LONG), Unavailable);
    assert.ok(Date.now() - begun < PATIENCE_MS / 2 && slow.asked < LONG.length, `${slow.asked}`);
    assert.deepEqual(await client(url).owned(LONG), { keys: LONG, state: "active" });
  });
});

test("a list ends with the first state in which nothing is owned", async () => {
  for (const state of ["created", "joining", "draining", "left", "fenced", "refused", "unassigned"]) {
    await Scripted.with(["active", "stale", state, "active"], 0, async (changing, url) => {
      assert.deepEqual(await client(url).owned(LONG), { keys: [], state });
      assert.equal(changing.asked, 3);
    });
    await Scripted.with(["active", "unsharded", state, "active"], 0, async (changing, url) => {
      const mine: string[] = [];
      const reading = async () => { for await (const key of client(url).ownedStream(LONG)) mine.push(key); };
      await assert.rejects(reading(), (error) => error instanceof NotOwning && error.passes && error.state === state && error.message.includes(state));
      assert.deepEqual([mine, changing.asked], [LONG.slice(0, 2), 3]);
    });
  }
});

test("a call ends with its signal", async () => {
  await Proxy.with(async (proxy, url) => {
    proxy.isMute = true;
    const asking = client(url);
    const calls: ((signal: AbortSignal) => Promise<unknown>)[] = [
      (signal) => asking.owner("a", { signal }), (signal) => asking.explain("a", { signal }), (signal) => asking.ownership({ signal }),
      (signal) => asking.members({ signal }), (signal) => asking.plan({}, { signal }), (signal) => asking.drain("nobody", { signal }),
      (signal) => asking.undrain("nobody", { signal }), (signal) => asking.owned(["a"], { signal }),
      (signal) => asking.ownedStream(["a"], { signal }).next(),
    ];
    for (const call of calls) {
      const [leaving, reason, requests] = [new AbortController(), new Error("enough"), proxy.requests];
      const asked = call(leaving.signal);
      await eventually("it is under way", () => proxy.requests > requests);
      leaving.abort(reason);
      await assert.rejects(asked, reason, `${call}`);
      await assert.rejects(call(AbortSignal.abort(reason)), reason, `${call}`);
    }
  });
  assert.equal((await one.owner("a", { signal: new AbortController().signal })).key, "a");
});

test("owners of any key", async () => {
  const id = (await one.ownership()).instance_id;
  for (const key of ["tenant-7", "größe /../\0", "...", "a/../b", "%2e%2E", "a?b=c#d&e+f", "", " ", "\u2028\u{1f4a1}", "k".repeat(50_000)]) {
    const [here, there] = [await one.owner(key), await other.owner(key)];
    assert.deepEqual([here.key, here.owner, here.slot], [key, there.owner, there.slot]);
    assert.deepEqual([here.mine, there.mine], [here.owner === id, here.owner !== id]);
    assert.deepEqual((await one.owned([key])).keys, here.mine ? [key] : []);
    const explained = await other.explain(key);
    assert.deepEqual([explained.slot, explained.owner?.instance_id], [here.slot, here.owner]);
  }
  await assert.rejects(one.owner("k".repeat(70_000)), ShardwiseError);
  for (const dots of [".", ".."]) {
    await assert.rejects(one.owner(dots), /ask by a list/);
    await assert.rejects(one.explain(dots), /ask by a list/);
    const both = [...(await one.owned([dots])).keys, ...(await other.owned([dots])).keys];
    assert.deepEqual(both, [dots]);
  }
});

test("the group and what would move", async () => {
  const [ownership, group] = [await one.ownership(), await one.members()];
  assert.deepEqual([ownership.policy, ownership.state, ownership.slots], ["workers", "active", 256]);
  assert.ok((ownership.owned_for_ms ?? 0) > 0);
  assert.equal(group.members.reduce((sum, member) => sum + (member.slots ?? 0), 0), 256);
  assert.ok(group.members.some((member) => member.instance_id === ownership.instance_id));
  const plan = await one.plan({ join: [{ instance_id: "new", weight: 2 }], leave: [ownership.instance_id] });
  assert.ok(plan.after.members === 2 && plan.moved_share > 0.3 && (plan.moves[0]?.share ?? 0) > 0);
  assert.deepEqual((await one.plan()).moves, []);
});

test("refusals are problems", async () => {
  const refused = (status: number, kind: string, asked: Promise<unknown>) =>
    assert.rejects(asked, (error) => {
      assert.ok(error instanceof Problem, String(error));
      assert.deepEqual([error.status, error.kind, error.passes], [status, kind, false]);
      assert.ok(error.title !== "" && error.detail !== "" && error.message.includes(error.detail));
      return true;
    });
  const stranger = client(ONE, { token: "not-the-right-token" });
  await refused(401, "unauthorized", stranger.ownership());
  await refused(401, "unauthorized", stranger.rebalances().next());
  await refused(404, "not-found", client(ONE, {}, "no/such").owned(["a"]));
  await refused(404, "unknown-instance", one.plan({ leave: ["nobody"] }));
  await refused(404, "unknown-instance", one.drain("nobody"));
  await refused(400, "bad-key", one.owned(["a", "k".repeat(70_000)]));
});

test("a token is sent well and never shown", async () => {
  assert.equal((await client(ONE, { token: `${TOKEN}\n` }).ownership()).policy, "workers");
  for (const token of [`${TOKEN}\n\n`, `a\n${TOKEN}`, `größe${TOKEN}`, `${TOKEN}\0`, `${TOKEN} `, ""]) {
    assert.throws(() => client(ONE, { token }), (error) => {
      assert.ok(error instanceof ShardwiseError && !error.passes && !`${error} ${error.cause}`.includes(TOKEN));
      return true;
    });
  }
});

test("a wrong URL is no outage", async () => {
  for (const url of [
    "", "127.0.0.1:8087", "localhost:8087", "ftp://host", "unix:///run/it", "http://", "http://host:99999", "http://host:secret",
    "http://name:secret@host", "http://host/?secret", "http://host#secret", "http://[::1",
  ]) {
    assert.throws(() => new Client("workers", { url }), (error) => {
      assert.ok(error instanceof ShardwiseError && !error.passes && !`${error} ${error.cause}`.includes("secret"), url);
      return true;
    }, url);
  }
  for (const url of [`${ONE}/`, `${ONE}//`]) assert.equal((await client(url).ownership()).policy, "workers");
});

test("who does not answer is unavailable in time", async () => {
  let gone = "";
  await Proxy.with(async (proxy, url) => {
    [gone, proxy.isMute] = [url, true];
    const deaf = client(url, { timeoutMs: 500 });
    for (const asked of [() => deaf.owner("a"), () => deaf.drain("nobody")]) {
      const begun = Date.now();
      await assert.rejects(asked(), (error) => error instanceof Unavailable && error.passes);
      assert.ok(Date.now() - begun < PATIENCE_MS / 2);
    }
  });
  await assert.rejects(client(gone).ownership(), (error) => error instanceof Unavailable && error.message.includes("start `shardwise serve`"));
});

test("only what is safe is tried again", async () => {
  await Proxy.with(async (proxy, url) => {
    proxy.refusals = 2;
    assert.equal((await client(url).owner("a")).key, "a");
    assert.equal(proxy.requests, 3);
  });
  await Proxy.with(async (proxy, url) => {
    proxy.refusals = 2;
    await assert.rejects(client(url, { attempts: 2 }).owned(["a"]), (error) => error instanceof Problem && error.status === 503 && error.passes);
    assert.equal(proxy.requests, 2);
    proxy.refusals = 1;
    await assert.rejects(client(url).drain("nobody"), Problem);
    assert.equal(proxy.requests, 3, "a wish is not told twice");
  });
  await Proxy.with(async (proxy, url) => {
    proxy.swallows = true;
    await assert.rejects(client(url).undrain("nobody"), Unavailable);
    assert.equal(proxy.requests, 1, "a wish that may have arrived is not told twice");
    await assert.rejects(client(url).owner("a"), Unavailable);
    assert.equal(proxy.requests, 4);
  });
});

test("followers go on behind a break", async () => {
  const theirs = (await other.ownership()).instance_id;
  await Proxy.with(async (proxy, url) => {
    const follower = client(url);
    const leaving = new AbortController();
    const following = follower.rebalances({ signal: leaving.signal });
    const comes = async (kind: Event["kind"]): Promise<Event> => {
      const { value } = await following.next();
      assert.equal(value?.kind, kind, JSON.stringify(value));
      return value as Event;
    };
    const until = async (slots: number): Promise<string[]> => {
      const ids: string[] = [];
      for (;;) {
        const event = await comes("rebalance");
        assert.ok(event.kind === "rebalance");
        ids.push(event.rebalance.id);
        if (event.rebalance.slots_owned === slots) return ids;
      }
    };
    await comes("gap");
    const share = (await one.ownership()).slots_owned ?? 0;
    assert.deepEqual(await one.drain(theirs), { instance_id: theirs, drained: true, changed: true });
    const seen = await until(256);
    proxy.cut();
    const lost = await comes("lost");
    assert.ok(lost.kind === "lost" && lost.error.passes && lost.error.message !== "");
    assert.ok((await one.undrain(theirs)).changed);
    await eventually("both share the slots again", isShared);
    proxy.isCut = false;
    await comes("gap");
    const ids = [...seen, ...(await until(share))];
    const numbers = ids.map((id) => Number(id.slice(id.lastIndexOf("-") + 1)));
    assert.deepEqual(numbers, numbers.map((_, at) => (numbers[0] ?? 0) + at), "nothing twice, nothing missed");
    const waiting = following.next();
    leaving.abort();
    assert.deepEqual(await waiting, { done: true, value: undefined });

    const again = follower.rebalances({ lastEventId: ids[0] ?? "" });
    const { value } = await again.next();
    assert.ok(value?.kind === "rebalance" && value.rebalance.id === ids[1], JSON.stringify(value));
    await again.return();
  });
  const stranger = one.rebalances({ lastEventId: "of-another-life" });
  assert.deepEqual([(await stranger.next()).value?.kind, (await stranger.next()).value?.kind], ["gap", "rebalance"]);
  await stranger.return();
});

test("followers notice a sidecar that goes mute", async () => {
  await Proxy.with(async (proxy, url) => {
    const following = client(url, { silenceMs: 3_000 }).rebalances({ lastEventId: "of-another-life" });
    const nextBut = async (kind: Event["kind"]): Promise<Event> => {
      for (;;) {
        const { value } = await following.next();
        if (value?.kind !== kind) return value as Event;
      }
    };
    assert.equal((await nextBut("gap")).kind, "rebalance");
    proxy.isMute = true;
    const lost = await nextBut("rebalance");
    assert.ok(lost.kind === "lost" && lost.error instanceof Unavailable && lost.error.message.includes("nothing for 3000 ms"), JSON.stringify(lost));
    proxy.cut();
    proxy.isMute = proxy.isCut = false;
    assert.equal((await following.next()).value?.kind, "gap");
    await following.return();
  });
});

test("what is lost says why", async () => {
  const lost = async (url: string) => {
    const following = client(url).rebalances();
    const { value } = await following.next();
    await following.return();
    assert.ok(value?.kind === "lost", JSON.stringify(value));
    return value.error;
  };
  assert.match((await lost(ONE.replace("http:", "https:"))).message, /SSL/);
  await Proxy.with(async (proxy, url) => {
    proxy.refusals = 1;
    const error = await lost(url);
    assert.ok(error instanceof Problem && error.status === 503, String(error));
  });
});
