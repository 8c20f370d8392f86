// Workers that vanished without leaving, until an operator has acknowledged it, which is kept in this browser.

import { clock, count } from "./dom.js";

const KEEP = "shardwise-vanished-seen";
/** How long it is shown. */
const TOLD_FOR = 3600000;

/** By name of what was acknowledged: when it happened. Without a store it is kept as long as the page lives. */
let seen = read();

function read() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEEP) ?? "{}");
    return new Map(Object.entries(kept).filter(([, at]) => Date.now() - at < TOLD_FOR));
  } catch {
    return new Map();
  }
}

const key = (state, one) => JSON.stringify([state.own.group, one.instance_id, one.incarnation, one.at]);

/** Who vanished within the last hour, by this browser's clock, and was not acknowledged. */
export function unacknowledged(state) {
  const ones = state.members.vanished.map((one) => ({ ...one, when: state.membersAt - one.ms_ago }));
  return ones.filter((one) => Date.now() - one.when < TOLD_FOR && !seen.has(key(state, one)));
}

/** The latest first. */
export function named(gone) {
  const words = gone.map((one) => `${one.instance_id} (${clock(new Date(one.when))}${one.is_back ? ", back since" : ""})`).reverse();
  return words.length > 5 ? `${words.slice(0, 5).join(", ")} and ${count(words.length - 5)} more` : words.join(", ");
}

export function acknowledge(state) {
  // Another page may have written meanwhile.
  seen = new Map([...read(), ...seen]);
  for (const one of unacknowledged(state)) seen.set(key(state, one), one.when);
  try {
    localStorage.setItem(KEEP, JSON.stringify(Object.fromEntries(seen)));
  } catch {
    // Then it is forgotten with the page.
  }
}
