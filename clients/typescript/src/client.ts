/** Asks one sidecar about one policy. */

import { type Ask, Asker, type To, ready } from "./ask.js";
import { NotOwning, ShardwiseError, Unavailable, Problem } from "./errors.js";
import { Http, encoded, under, type Asked, type Call, type Options, type UnderLease } from "./http.js";
import { Lease, type LeaseOptions } from "./lease.js";
import { type Answer, type Send, bring } from "./requests.js";
import type { EnteredKey, Event, Explanation, Group, Holders, Owned, Owner, Ownership, Plan, Rebalance, Route, Wish } from "./types.js";
import { type Keys, listed } from "./keys.js";
import { events, pause, sleep, tied, unless } from "./waits.js";

/** The most characters of a list in one request. The sidecar buffers nothing, and `fetch` sends the whole body before it reads. */
const LIST_CHARACTERS = 256 * 1024;
const OWNING = ["active", "stale", "unsharded"];
const LIST_INSTEAD = ": ask by a list, such as owned([\".\"])";
export class Client {
  readonly #http: Http;
  readonly #asker: Asker;

  constructor(policy: string, options: Options = {}) {
    this.#http = new Http(policy, options);
    this.#asker = new Asker(this.#http);
  }

  /**
   * The keys that this worker owns, in their order. Each was owned when its part was answered. Empty in a state without ownership. Under exclusive
   * ownership it needs the id of the worker's `lease`.
   */
  async owned(keys: Keys, { lease, signal }: UnderLease = {}): Promise<Owned> {
    const [until, owned] = [this.#http.until(), { keys: [] as string[], state: "" }];
    for await (const part of parts(keys)) {
      const { keys: mine, state } = await this.#owned(part, { signal, until, headers: under(lease) });
      if (!OWNING.includes(state)) return { keys: [], state };
      for (const key of mine) owned.keys.push(key);
      owned.state = state;
    }
    return owned;
  }

  /** Like `owned`, for a list of any length; one part at a time is in memory. Throws `NotOwning` as soon as this worker owns nothing. */
  async *ownedStream(keys: Keys | AsyncIterable<string>, { lease, signal }: UnderLease = {}): AsyncGenerator<string, void, undefined> {
    for await (const part of parts(keys)) {
      const { keys: mine, state } = await this.#owned(part, { signal, headers: under(lease) });
      if (!OWNING.includes(state)) throw new NotOwning(state);
      yield* mine;
    }
  }

  /** The key's owner in the newest view, and whether this worker owns it right now, by its own deadline. */
  async owner(key: string, call: Call = {}): Promise<Owner> { return this.#http.json(`owner/${encoded(key, LIST_INSTEAD)}`, call); }
  /** Explains the key's owner in readable form. */
  async explain(key: string, call: Call = {}): Promise<Explanation> { return this.#http.json(`explain/${encoded(key, LIST_INSTEAD)}`, call); }
  /** This worker's ownership, and how long it lasts without a renewal. */
  ownership(call: Call = {}): Promise<Ownership> { return this.#http.json("ownership", call); }
  /** The members of the group. */
  members(call: Call = {}): Promise<Group> { return this.#http.json("members", call); }
  /** What would move if `join` joined and `leave` left; changes nothing. */
  plan(wanted: { join?: { instance_id: string; weight?: number }[]; leave?: string[] } = {}, { signal }: Call = {}): Promise<Plan> {
    return this.#http.json("plan", { signal, body: JSON.stringify(wanted) });
  }
  /** Drains a member: it stays registered and owns no slots, even after restarts. Needs the token. */
  drain(instance_id: string, call: Call = {}): Promise<Wish> { return this.#wish("drain", instance_id, call); }
  /** Ends a drain: the member takes its share again. Needs the token. */
  undrain(instance_id: string, call: Call = {}): Promise<Wish> { return this.#wish("undrain", instance_id, call); }

  /** Who holds each slot and name, under which epoch and since when. Only under exclusive ownership. */
  holders(call: Call = {}): Promise<Holders> { return this.#http.json("holders", call); }

  /**
   * Sends a request to a destination, such as `{ owner: key }`, and returns the answer of its member, whatever its status is.
   *
   * Until `withinMs` are over it goes on to another member as long as it was certainly not handled. `NotHandled` (`Unsent`, `NotMine`, `Busy`) says that no
   * member took it in time. `Unknown` says that it may have been handled. A GET, and a request with an `idempotencyKey`, is repeatable: it is sent again even
   * then. A `Problem` says that the request or its destination is refused; it was not handled. When `signal` aborts, the handler is ended.
   */
  async ask(to: To, path: string, ask: Ask = {}): Promise<Answer> { return this.#asker.ask(ready(to, path, ask)); }

  /** Where a request to the key would go now, as the sidecar knows it; the member that gets the request decides. Changes nothing. */
  route(key: string, call: Call = {}): Promise<Route> { return this.#http.json(`route?${new URLSearchParams({ key })}`, call); }

  /** Asks one member, or sends to it: its worker, or the sidecar where the worker has nothing at that path. The member's answer is returned whatever
   * its status is; a sidecar that cannot reach the member throws `Problem`. With a body it is a POST, which is sent once. */
  instance(instance_id: string, path: string, send: Send = {}): Promise<Answer> {
    return bring(this.#http, `instances/${encoded(instance_id)}/`, path, send);
  }
  /** The same with any member that is active. What a worker answers only for itself does not answer here. */
  any(path: string, send: Send = {}): Promise<Answer> { return bring(this.#http, "any/", path, send); }

  /** Opens this worker's lease on its sidecar, under exclusive ownership. While another one is live, it waits for its end. */
  lease(options: LeaseOptions & Call = {}): Promise<Lease> { return Lease.open(this.#http, options); }

  /**
   * Which of these keys, 1,000 at most, the worker holds now, and under which fence. For a process of the worker that does not keep the lease itself: it
   * asks before each piece of work, and works until `valid_ms` after the moment before the call.
   */
  async enter(keys: Keys, { lease, signal }: Call & { lease: string }): Promise<EnteredKey[]> {
    const { value } = await this.#http.ask("enter", { signal, headers: under(lease), body: JSON.stringify({ keys: [...listed(keys)] }) });
    if (!Array.isArray(value)) throw this.#http.strange();
    return value as EnteredKey[];
  }

  /** What moves, as it happens, until the iteration is left or the signal aborts it. It goes on behind the event of that id, and by itself behind the
   * last one after each break of the connection. A refusal that does not pass by itself is thrown. */
  async *rebalances({ lastEventId, signal }: Call & { lastEventId?: string } = {}): AsyncGenerator<Event, void, undefined> {
    let [last, isLost, tries] = [lastEventId, false, 0];
    while (!signal?.aborted) {
      const [ends, end] = tied(signal);
      let error: ShardwiseError = new Unavailable(`${this.#http.base}rebalances has ended`);
      const { timeoutMs, silenceMs } = this.#http.options;
      try {
        const headers = { accept: "text/event-stream", ...(last === undefined ? {} : { "last-event-id": last }) };
        const response = await unless(ends, timeoutMs, this.#http.fetch("rebalances", ends.signal, { headers }));
        if (response.status !== 200) throw await unless(ends, timeoutMs, Problem.of(response));
        if (isLost || last === undefined) yield { kind: "gap" };
        [isLost, tries] = [false, 0];
        for await (const fields of events(response, ends, silenceMs)) {
          if (fields.get("event") === "gap") yield { kind: "gap" };
          if (fields.get("event") !== "rebalance") continue;
          const rebalance = JSON.parse(fields.get("data") ?? "null") as Rebalance;
          last = rebalance.id;
          yield { kind: "rebalance", rebalance };
        }
      } catch (broken) {
        error = this.#http.error(broken);
        if (!error.passes) throw error;
      } finally {
        end();
      }
      if (!isLost && !signal?.aborted) yield { kind: "lost", error };
      isLost = true;
      await sleep(pause(tries++), signal);
    }
  }

  async #owned(part: string, call: Asked): Promise<Owned> {
    const { value, headers } = await this.#http.ask("owned", { ...call, body: part });
    if (!Array.isArray(value)) throw this.#http.strange();
    return { keys: value as string[], state: headers.get("shardwise-state") || "unknown" };
  }
  #wish(route: string, instance_id: string, { signal }: Call): Promise<Wish> {
    return this.#http.json(route, { signal, body: JSON.stringify({ instance_id }), isSafe: false });
  }
}

/** JSON lists of bounded size, at least one; a longer key is alone in its list. */
async function* parts(keys: Keys | AsyncIterable<string>): AsyncGenerator<string, void, undefined> {
  let [part, size] = [[] as string[], 0];
  for await (const key of listed(keys)) {
    const text = JSON.stringify(key);
    if (part.length > 0 && size + text.length > LIST_CHARACTERS) {
      yield `[${part.join(",")}]`;
      [part, size] = [[], 0];
    }
    part.push(text);
    size += text.length + 1;
  }
  yield `[${part.join(",")}]`;
}
