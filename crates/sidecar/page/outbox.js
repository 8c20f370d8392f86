// The outbox: what waits, what is stuck, and sending it again.

import { $, ask, count, fill, h, lasting, many, refill, say, table } from "./dom.js";
import { act, get } from "./api.js";

/** A database is asked more seldom than the sidecar. */
const POLL_EVERY = 5000;
const WHO = "shardwise-who";

/** What keeps events from being delivered, in words. */
const CAUSES = { no_publisher: "no living publisher", old_backlog: "old backlog", not_restored: "not restored" };

let mayAct = false;
let name = null;
/** The latest answer, the one before it, when it came, and why there is none since. */
let latest = { status: null, before: null, at: 0, error: null };
let timer = null;
let drawn = "";
let notice = "";

const tile = (name, value, more) => h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("span", {}, more)));

/** Asks who and why, for the outbox's own record, and sends the event again. */
function replay(letter) {
  const who = h("input", { required: true, maxlength: 200, value: sessionStorage.getItem(WHO) ?? "" });
  const why = h("input", { required: true, maxlength: 400 });
  const means = letter.state === "parked" ? "It becomes the newest event of its aggregate: it is late, and marked as replayed." : "Its aggregate tries it again, in order.";
  const text = [h("p", {}, `${letter.event_type} of ${letter.key}. ${means}`), h("p", { class: "line" }, h("label", {}, "Your name", who), h("label", {}, "Why", why))];
  ask(`Send ${letter.id} again?`, text, "Send it again", async () => {
    if (who.value.trim() === "" || why.value.trim() === "") throw new Error("Your name and the reason go into the outbox's record: both are needed.");
    sessionStorage.setItem(WHO, who.value);
    const done = await act("/v1/outbox/replay", { id: letter.id, who: who.value, reason: why.value });
    notice = done.done === null ? `${letter.id} is not stuck any more; nothing was done.` : `${letter.id}: ${done.done}${done.sequence === null ? "" : `, its sequence is now ${done.sequence}`}.`;
    poll();
  });
}

function row(letter) {
  const button = h("button", { type: "button", class: "small", disabled: !mayAct, onclick: () => replay(letter) }, "Replay", h("span", { class: "visually-hidden" }, ` ${letter.id}`));
  return [h("code", {}, letter.id), letter.key, letter.event_type, h("span", { class: `pill ${letter.state === "parked" ? "warn" : "bad"}` }, letter.state), lasting(letter.dead_for_ms), letter.error, button];
}

/** Whether the oldest event that waits is younger than at the poll before: the backlog is being worked off. */
function falls(status, before) {
  return before !== null && before.oldest_pending_age_ms !== null && (status.oldest_pending_age_ms === null || status.oldest_pending_age_ms < before.oldest_pending_age_ms);
}

/** What is wrong, the worst first; `isChosen` is what an operator or a policy has decided. */
function found(status, before) {
  const all = [];
  const add = (style, text, isChosen = false) => all.push({ style, text, isChosen });
  // A sidecar that does not say so knows nothing of it.
  if (!Array.isArray(status.stuck)) add("warn", "It is not known whether events are stuck: this sidecar does not say.");
  const stuck = Array.isArray(status.stuck) ? status.stuck : [];
  const isOld = stuck.length > 0 && stuck.every((one) => one.cause === "old_backlog");
  for (const { cause, detail } of stuck) add(isOld && falls(status, before) ? "warn" : "bad", `Stuck, ${CAUSES[cause] ?? cause}: ${detail.replace(/\.$/, "")}${isOld && falls(status, before) ? "; the oldest event's age falls" : ""}.`);
  if (status.publishers === 0 && status.pending > 0 && !stuck.some((one) => one.cause === "no_publisher")) add("bad", "Events wait, and no publisher is alive.");
  if (status.blocked_aggregates > 0) add("warn", `${many(status.blocked_aggregates, "aggregate")} blocked.`);
  if (status.parked > 0) add("warn", `${many(status.parked, "event")} parked.`, true);
  return all.sort((one, other) => (one.style === "bad" ? 0 : 1) - (other.style === "bad" ? 0 : 1));
}

/** For the page's verdict: what is wrong with the outbox, as far as that is known. Parked events are the operator's own choice, and stay on the card. */
export function troubles() {
  if (name === null) return [];
  const said = (list) => list.map(({ style, text }) => ({ style, text: `Outbox ${name}: ${text}` }));
  if (latest.error !== null) return said([{ style: "bad", text: `it cannot be read: ${latest.error}` }]);
  if (latest.status === null) return said([{ style: "warn", text: "it has not been read yet." }]);
  if (Date.now() - latest.at > 3 * POLL_EVERY) return said([{ style: "bad", text: `it was last read ${lasting(Date.now() - latest.at)} ago.` }]);
  return said(found(latest.status, latest.before).filter((one) => !one.isChosen));
}

function show(status, before) {
  const { dead } = status;
  const wrong = found(status, before);
  const verdict = wrong.length > 0 ? wrong.map((one) => one.text).join(" ") : "Nothing is stuck.";
  const heads = ["Event", "Aggregate", "Type", "Is", "For", "Why", "Action"];
  refill(
    $("outbox"),
    h("p", { class: "verdict", data: { state: wrong[0]?.style ?? "good" } }, verdict),
    h(
      "dl",
      { class: "tiles" },
      tile("Pending", count(status.pending), status.oldest_pending_age_ms === null ? "nothing waits" : `the oldest for ${lasting(status.oldest_pending_age_ms)}`),
      tile("Retrying", count(status.retrying_aggregates), "aggregates"),
      tile("Blocked", count(status.blocked_aggregates), "aggregates wait for an operator"),
      tile("Parked", count(status.parked), "events set aside"),
      tile("Publishers", count(status.publishers), status.free_slots === 0 ? "alive" : `alive; ${many(status.free_slots, "slot")} without one`),
    ),
    dead.length === 0 ? null : h("div", { class: "scroll" }, table("Dead letters", heads, dead.map(row))),
    status.more ? h("p", { class: "hint" }, "There are more: shardwise outbox list.") : null,
    h("p", { role: "status" }, notice),
  );
}

async function poll() {
  clearTimeout(timer);
  try {
    const status = await get("/v1/outbox");
    // A second poll at once, behind a replay, says nothing of how the age moves.
    const before = Date.now() - latest.at >= POLL_EVERY / 2 ? latest.status : latest.before;
    latest = { status, before, at: Date.now(), error: null };
    const now = JSON.stringify([status, falls(status, before), notice]);
    if (now !== drawn) show(status, before);
    drawn = now;
  } catch (error) {
    if (error.status === 401) return;
    latest = { ...latest, error: error.message };
    drawn = "";
    fill($("outbox"), h("p", { class: "refused" }, `The outbox cannot be read: ${error.message}. It is asked again every ${lasting(POLL_EVERY)}.`));
  }
  timer = setTimeout(poll, POLL_EVERY);
}

/** Shows the outbox, if this sidecar has one. */
export function begin(config) {
  mayAct = config.may_act;
  name = config.outbox;
  $("outbox-card").hidden = config.outbox === null;
  if (config.outbox === null) return;
  say($("outbox-title"), `Outbox ${config.outbox}`);
  poll();
}
