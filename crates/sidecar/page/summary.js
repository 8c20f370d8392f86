// In short: is all well, and if not, what to do.

import { $, count, fill, h, lasting, many, percent, ratio, say } from "./dom.js";
import { agree } from "./agree.js";
import { silent } from "./members.js";
import * as others from "./others.js";
import * as outbox from "./outbox.js";
import { evenness } from "./shares.js";
import { ofGroup } from "./troubles.js";
import * as vanished from "./vanished.js";

const RANK = { bad: 0, warn: 1, note: 2 };

/** What is wrong with the group on the page, the outbox and the sidecar's other groups, the worst first; each with how bad it is. */
function troubles(state) {
  const found = [...outbox.troubles(), ...ofGroup(state)];
  const add = (style, text) => found.push({ style, text });
  const quiet = silent(state).map((one) => one.instance_id);
  if (quiet.length > 0) add("warn", `No renewal for more than half the TTL: ${quiet.slice(0, 3).join(", ")}${quiet.length > 3 ? " and more" : ""}. A worker that hangs loses its share when its lease expires.`);
  if (agree(state) === false) add("warn", "Workers see different groups. Around a change that is normal for a moment.");
  return [...found, ...others.troubles()].sort((one, other) => RANK[one.style] - RANK[other.style]);
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
  const leased = own.lease_ends_in_ms === null ? "" : `; its lease lasts ${lasting(own.lease_ends_in_ms)} more`;
  fill(
    $("tiles"),
    tile("Workers", count(members.members.length), members.members.length === 0 ? "no workers" : active === members.members.length ? "all active" : `${count(active)} active`),
    tile("Do they agree?", agreed, how),
    tile("Peak over mean", even === null ? "–" : ratio(even.peak), even === null ? "no slots" : `least ${ratio(even.least)}`),
    state.observed ? tile("This sidecar", "observes", "it is not a member of the group") : tile("This worker", own.slots_owned === null ? own.state : many(own.slots_owned, "slot"), `${own.slots_owned === null ? "" : `${own.state}; `}${ends}${leased}`),
    state.observed ? tile("Proven", own.view_age_ms === null ? "–" : `${lasting(own.view_age_ms)} ago`, `a record lives ${lasting(state.ttl)}`) : tile("Renewed", own.renewed_ms_ago === null ? "–" : `${lasting(own.renewed_ms_ago)} ago`, `a record lives ${lasting(state.ttl)}`),
    tile("View", String(own.revision), own.viewed_ms_ago === null ? own.view_fingerprint.slice(0, 12) : `${own.view_fingerprint.slice(0, 12)}, for ${lasting(own.viewed_ms_ago)}`),
  );
}

/** The sidecar does not answer, or refuses: nothing that is shown says how it is now. */
export function old(why) {
  const verdict = $("verdict");
  verdict.dataset.state = "bad";
  say(verdict, `Not known: ${why.replace("The", "the").replace(/\.$/, "")}. The page shows the last known state.`);
}

export function begin(current) {
  $("acknowledge").addEventListener("click", () => {
    const state = current();
    if (!state?.own) return;
    vanished.acknowledge(state);
    show(state);
  });
}
