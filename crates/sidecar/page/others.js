// The sidecar's other groups, which are not on the page now: what is wrong there is part of the verdict.

import { lasting } from "./dom.js";
import { begin, fetchChanges } from "./changes.js";
import { ofGroup } from "./troubles.js";

const POLL_EVERY = 2000;
/** After so long without an answer it is not known how a group is. */
const OLD_AFTER = 4 * POLL_EVERY;

let groups = [];
let timer = null;

async function lookAt(group) {
  try {
    await fetchChanges(group);
    group.error = null;
  } catch (error) {
    group.error = error.message;
  }
}

/** One after the other: their number is the operator's. */
async function poll(asked) {
  for (const group of asked) {
    if (asked !== groups) return;
    await lookAt(group);
  }
  if (asked === groups) timer = setTimeout(poll, POLL_EVERY, asked);
}

/** From here on `shown` is the group on the page. */
export function choose(policies, shown) {
  clearTimeout(timer);
  const known = groups;
  const group = (policy) => known.find((one) => one.policy === policy.policy) ?? begin(policy, false);
  groups = policies.filter((policy) => policy.policy !== shown).map(group);
  poll(groups);
}

/** This page may no longer read. */
export const forget = () => choose([], null);

/** What is wrong with them, each under its policy. */
export function troubles() {
  return groups.flatMap((group) => {
    const said = (style, text) => ({ style, text: `Policy ${group.policy}: ${text}` });
    if (group.own === undefined) return [said("warn", group.error ? `it cannot be read: ${group.error}.` : "it has not been read yet.")];
    const age = Date.now() - group.ownAt;
    if (age > OLD_AFTER) return [said("bad", `it was last read ${lasting(age)} ago${group.error ? `: ${group.error}` : ""}.`)];
    return ofGroup(group).filter((one) => one.style !== "note").map((one) => said(one.style, one.text));
  });
}
