/** Handlers of requests to keys, asked as a sidecar does, under a lease of a fake sidecar. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Fence, type OwnedRequest, RequestHandlers } from "../src/index.js";
import { eventually } from "./common.js";
import { asked, key, leased, owns } from "./leased.js";
import { served } from "./served.js";

const toKey = (of: string | undefined, fence?: Fence, more: Record<string, string> = {}, signal?: AbortSignal): RequestInit => ({
  method: "POST", body: "hello", ...(signal === undefined ? {} : { signal }),
  headers: {
    ...(of === undefined ? {} : { "shardwise-key": encodeURIComponent(of) }),
    ...(fence === undefined ? {} : { "shardwise-slot": `${fence.slot}`, "shardwise-epoch": `${fence.epoch}` }), ...more,
  },
});

test("a handler of a key gets the key and the fence of the sidecar", async () => {
  const seen: OwnedRequest[] = [];
  const handlers = new RequestHandlers().onOwned("say", (owned) => { seen.push(owned); return "heard"; }).onAny("rules", () => 1);
  await served(handlers, async (send) => {
    for (const [of, fence] of [["room 7/größe\n%", { slot: 3, epoch: 9 }], ["", undefined]] as const) {
      const answer = await send("/say", "owner", toKey(of, fence, { "idempotency-key": "k-1" }));
      assert.deepEqual([answer.status, await answer.json()], [200, "heard"]);
      const owned = seen.at(-1) as OwnedRequest;
      assert.deepEqual([owned.key, owned.fence, owned.guard, owned.text(), owned.idempotencyKey], [of, fence, undefined, "hello", "k-1"]);
    }
    const wrong = [toKey(undefined), toKey("a", undefined, { "shardwise-key": "%ff" }), toKey("a", undefined, { "shardwise-slot": "1", "shardwise-epoch": "soon" })];
    for (const each of wrong) assert.equal((await send("/say", "owner", each)).status, 400);
    for (const [path, to] of [["/say", "any"], ["/say", "holder"], ["/say", "session"], ["/rules", "owner"]] as const) {
      assert.equal((await send(path, to, toKey("a"))).status, 404, `${path} ${to}`);
    }
    assert.equal(seen.length, 2);
  });
});

test("a handler of a name gets the name and the epoch of the sidecar", async () => {
  const handlers = new RequestHandlers().onHeld("lead", ({ name, epoch }) => [name, epoch]);
  await served(handlers, async (send) => {
    const name = { "shardwise-name": "singleton%2Fleader" };
    assert.deepEqual(await (await send("/lead", "holder", { headers: { ...name, "shardwise-epoch": "9" } })).json(), ["singleton/leader", 9]);
    assert.equal((await send("/lead", "holder", { headers: name })).status, 400);
    assert.equal((await send("/lead", "owner", toKey("a"))).status, 404, "what is for a name never answers a key");
  });
});

test("a handler of a key works under the lease", async () => {
  await leased({}, async (lease, sidecar) => {
    const [number = 0] = sidecar.grant(7, 3);
    await owns(lease, 3);
    let end = () => {};
    const ends = new Promise<void>((ended) => { end = ended; });
    let running = 0;
    const handlers = new RequestHandlers().onOwned("say", async ({ key: of, fence, guard }) => {
      running += 1;
      await ends;
      return [of, fence, guard?.isHeld];
    }, { lease });
    await served(handlers, async (send) => {
      const answering = send("/say", "owner", toKey(key(3), { slot: 3, epoch: 7 }));
      await eventually("it is handled", () => running === 1);
      sidecar.ask(number);
      await eventually("it must be handed over", () => !lease.owns(key(3)));
      assert.deepEqual(sidecar.finished, [], "the handover waits for the handler");
      end();
      assert.deepEqual(await (await answering).json(), [key(3), { slot: 3, epoch: 7 }, true]);
      await eventually("it is handed over", () => sidecar.finished.includes(number));
    });
  });
});

test("what this worker does not hold is refused before a handler sees it", async () => {
  await leased({}, async (lease, sidecar) => {
    sidecar.grant(7, 3);
    await owns(lease, 3);
    const seen: string[] = [];
    const handlers = new RequestHandlers().onOwned("say", (owned) => seen.push(owned.key), { lease });
    await served(handlers, async (send) => {
      for (const refused of [toKey(key(4)), toKey(key(3), { slot: 3, epoch: 8 })]) {
        const answer = await send("/say", "owner", refused);
        assert.deepEqual([answer.status, answer.headers.get("shardwise-peer")], [421, "refused"]);
      }
      assert.deepEqual(seen, []);
      assert.equal((await send("/say", "owner", toKey(key(3)))).status, 200, "the guard was left each time");
      await lease.close();
      assert.equal((await send("/say", "owner", toKey(key(3)))).status, 421);
    });
  });
});

test("a handler that loses its slot is told, and so is its caller", async () => {
  await leased({}, async (lease, sidecar) => {
    const [number = 0] = sidecar.grant(7, 3);
    await owns(lease, 3);
    let running = 0;
    const handlers = new RequestHandlers({ onError: () => undefined }).onOwned("say", async ({ signal }) => {
      running += 1;
      await asked({ finish: signal });
      throw new Error("aborted");
    }, { lease });
    await served(handlers, async (send) => {
      const lost = send("/say", "owner", toKey(key(3)));
      await eventually("it is handled", () => running === 1);
      sidecar.lose(number);
      const answer = await lost;
      assert.deepEqual([answer.status, answer.headers.get("shardwise-peer")], [502, null], "it may have been handled in part");

      const [again = 0] = sidecar.grant(8, 3);
      await owns(lease, 3);
      const ends = new AbortController();
      const left = send("/say", "owner", toKey(key(3), undefined, {}, ends.signal));
      await eventually("it is handled again", () => running === 2);
      sidecar.ask(again);
      ends.abort();
      await assert.rejects(left);
      await eventually("a caller that has gone ends the handler", () => sidecar.finished.includes(again));
    });
  });
});
