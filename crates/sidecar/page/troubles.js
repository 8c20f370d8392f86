// What is wrong with a group, as far as its own sidecar knows it.

import { lasting, ratio } from "./dom.js";
import * as holders from "./holders.js";
import { evenness } from "./shares.js";
import * as vanished from "./vanished.js";

/** How often the page asks its sidecar. */
const POLL_EVERY = 1000;
/** The fullest worker may have so much more than its part before that is worth a word. */
const UNEVEN = 1.3;

const names = (members) => members.map((one) => one.instance_id).join(", ");
const first = (members) => `${names(members.slice(0, 3))}${members.length > 3 ? " and more" : ""}`;

/** Why no worker owns anything. */
function unowned(members, state) {
  const here = members.filter((one) => one.state !== "away");
  if (here.length > 0 && here.every((one) => one.state === "draining" && state.drained.includes(one.instance_id))) return "all workers are drained. Take one back";
  return `active workers: ${members.filter((one) => one.state === "active").length || "none"}, ${state.minMembers} needed`;
}

/** Each with how bad it is: `bad`, `warn` or `note`. */
export function ofGroup(state) {
  const { own, members, slots } = state;
  const found = holders.troubles(state);
  const add = (style, text) => found.push({ style, text });
  if (own.state !== "active" && own.state !== "unsharded" && own.state !== "observing") add("bad", `This worker is ${own.state}${own.hint ? `: ${own.hint}` : ""}.`);
  const failing = members.members.filter((one) => one.worker === "failing");
  const group = members.members.filter((one) => one.state === "active" || one.worker !== null);
  const absent = members.members.filter((one) => one.worker === "absent");
  // So many may be drained for it; with fewer a check more decides.
  const most = group.length - absent.length - Math.max(Math.ceil(group.length / 2), state.minMembers);
  const spared = failing.length > most ? failing.filter((one) => one.state === "active") : [];
  if (spared.length > 0) add("bad", `The checks of so many workers fail that these keep their shares: ${first(spared)}. Check what the workers have in common.`);
  const drainedFor = failing.filter((one) => one.state !== "active");
  if (drainedFor.length > 0) add("warn", `Their workers' checks fail, so they own nothing: ${first(drainedFor)}.`);
  if (absent.length > 0) add("warn", `Their workers have not been seen or have no lease, so they own nothing: ${first(absent)}.`);
  if (own.worker_failure) add("note", `The latest check of this sidecar's worker failed: ${own.worker_failure}.`);
  if (slots.hint !== null) add("bad", `The owners cannot be computed here: ${slots.hint}`);
  else if (slots.placement === null) add("bad", `No worker owns anything: ${unowned(members.members, state)}.`);
  if (own.view_age_ms !== null && own.view_age_ms > state.ttl / 2 + POLL_EVERY) add(own.view_age_ms > state.ttl ? "bad" : "warn", `The backend has not confirmed this view for ${lasting(own.view_age_ms)}.`);
  const gone = vanished.unacknowledged(state);
  if (gone.length > 0) add("warn", `Vanished without leaving within the last hour: ${vanished.named(gone)}.`);
  if (own.stands_still) add("bad", "More workers vanished at once than max_loss allows: their slots are not taken over. If they are gone for good: shardwise confirm-loss.");
  const counted = new Set(slots.members.map((one) => one.instance_id));
  const left = members.members.filter((one) => one.state === "active" && !counted.has(one.instance_id) && slots.placement !== null);
  if (left.length > 0) add("bad", `Not counted by the placement: ${first(left)}. Their settings differ from the group's; their logs say how.`);
  const resting = members.members.filter((one) => one.state !== "active" && one.worker === null);
  const drained = resting.filter((one) => state.drained.includes(one.instance_id));
  const wanted = members.members.filter((one) => one.state === "active" && state.drained.includes(one.instance_id));
  if (wanted.length > 0) add("note", `To be drained, within a TTL: ${names(wanted)}.`);
  if (drained.length > 0) add("note", `Drained by an operator: ${names(drained)}.`);
  if (resting.length > drained.length) add("note", `Leaving or away: ${names(resting.filter((one) => !drained.includes(one)))}.`);
  const even = evenness(slots);
  if (even !== null && even.peak > UNEVEN) add("note", `Shares are uneven: the fullest worker has ${ratio(even.peak)} times its part.`);
  return found;
}
