// In short: is all well, and if not, what to do.

import { $, count, fill, h, lasting, many, percent, ratio, say } from "./dom.js";
import { agree } from "./agree.js";
import { silent } from "./members.js";
import * as outbox from "./outbox.js";
import { evenness } from "./shares.js";
import * as vanished from "./vanished.js";

/** How often the page asks its sidecar. */
const LOOKS_EVERY = 1000;
/** The fullest worker may have so much more than its part before that is worth a word. */
const UNEVEN = 1.3;

const RANK = { bad: 0, warn: 1, note: 2 };

/** What is wrong, the worst first; each with how bad it is. */
function troubles(state) {
  const { own, members, slots } = state;
  const found = outbox.troubles();
  const add = (style, text) => found.push({ style, text });
  if (own.state !== "active" && own.state !== "unsharded" && own.state !== "observing") add("bad", `This worker is ${own.state}${own.hint ? `: ${own.hint}` : ""}.`);
  if (slots.hint !== null) add("bad", `Who owns what cannot be told here: ${slots.hint}`);
  else if (slots.placement === null) add("bad", `Nobody owns anything: active workers: ${members.members.filter((one) => one.state === "active").length || "none"}, ${state.minMembers} needed.`);
  if (own.view_age_ms !== null && own.view_age_ms > state.ttl / 2 + LOOKS_EVERY) add(own.view_age_ms > state.ttl ? "bad" : "warn", `The backend has not confirmed what is shown here for ${lasting(own.view_age_ms)}.`);
  const quiet = silent(state).map((one) => one.instance_id);
  if (quiet.length > 0) add("warn", `No proof of life for more than half the TTL: ${quiet.slice(0, 3).join(", ")}${quiet.length > 3 ? " and more" : ""}. A worker that hangs loses its share when its lease ends.`);
  const gone = vanished.unacknowledged(state);
  if (gone.length > 0) add("warn", `Vanished without leaving within the last hour: ${vanished.named(gone)}.`);
  if (own.stands_still) add("bad", "More workers vanished at once than max_loss allows: nobody takes over what they had. If they are gone for good: shardwise confirm-loss.");
  if (agree(state) === false) add("warn", "Workers see different groups. Around a change that is normal for a moment.");
  const counted = new Set(slots.members.map((one) => one.instance_id));
  const left = members.members.filter((one) => one.state === "active" && !counted.has(one.instance_id) && slots.placement !== null);
  if (left.length > 0) add("bad", `Not counted by the placement: ${left.slice(0, 3).map((one) => one.instance_id).join(", ")}${left.length > 3 ? " and more" : ""}. Their settings differ from the group's; their logs say how.`);
  const resting = members.members.filter((one) => one.state !== "active");
  const drained = resting.filter((one) => state.drained.includes(one.instance_id));
  const wanted = members.members.filter((one) => one.state === "active" && state.drained.includes(one.instance_id));
  if (wanted.length > 0) add("note", `To be drained, within a TTL: ${wanted.map((one) => one.instance_id).join(", ")}.`);
  if (drained.length > 0) add("note", `Drained by an operator: ${drained.map((one) => one.instance_id).join(", ")}.`);
  if (resting.length > drained.length) add("note", `Leaving or away: ${resting.filter((one) => !drained.includes(one)).map((one) => one.instance_id).join(", ")}.`);
  const even = evenness(slots);
  if (even !== null && even.peak > UNEVEN) add("note", `Shares are uneven: the fullest worker has ${ratio(even.peak)} times its part.`);
  return found.sort((one, other) => RANK[one.style] - RANK[other.style]);
}

function tile(name, value, more) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("span", {}, more)));
}

const AGREE = new Map([[true, ["yes", "they see the same group"]], [false, ["no", "see below"]], [null, ["not known", "only the view from here"]]]);

export function show(state) {
  const { own, members, slots } = state;
  const found = troubles(state);
  const even = evenness(slots);
  const active = members.members.filter((one) => one.state === "active").length;
  const sharing = active === 1 ? "one worker has everything" : even === null ? `${many(active, "worker")} share the keys` : `${many(active, "worker")} share ${many(slots.owners.length, "slot")}; the fullest has ${percent(Math.max(even.peak - 1, 0))} more than its part`;
  const verdict = $("verdict");
  verdict.dataset.state = found[0]?.style ?? "good";
  const text = found.length === 0 ? `All is well: ${sharing}.` : found.map((one) => one.text).join(" ");
  say(verdict, text);
  $("acknowledge").hidden = vanished.unacknowledged(state).length === 0;
  const [agreed, how] = AGREE.get(agree(state));
  const ends = own.owned_for_ms === null ? "owns nothing" : `owns for ${lasting(own.owned_for_ms)} more unless renewed`;
  fill(
    $("tiles"),
    tile("Workers", count(members.members.length), active === members.members.length ? "all active" : `${count(active)} active`),
    tile("Do they agree?", agreed, how),
    tile("Peak over mean", even === null ? "–" : ratio(even.peak), even === null ? "no slots" : `least ${ratio(even.least)}`),
    state.observed ? tile("This sidecar", "observes", "it is no member of the group") : tile("This worker", own.slots_owned === null ? own.state : many(own.slots_owned, "slot"), own.slots_owned === null ? ends : `${own.state}; ${ends}`),
    state.observed ? tile("Proven", own.view_age_ms === null ? "–" : `${lasting(own.view_age_ms)} ago`, `a record lives ${lasting(state.ttl)}`) : tile("Renewed", own.renewed_ms_ago === null ? "–" : `${lasting(own.renewed_ms_ago)} ago`, `a record lives ${lasting(state.ttl)}`),
    tile("View", String(own.revision), own.viewed_ms_ago === null ? own.view_fingerprint.slice(0, 12) : `${own.view_fingerprint.slice(0, 12)}, for ${lasting(own.viewed_ms_ago)}`),
  );
}

/** The sidecar does not answer: nothing that is shown says how it is now. */
export function old(since) {
  const verdict = $("verdict");
  verdict.dataset.state = "bad";
  say(verdict, `Not known: the sidecar has not answered since ${since}. What you see is from then.`);
}

export function begin(current) {
  $("acknowledge").addEventListener("click", () => {
    const state = current();
    if (!state?.own) return;
    vanished.acknowledge(state);
    show(state);
  });
}
