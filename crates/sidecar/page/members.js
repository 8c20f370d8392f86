// The workers, and what an operator may do to them.

import { $, ask, count, h, lasting, percent, refill, say, table } from "./dom.js";
import { actOn, post } from "./api.js";
import { statusOf } from "./agree.js";
import { chip } from "./ring.js";

/** From so many on there is a field to choose by. */
const FILTERED = 12;
const STATES = {
  active: ["good", "takes its share"],
  draining: ["warn", "is leaving: it gives its share away"],
  drained: ["warn", "an operator wants it to stay and own nothing"],
  pausing: ["warn", "is leaving for a while and keeps its place"],
  away: ["warn", "has left for a while and keeps its place"],
};

/** How long what was done is told. */
const NOTICE = 20000;

let last = null;
let drawn = "";
let notice = { text: "", until: 0 };

function renewed(member, state) {
  if (member.instance_id === state.own.instance_id) return h("span", { id: "own-renewed" }, `${lasting(state.own.renewed_ms_ago)} ago`);
  const told = statusOf(member.instance_id)?.renewed_ms_ago;
  if (told !== undefined && told !== null) return h("span", { class: "told-renewed", title: "So it said when it was asked last." }, `${lasting(told)} ago`);
  return h("span", { title: "The backend keeps a worker in the group only while it renews." }, `less than ${lasting(state.ttl)} ago`);
}

/** Asks, says what would move, and does it. */
function wish(member, state, drained) {
  const id = member.instance_id;
  const text = [h("p", {}, drained ? `${id} stays in the group and owns nothing, over its restarts too, until it is taken back.` : `${id} takes its share again.`)];
  if (drained) {
    // It is asked at once, and told when it is known.
    const moves = h("p", { role: "status" }, "How much would move is being asked.");
    text.push(moves);
    post(state.policy, "plan", { leave: [id] }).then(
      (plan) => say(moves, plan.after.members === 0 ? "Nobody else is there: then nobody owns anything." : `About ${percent(plan.moved_share)} of all keys get another owner.`),
      () => say(moves, "How much would move could not be told."),
    );
  }
  ask(drained ? `Drain ${id}?` : `Take ${id} back?`, text, drained ? "Drain it" : "Take it back", async () => {
    const heard = await actOn(state.policy, drained ? "drain" : "undrain", { instance_id: id });
    notice = { text: heard.changed ? `${id} hears of it within ${lasting(state.ttl)}.` : `${id} was ${drained ? "drained" : "taken back"} already.`, until: Date.now() + NOTICE };
    state.refresh();
  });
}

function action(member, state, drained) {
  const button = (text, wanted) => h("button", { type: "button", class: "small", disabled: !state.mayAct, onclick: () => wish(member, state, wanted) }, text, h("span", { class: "visually-hidden" }, ` ${member.instance_id}`));
  if (drained) return button("Take back", false);
  return member.state === "active" ? button("Drain", true) : "";
}

function row(member, state, total) {
  const drained = state.drained.includes(member.instance_id);
  const name = drained && member.state === "draining" ? "drained" : member.state;
  const [style, means] = STATES[name] ?? ["warn", name];
  const slots = member.slots === null ? "–" : `${count(member.slots)}${total > 0 ? ` (${percent(member.slots / total)})` : ""}`;
  const uncounted = member.state === "active" && state.slots.placement !== null && !state.slots.members.some((one) => one.instance_id === member.instance_id);
  return [
    h("span", {}, chip(member.instance_id), member.instance_id, member.instance_id === state.own.instance_id ? h("span", { class: "tag" }, "this one") : null),
    h("span", { class: `pill ${uncounted ? "bad" : style}`, title: means }, uncounted ? "not counted" : name),
    slots,
    String(member.weight),
    member.zone ?? "–",
    member.version ?? "–",
    member.address ?? "–",
    renewed(member, state),
    action(member, state, drained),
  ];
}

function draw(state, wanted) {
  const all = state.members.members;
  const chosen = wanted === "" ? all : all.filter((member) => [member.instance_id, member.zone, member.version].some((text) => text?.toLowerCase().includes(wanted)));
  const total = state.slots.owners?.length ?? 0;
  const heads = ["Worker", "State", "Slots", "Weight", "Zone", "Version", "Address", "Renewed", "Action"];
  refill($("members"), table("Workers of the group", heads, chosen.map((member) => row(member, state, total)), [2, 3]));
}

export function show(state) {
  last = state;
  const wanted = $("filter").value.trim().toLowerCase();
  const all = state.members.members;
  $("filter-label").hidden = all.length < FILTERED;
  const now = JSON.stringify([state.policy, state.mayAct, state.members.revision, state.slots.revision, state.drained, wanted, all.map((member) => statusOf(member.instance_id)?.renewed_ms_ago)]);
  if (now !== drawn) draw(state, wanted);
  drawn = now;
  if ($("own-renewed")) say($("own-renewed"), `${lasting(state.own.renewed_ms_ago)} ago`);
  const foreign = state.members.foreign.length === 0 ? "" : `Of the same name, but none of ours: ${state.members.foreign.join(", ")}. `;
  const may = state.mayAct ? "" : "Nobody may drain from here: this sidecar was started without --token-file.";
  say($("members-said"), Date.now() < notice.until ? notice.text : `${foreign}${may}`);
}

export function begin() {
  $("filter").addEventListener("input", () => last && show(last));
}
