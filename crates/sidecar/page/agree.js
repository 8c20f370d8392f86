// Do the workers agree? This worker knows what it sees itself; the others are asked through it.

import { $, fill, h, lasting, many, say, table } from "./dom.js";
import { look } from "./api.js";
import { chip } from "./ring.js";

/** Groups up to this size are asked by themselves, larger ones when the button is pressed. */
const ASKED_ALWAYS = 16;
const ASK_EVERY = 5000;
/** As long as they see different groups. */
const ASK_AGAIN = 1000;
const AT_A_TIME = 4;
/** In the record of those who take requests. */
const LISTENS = "shardwise.requests";

/** By worker: its `status` or `why` there is none, and `under` which view of this worker's it was asked. */
let answers = new Map();
let asking = false;
let asked = 0;
let askedUnder = "";
let drawn = "";

/** What a worker said of itself; `undefined` if it was not asked or did not answer. */
export const statusOf = (id) => answers.get(id)?.status;

/** Asked where no handler of the worker's own can stand. */
async function askOne(state, member) {
  const id = member.instance_id;
  const under = state.own.view_fingerprint;
  if (id !== state.own.instance_id && member.metadata?.[LISTENS] === undefined) return { why: "it takes no requests", under };
  try {
    const status = await look(state.policy, `instances/${encodeURIComponent(id)}/shardwise/status`);
    return typeof status?.view_fingerprint === "string" ? { status, under } : { why: "what it answers is no worker's status", under };
  } catch (error) {
    return { why: error.message, under };
  }
}

/** Asks all of them, this one too, a few at a time. */
async function askAll(state) {
  if (asking) return;
  asking = true;
  askedUnder = state.own.view_fingerprint;
  const rest = [...state.members.members];
  const there = new Set(rest.map((member) => member.instance_id));
  const mine = new Map([...answers].filter(([id]) => there.has(id)));
  answers = mine;
  const lanes = Array.from({ length: AT_A_TIME }, async () => {
    for (let member = rest.pop(); member !== undefined && answers === mine; member = rest.pop()) mine.set(member.instance_id, await askOne(state, member));
  });
  await Promise.all(lanes);
  // Meanwhile another group may have been chosen.
  if (answers !== mine) return;
  asking = false;
  asked = Date.now();
  state.refresh();
}

/** Who sees what: this worker, and those that answered. What was asked before this worker's view changed says nothing, unless it is the new view already. */
export function views(state) {
  const { own } = state;
  const others = state.members.members.filter((member) => member.instance_id !== own.instance_id);
  const view = (id) => {
    const answer = answers.get(id) ?? {};
    const isNow = answer.under === own.view_fingerprint || answer.status?.view_fingerprint === own.view_fingerprint;
    return answer.under === undefined || isNow ? { id, ...answer } : { id, why: "not asked since the change", isOld: true };
  };
  // Of itself the sidecar tells the newest with every look.
  const age = statusOf(own.instance_id)?.view_age_ms;
  return [{ id: own.instance_id, status: { ...own, view_age_ms: age } }, ...others.map((member) => view(member.instance_id))];
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
  if (known.length === 1 && all.some((view) => view.isOld)) return "Not known: the group has changed since the others were asked.";
  if (known.length === 1) return "Only what this worker sees itself is known: no other has been asked, or none answered.";
  const rest = all.length - known.length;
  const silent = rest === 0 ? "" : ` ${many(rest, "worker")} did not say.`;
  if (others.length === 0) return `Yes: ${many(known.length, "worker")} see the same group.${silent}`;
  const again = all.length > ASKED_ALWAYS ? "ask again, and if it stays" : "if it stays";
  return `No: ${others.map((view) => view.id).join(", ")} see${others.length === 1 ? "s" : ""} another group than this worker. For a moment around a change that is so; ${again}, look at their logs.${silent}`;
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

/** Small groups are asked now and then, and at once when this worker's view is another one. */
function isDue(state) {
  if (askedUnder !== state.own.view_fingerprint) return true;
  return Date.now() - asked >= (agree(state) === false ? ASK_AGAIN : ASK_EVERY);
}

export function show(state) {
  const all = views(state);
  say($("agree-said"), told(all, state));
  $("ask-all").hidden = all.length === 1;
  const now = JSON.stringify([state.policy, state.own.revision, state.own.view_fingerprint, state.members.revision, asked]);
  if (all.length > ASKED_ALWAYS && now === drawn) return;
  drawn = now;
  fill($("agree"), table("What each worker sees", ["Worker", "View", "Revision", "Proven ago", "Owns for", "The same?"], all.map((view) => row(view, state)), [2]));
  if (all.length > 1 && all.length <= ASKED_ALWAYS && isDue(state)) askAll(state);
}

export function begin(current) {
  $("ask-all").addEventListener("click", async () => {
    const state = current();
    if (!state?.own) return;
    $("ask-all").disabled = true;
    await askAll(state);
    $("ask-all").disabled = false;
  });
}

/** Another group: nothing is known of it. */
export function forget() {
  answers = new Map();
  asking = false;
  asked = 0;
  askedUnder = "";
}
