// Do the workers agree? This worker knows what it sees itself; the others are asked through it.

import { $, fill, h, lasting, many, say, table } from "./dom.js";
import { look } from "./api.js";
import { chip } from "./ring.js";

/** Groups up to this size are asked by themselves, larger ones when the button is pressed. */
const ASKED_ALWAYS = 16;
const ASK_EVERY = 5000;
const AT_A_TIME = 4;

let answers = new Map();
let asking = false;
let asked = 0;
let drawn = "";

/** What a worker said of itself; `undefined` if it was not asked or did not answer. */
export const statusOf = (id) => answers.get(id)?.status;

async function askOne(policy, id) {
  try {
    answers.set(id, { status: await look(policy, `instances/${encodeURIComponent(id)}/status`) });
  } catch (error) {
    answers.set(id, { why: error.message });
  }
}

/** Asks all of them, this one too, a few at a time. */
async function askAll(state) {
  if (asking) return;
  asking = true;
  const ids = state.members.members.map((member) => member.instance_id);
  answers = new Map([...answers].filter(([id]) => ids.includes(id)));
  const lanes = Array.from({ length: AT_A_TIME }, async () => {
    for (let id = ids.pop(); id !== undefined; id = ids.pop()) await askOne(state.policy, id);
  });
  await Promise.all(lanes);
  asking = false;
  asked = Date.now();
}

/** Who sees what: this worker, and those that answered. */
export function views(state) {
  const asked = answers.get(state.own.instance_id);
  // Of itself the sidecar tells the newest with every look.
  const age = asked?.status?.view_age_ms;
  const own = { id: state.own.instance_id, status: { ...state.own, view_age_ms: age } };
  const others = state.members.members.filter((member) => member.instance_id !== own.id);
  return [own, ...others.map((member) => ({ id: member.instance_id, ...answers.get(member.instance_id) }))];
}

/** `null` while only this worker is known, else whether all that answered see the same. */
export function agree(state) {
  const known = views(state).filter((view) => view.status !== undefined);
  if (known.length < 2 && state.members.members.length > 1) return null;
  return known.every((view) => view.status.view_fingerprint === state.own.view_fingerprint);
}

function told(all, state) {
  const known = all.filter((view) => view.status !== undefined);
  const others = known.filter((view) => view.status.view_fingerprint !== state.own.view_fingerprint);
  if (all.length === 1) return "There is only this worker.";
  if (known.length === 1) return "Only what this worker sees itself is known: no other has been asked, or none answered.";
  const rest = all.length - known.length;
  const silent = rest === 0 ? "" : ` ${many(rest, "worker")} did not say.`;
  if (others.length === 0) return `Yes: ${many(known.length, "worker")} see the same group.${silent}`;
  return `No: ${others.map((view) => view.id).join(", ")} see${others.length === 1 ? "s" : ""} another group than this worker. For a moment around a change that is so; if it stays, look at their logs.${silent}`;
}

function row(view, state) {
  const { status } = view;
  const name = h("span", {}, chip(view.id), view.id, view.id === state.own.instance_id ? h("span", { class: "tag" }, "this one") : null);
  if (status === undefined) return [name, "unknown", "–", "–", "–", view.why ?? "not asked"];
  const same = status.view_fingerprint === state.own.view_fingerprint;
  const age = status.view_age_ms === null || status.view_age_ms === undefined ? "–" : lasting(status.view_age_ms);
  const owns = status.owned_for_ms === null ? "owns nothing" : lasting(status.owned_for_ms);
  const mark = h("span", { class: same ? "pill good" : "pill bad" }, same ? "same" : "other");
  return [name, h("code", {}, status.view_fingerprint.slice(0, 12)), String(status.revision), age, owns, mark];
}

export function show(state) {
  const all = views(state);
  say($("agree-said"), told(all, state));
  $("ask-all").hidden = all.length === 1;
  const now = JSON.stringify([state.policy, state.own.revision, state.members.revision, asked]);
  if (all.length > ASKED_ALWAYS && now === drawn) return;
  drawn = now;
  fill($("agree"), table("What each worker sees", ["Worker", "View", "Revision", "Proven ago", "Owns for", "The same?"], all.map((view) => row(view, state)), [2]));
  if (all.length > 1 && all.length <= ASKED_ALWAYS && Date.now() - asked > ASK_EVERY) askAll(state);
}

export function begin(current) {
  $("ask-all").addEventListener("click", async () => {
    const state = current();
    if (!state?.own) return;
    $("ask-all").disabled = true;
    await askAll(state);
    $("ask-all").disabled = false;
    show(current());
  });
}

/** Another group: nothing is known of it. */
export function forget() {
  answers = new Map();
  asked = 0;
}
