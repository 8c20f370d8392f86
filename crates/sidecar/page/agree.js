// Do the workers agree? This worker knows what it sees itself; the others are asked through it.

import { $, fill, h, lasting, many, say, table } from "./dom.js";
import { fetchOf } from "./api.js";
import { chip } from "./ring.js";

/** Groups up to this size are asked by themselves, larger ones when the button is pressed. */
const ASKED_ALWAYS = 64;
/** A part of the TTL passes between two rounds, and no more and no less than this. */
const ROUNDS_PER_TTL = 4;
const [ASK_MIN, ASK_MAX] = [1000, 5000];
/** As long as they see different groups. */
const ASK_AGAIN = 1000;
const AT_A_TIME = 8;
/** In the record of those who take requests. */
const LISTENS = "shardwise.channel";

/** By worker: its `status` or `why` there is none, and `under` which view of this worker's it was asked. */
let answers = new Map();
let asking = false;
let asked = 0;
/** When the latest round began. */
let begun = 0;
/** By worker: the latest moment at which it is known to have renewed, as it reported. */
let proofs = new Map();
let askedUnder = "";
let drawn = "";

/** How often the workers are asked. */
export const interval = (state) => Math.min(Math.max(state.ttl / ROUNDS_PER_TTL, ASK_MIN), ASK_MAX);

/** When a worker is known to have renewed last; `undefined` if it has never said so. Of a large group only as long as the answers are new: no one asks
 *  again, and what is old then says nothing of the worker. */
export function provenAt(id, state) {
  const isCurrent = state.members.members.length <= ASKED_ALWAYS || Date.now() - begun < oldAfter(state);
  return isCurrent ? proofs.get(id) : undefined;
}

/** After so long without a renewal something is wrong with a worker: it renews every third of the TTL, and is asked once in an interval. */
export const oldAfter = (state) => state.ttl / 2 + interval(state);

const isMe = (state, id) => !state.observed && id === state.own.instance_id;

/** Asked where no handler of the worker's own can stand. */
async function askOne(state, member) {
  const id = member.instance_id;
  const under = state.own.view_fingerprint;
  if (!isMe(state, id) && member.metadata?.[LISTENS] === undefined) return { why: "it takes no requests", under };
  try {
    const status = await fetchOf(state.policy, `instances/${encodeURIComponent(id)}/shardwise/status`, interval(state));
    if (typeof status?.renewed_ms_ago === "number") proofs.set(id, Date.now() - status.renewed_ms_ago);
    return typeof status?.view_fingerprint === "string" ? { status, under } : { why: "what it answers is not a worker's status", under };
  } catch (error) {
    // The same words for all, so that they are said once.
    return { why: error.message.replaceAll(id, "it"), under };
  }
}

/** Asks all of them, this one too, a few at a time. */
async function askAll(state) {
  if (asking) return;
  asking = true;
  begun = Date.now();
  askedUnder = state.own.view_fingerprint;
  const rest = [...state.members.members];
  const there = new Set(rest.map((member) => member.instance_id));
  const mine = new Map([...answers].filter(([id]) => there.has(id)));
  proofs = new Map([...proofs].filter(([id]) => there.has(id)));
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
  const others = state.members.members.filter((member) => !isMe(state, member.instance_id));
  const view = (id) => {
    const answer = answers.get(id) ?? {};
    const isNow = answer.under === own.view_fingerprint || answer.status?.view_fingerprint === own.view_fingerprint;
    return answer.under === undefined || isNow ? { id, ...answer } : { id, why: "not asked since the change", isOld: true };
  };
  // The sidecar's own data is new with every poll.
  return [{ id: state.observed ? "this sidecar" : own.instance_id, isHere: true, status: own }, ...others.map((member) => view(member.instance_id))];
}

/** What each worker that was asked has answered, by its name: this one too. */
export const statuses = () => new Map([...answers].filter(([, answer]) => answer.status !== undefined).map(([id, answer]) => [id, answer.status]));

/** `null` while only this worker is known, else whether all that answered see the same. */
export function agree(state) {
  const known = views(state).filter((view) => view.status !== undefined);
  if (known.length < 2 && (state.members.members.length > 1 || state.observed)) return null;
  return known.every((view) => view.status.view_fingerprint === state.own.view_fingerprint);
}

/** Why several workers did not say, if all of these say the same: that is said once, and not for each. */
function common(all) {
  const reasons = all.filter((view) => view.why !== undefined && !view.isOld).map((view) => view.why);
  return reasons.length > 1 && reasons.every((why) => why === reasons[0]) ? reasons[0] : null;
}

function verdict(all, state) {
  const known = all.filter((view) => view.status !== undefined);
  const others = known.filter((view) => view.status.view_fingerprint !== state.own.view_fingerprint);
  if (all.length === 1) return state.observed ? "There are no workers." : "There is only this worker.";
  if (known.length === 1 && all.some((view) => view.isOld)) return "Not known: the group has changed since the others were asked.";
  if (known.length === 1 && common(all) === null) return "Only this worker's view is known: no other worker was asked, or none answered.";
  const rest = all.length - known.length;
  const why = common(all);
  const silent = rest === 0 ? "" : why !== null ? ` ${many(rest, "worker")} did not say: ${why}.` : ` ${many(rest, "worker")} did not say.`;
  if (known.length === 1) return `Only this worker's view is known.${silent}`;
  if (others.length === 0) return `Yes: ${many(known.length, "worker")} see the same group.${silent}`;
  const again = all.length > ASKED_ALWAYS ? "Ask again; if it lasts" : "If it lasts";
  return `No: ${others.map((view) => view.id).join(", ")} see${others.length === 1 ? "s" : ""} another group than this worker. This is normal for a moment around a change. ${again}, look at their logs.${silent}`;
}

function row(view, state, why) {
  const { status } = view;
  const name = h("span", {}, view.isHere && state.observed ? null : chip(view.id), view.id, view.isHere && !state.observed ? h("span", { class: "tag" }, "this one") : null);
  if (status === undefined) return [name, "unknown", "–", "–", "–", view.why === why ? "did not say" : (view.why ?? "not asked")];
  const same = status.view_fingerprint === state.own.view_fingerprint;
  const age = status.view_age_ms === null || status.view_age_ms === undefined ? "–" : lasting(status.view_age_ms);
  const owns = status.owned_for_ms === null ? "owns nothing" : lasting(status.owned_for_ms);
  const mark = h("span", { class: same ? "pill good" : "pill bad" }, same ? "same" : "other");
  return [name, h("code", {}, status.view_fingerprint.slice(0, 12)), String(status.revision), age, owns, mark];
}

/** Small groups are asked now and then, and at once when this worker's view is another one. */
function isDue(state) {
  if (askedUnder !== state.own.view_fingerprint) return true;
  return Date.now() - begun >= (agree(state) === false ? ASK_AGAIN : interval(state));
}

export function show(state) {
  const all = views(state);
  say($("agree-said"), verdict(all, state));
  $("ask-all").hidden = all.length === 1;
  const now = JSON.stringify([state.policy, state.own.revision, state.own.view_fingerprint, state.members.revision, asked]);
  if (all.length > ASKED_ALWAYS && now === drawn) return;
  drawn = now;
  fill($("agree"), table("What each worker sees", ["Worker", "View", "Revision", "Proven ago", "Owns for", "Same?"], all.map((view) => row(view, state, common(all))), [2]));
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
  begun = 0;
  proofs = new Map();
  askedUnder = "";
}
