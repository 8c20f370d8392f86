// What has moved, the newest first. The sidecar keeps the latest; new ones come as events.

import { $, clock, count, fill, h, lasting, many, percent, say, table } from "./dom.js";

/** So many are shown. */
const SHOWN = 60;
/** As many as the sidecar keeps. */
const KEPT = 256;

let events = [];
let hasGap = false;

const names = (ids, total) => {
  const first = ids.slice(0, 3).join(", ");
  return total > 3 ? `${first} and ${count(total - 3)} more` : first;
};

/** What a member announces before it is gone; an operator's drain looks the same and keeps it. */
const LEAVES = { draining: "drains: it leaves, or an operator drained it", pausing: "leaves for a while", away: "is away" };

/** Whose state or weight has changed, and how. */
function changed(event) {
  const words = event.members_changed.map(({ instance_id, state, weight }) => {
    if (state !== null && LEAVES[state[1]] !== undefined) return `${instance_id} ${LEAVES[state[1]]}`;
    const parts = [state === null ? "" : `${state[0]} → ${state[1]}`, weight === null ? "" : `weight ${weight[0]} → ${weight[1]}`];
    return `${instance_id}: ${parts.filter((part) => part !== "").join(", ")}`;
  });
  return words.length > 3 ? `${words.slice(0, 3).join("; ")} and ${count(words.length - 3)} more` : words.join("; ");
}

/** The cause in words. */
function cause(event) {
  const came = event.joined > 0 ? `${names(event.members_joined, event.joined)} came` : "";
  const announced = event.members_left.filter((id) => !event.members_vanished.includes(id));
  const left = event.left > event.vanished ? `${names(announced, event.left - event.vanished)} left` : "";
  const vanished = event.vanished > 0 ? `${names(event.members_vanished, event.vanished)} vanished` : "";
  const who = [came, left, vanished, changed(event)].filter((part) => part !== "").join("; ");
  const words = {
    joined: "this worker joined",
    members_changed: who === "" ? "the record of a worker changed" : who,
    member_gate: "the number of workers passed min_members",
    policy_changed: "the group went over to another placement",
    fenced: "this worker lost its lease or its view, and stopped",
    draining: "this worker is leaving",
    refused: "the group does not accept this worker",
    claim_lost: "another member holds the claim",
    owner_absent: "the owner did not claim its slots",
  };
  return words[event.cause] ?? event.cause;
}

function row(event) {
  const slots = [event.gained > 0 ? `+${count(event.gained)}` : "", event.lost > 0 ? `−${count(event.lost)}` : ""].filter((part) => part !== "").join(" ");
  const moved =
    event.moved_share === null
      ? "–"
      : h("span", { class: "moved" }, h("i", { class: "bar", style: { width: `${Math.max(event.moved_share * 100, 1)}%` } }), h("span", {}, percent(event.moved_share)));
  const style = ["fenced", "refused", "claim_lost"].includes(event.cause) ? "bad" : event.vanished > 0 ? "warn" : "plain";
  return {
    props: { data: { event: event.id } },
    cells: [
      h("time", { datetime: event.at }, clock(new Date(event.at))),
      h("span", {}, h("span", { class: `pill ${style}` }, event.cause.replaceAll("_", " ")), " ", cause(event)),
      moved,
      slots === "" ? "–" : slots,
      event.took_ms === 0 ? "at once" : lasting(event.took_ms),
      count(event.members),
    ],
  };
}

function show() {
  const heads = ["When", "Why", "Moved", "Slots", "Took", "Workers"];
  const rows = events.slice(-SHOWN).reverse().map(row);
  const note = hasGap ? h("p", { class: "hint" }, "Older changes are no longer stored.") : null;
  fill($("timeline"), note, rows.length === 0 ? h("p", { class: "hint" }, "Nothing has moved since this sidecar started.") : table("What has moved, the newest first", heads, rows, [3, 4, 5]));
}

export const latest = () => events[events.length - 1];

/** All that is kept. */
export function take(past) {
  events = past.rebalances;
  hasGap = false;
  show();
}

/** Adds an event; one that is known already is not shown twice. */
export function add(event) {
  if (events.some((known) => known.id === event.id)) return;
  events = [...events, event].slice(-KEPT);
  say($("timeline-said"), `${clock(new Date(event.at))}: ${cause(event)}${event.moved_share === null ? "" : `, ${percent(event.moved_share)} of the keys`}. ${many(event.members, "worker")}.`);
  show();
}

export function gap() {
  hasGap = true;
  show();
}
