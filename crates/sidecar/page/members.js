// The workers, and what an operator may do to them.

import { $, ask, count, h, lasting, percent, refill, say, table } from "./dom.js";
import { actOn, post } from "./api.js";
import { held } from "./holders.js";
import { oldAfter, provenAt } from "./agree.js";
import { chip } from "./ring.js";

/** From so many on there is a field to choose by. */
const FILTERED = 12;
const STATES = {
  active: ["good", "takes its share"],
  draining: ["warn", "is leaving: it gives its share away"],
  "drain requested": ["warn", "an operator drained it; it sees that within a TTL"],
  drained: ["warn", "an operator drained it: it stays and owns nothing"],
  pausing: ["warn", "is leaving for a while and keeps its place"],
  away: ["warn", "has left for a while and keeps its place"],
};

/** A sidecar's worker that is watched and does not work. */
const WORKERS = {
  absent: () => ["warn", "its worker has not been seen yet, or has no lease: it owns nothing"],
  failing: (isActive) => ["warn", isActive ? "its worker's checks fail" : "its worker's checks fail: it owns nothing until they succeed"],
};

/** How often the page asks its own sidecar. */
const OWN_EVERY = 1000;
/** How long the result of an action is shown. */
const NOTICE = 20000;

let last = null;
let drawn = "";
let notice = { text: "", until: 0 };

const isMe = (member, state) => !state.observed && member.instance_id === state.own.instance_id;

/** How long ago a worker is known to have renewed; `null` if it cannot be asked. It counts up while there is no new proof. */
function age(member, state) {
  if (isMe(member, state)) return state.own.renewed_ms_ago === null ? null : state.own.renewed_ms_ago + (Date.now() - state.ownAt);
  const proven = provenAt(member.instance_id, state);
  return proven === undefined ? null : Date.now() - proven;
}

/** Members without a renewal for so long that something is wrong with them. */
export const silent = (state) => state.members.members.filter((member) => member.state !== "away" && age(member, state) > (isMe(member, state) ? state.ttl / 2 + OWN_EVERY : oldAfter(state)));

/** Writes how old the latest proof of each worker in the table is now. */
export function tick(state) {
  for (const node of document.querySelectorAll("#members [data-age]")) {
    const member = state.members.members.find((one) => one.instance_id === node.dataset.age);
    const ms = member === undefined ? null : age(member, state);
    // The backend shows no member whose lease has ended, as of the backend's last proof.
    say(node, ms === null ? `less than ${lasting(state.ttl + (state.own.view_age_ms ?? 0))} ago` : `${lasting(ms)} ago`);
    node.title = ms === null ? "This worker cannot be asked. It is listed because its lease is being renewed." : "Estimated from its last report.";
    node.classList.toggle("late", member !== undefined && silent(state).includes(member));
  }
}

/** Asks, says what would move, and does it. */
function wish(member, state, drained) {
  const id = member.instance_id;
  const text = [h("p", {}, drained ? `${id} stays in the group and owns nothing, even after restarts, until it is undrained.` : `${id} takes its share again.`)];
  if (drained) {
    // The request is sent at once; its answer is shown when it arrives.
    const moves = h("p", { role: "status" }, "Computing how much would move…");
    text.push(moves);
    post(state.policy, "plan", { leave: [id] }).then(
      (plan) => say(moves, plan.after.members === 0 ? "There is no other worker: no key would have an owner." : `About ${percent(plan.moved_share)} of all keys get another owner.`),
      () => say(moves, "How much would move could not be computed."),
    );
  }
  ask(drained ? `Drain ${id}?` : `Take ${id} back?`, text, drained ? "Drain it" : "Take it back", async () => {
    const heard = await actOn(state.policy, drained ? "drain" : "undrain", { instance_id: id });
    notice = { text: heard.changed ? `${id} sees it within ${lasting(state.ttl)}.` : `${id} was ${drained ? "drained" : "taken back"} already.`, until: Date.now() + NOTICE };
    // The wish shows before it is heard.
    state.seen = "";
    state.refresh();
  });
}

function action(member, state, drained) {
  const button = (text, wanted) => h("button", { type: "button", class: "small", disabled: !state.mayAct, onclick: () => wish(member, state, wanted) }, text, h("span", { class: "visually-hidden" }, ` ${member.instance_id}`));
  if (drained) return button("Take back", false);
  // A member that is drained because its worker does not work can be drained by an operator too: that lasts after the worker works again.
  const isIdle = member.state === "draining" && member.worker !== null;
  return member.state === "active" || isIdle ? button("Drain", true) : "";
}

function row(member, state, total, holds) {
  const drained = state.drained.includes(member.instance_id);
  const name = drained && member.state === "draining" ? "drained" : drained && member.state === "active" ? "drain requested" : member.state;
  const [style, means] = WORKERS[member.worker]?.(member.state === "active") ?? STATES[name] ?? ["warn", name];
  const slots = member.slots === null ? "–" : `${count(member.slots)}${total > 0 ? ` (${percent(member.slots / total)})` : ""}`;
  const uncounted = member.state === "active" && state.slots.placement !== null && !state.slots.members.some((one) => one.instance_id === member.instance_id);
  return [
    h("span", {}, chip(member.instance_id), member.instance_id, isMe(member, state) ? h("span", { class: "tag" }, "this one") : null),
    h("span", { class: `pill ${uncounted ? "bad" : style}`, title: means }, uncounted ? "not counted" : { absent: "no worker", failing: "worker fails" }[member.worker] ?? name),
    slots,
    ...(holds === null ? [] : [count(holds.get(member.instance_id) ?? 0)]),
    String(member.weight),
    member.zone ?? "–",
    member.version ?? "–",
    member.address ?? "–",
    h("span", { data: { age: member.instance_id } }),
    action(member, state, drained),
  ];
}

function draw(state, wanted) {
  const all = state.members.members;
  const chosen = wanted === "" ? all : all.filter((member) => [member.instance_id, member.zone, member.version].some((text) => text?.toLowerCase().includes(wanted)));
  const total = state.slots.owners?.length ?? 0;
  const holds = held(state);
  const more = holds === null ? [] : ["Holds"];
  const heads = ["Worker", "State", "Slots", ...more, "Weight", "Zone", "Version", "Address", "Renewed", "Action"];
  refill($("members"), table("Workers of the group", heads, chosen.map((member) => row(member, state, total, holds)), holds === null ? [2, 3] : [2, 3, 4]));
}

export function show(state) {
  last = state;
  const wanted = $("filter").value.trim().toLowerCase();
  const all = state.members.members;
  $("filter-label").hidden = all.length < FILTERED;
  const now = JSON.stringify([state.policy, state.mayAct, state.members.revision, state.slots.revision, state.claimsSeen, Boolean(state.claimsError), state.drained, wanted]);
  if (now !== drawn) draw(state, wanted);
  drawn = now;
  tick(state);
  const foreign = state.members.foreign.length === 0 ? "" : `Of the same name, but none of ours: ${state.members.foreign.join(", ")}. `;
  const may = state.mayAct ? "" : "Draining and replaying are off: this sidecar was started without --token-file.";
  say($("members-said"), Date.now() < notice.until ? notice.text : `${foreign}${may}`);
}

export function begin() {
  $("filter").addEventListener("input", () => last && show(last));
}
