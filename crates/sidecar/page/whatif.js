// What would move if some left and others joined. Nothing is changed by asking.

import { $, fill, h, many, percent, ratio, table } from "./dom.js";
import { post } from "./api.js";
import { chip } from "./ring.js";

/** After the last tick so long, then it is asked. */
const PAUSE = 250;
/** So many moves are listed. */
const LISTED = 40;

let leaving = new Set();
let joining = [];
let known = "";
let timer = null;
let asked = 0;
let current = () => null;

function later() {
  clearTimeout(timer);
  timer = setTimeout(plan, PAUSE);
}

function moves(plan) {
  const name = (id) => (id === null ? "(no worker)" : h("span", {}, chip(id), id));
  const bar = (share) => h("span", { class: "moved" }, h("i", { class: "bar", style: { width: `${Math.max((share / Math.max(plan.moved_share, 1e-9)) * 100, 1)}%` } }), h("span", {}, percent(share, 2)));
  const rows = plan.moves.slice(0, LISTED).map((move) => [name(move.from), name(move.to), bar(move.share)]);
  const rest = plan.moves.length > LISTED ? h("p", { class: "hint" }, `and ${many(plan.moves.length - LISTED, "smaller move")}`) : null;
  return [h("div", { class: "scroll" }, table("What would move", ["From", "To", "Share of all keys"], rows)), rest];
}

async function plan() {
  const state = current();
  asked += 1;
  const mine = asked;
  if (!state?.slots || (leaving.size === 0 && joining.length === 0)) {
    fill($("whatif"), h("p", { class: "hint" }, "Tick a worker, or add one."));
    return;
  }
  try {
    const answer = await post(state.policy, "plan", { leave: [...leaving], join: joining });
    if (mine !== asked) return;
    const after = answer.after.members === 0 ? "No worker would be left, and no key would have an owner." : `Then ${many(answer.after.members, "worker")}, peak over mean ${ratio(answer.after.peak)} (now ${ratio(answer.before.peak)}).`;
    fill(
      $("whatif"),
      h("p", { class: "answer", data: { moved: answer.moved_share } }, h("b", {}, percent(answer.moved_share, 2)), ` of the keys would move; between exact shares it would be ${percent(answer.exact_share, 2)}.`),
      h("p", {}, after),
      answer.moves.length > 0 ? moves(answer) : null,
    );
  } catch (error) {
    if (mine === asked) fill($("whatif"), h("p", { class: "refused" }, `No answer: ${error.message}`));
  }
}

function tick(id, wanted) {
  if (wanted) leaving.add(id);
  else leaving.delete(id);
  later();
}

function joiners() {
  const drop = (one) => () => {
    joining = joining.filter((other) => other !== one);
    joiners();
    later();
  };
  fill($("joiners"), joining.map((one) => h("li", {}, `${one.instance_id}${one.weight === undefined ? "" : `, weight ${one.weight}`} `, h("button", { type: "button", class: "small", onclick: drop(one) }, "remove", h("span", { class: "visually-hidden" }, ` ${one.instance_id}`)))));
}

/** The group changed: a worker that is gone needs no tick. */
export function show(state) {
  const ids = state.slots.members.map((member) => member.instance_id);
  const now = JSON.stringify([state.policy, ids, state.slots.revision]);
  if (now === known) return;
  known = now;
  leaving = new Set([...leaving].filter((id) => ids.includes(id)));
  const boxes = ids.map((id) => h("label", {}, h("input", { type: "checkbox", value: id, checked: leaving.has(id), onchange: (event) => tick(id, event.target.checked) }), chip(id), id));
  fill($("leavers"), boxes.length === 0 ? h("span", { class: "hint" }, `no workers`) : boxes);
  later();
}

export function begin(state) {
  current = state;
  $("join-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const [id, typed] = [$("join-id").value.trim(), $("join-weight").value];
    if (id === "" || joining.some((one) => one.instance_id === id)) return;
    // Without a weight the sidecar takes that of a drained worker's record, or 1.
    const weight = typed === "" ? {} : { weight: Number(typed) };
    joining = [...joining, { instance_id: id, ...weight }];
    $("join-id").value = $("join-weight").value = "";
    joiners();
    later();
  });
}

/** Another group. */
export function forget() {
  leaving = new Set();
  joining = [];
  known = "";
  joiners();
}

