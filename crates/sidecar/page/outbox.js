// The outbox: what waits, what is stuck, and sending it again.

import { $, ask, count, fill, h, lasting, many, refill, say, table } from "./dom.js";
import { act, get } from "./api.js";

/** A database is asked more seldom than the sidecar. */
const LOOK_EVERY = 5000;
const WHO = "shardwise-who";

let mayAct = false;
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
    look();
  });
}

function row(letter) {
  const button = h("button", { type: "button", class: "small", disabled: !mayAct, onclick: () => replay(letter) }, "Replay", h("span", { class: "visually-hidden" }, ` ${letter.id}`));
  return [h("code", {}, letter.id), letter.key, letter.event_type, h("span", { class: `pill ${letter.state === "parked" ? "warn" : "bad"}` }, letter.state), lasting(letter.dead_for_ms), letter.error, button];
}

function show(status) {
  const { dead } = status;
  const stuck = status.blocked_aggregates + status.parked > 0;
  const parts = [[status.blocked_aggregates, "aggregate", "blocked"], [status.parked, "event", "parked"]].filter(([n]) => n > 0);
  const verdict = stuck ? `${parts.map(([n, word, is]) => `${many(n, word)} ${is}`).join(" and ")}.` : status.publishers === 0 && status.pending > 0 ? "Events wait, and no publisher is alive." : "Nothing is stuck.";
  const heads = ["Event", "Aggregate", "Type", "Is", "For", "Why", "Action"];
  refill(
    $("outbox"),
    h("p", { class: "verdict", data: { state: stuck ? "warn" : status.publishers === 0 && status.pending > 0 ? "bad" : "good" } }, verdict),
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
    mayAct || dead.length === 0 ? null : h("p", { class: "hint" }, "Nobody may replay from here: this sidecar was started without --token-file."),
    h("p", { role: "status" }, notice),
  );
}

async function look() {
  clearTimeout(timer);
  try {
    const status = await get("/v1/outbox");
    const now = JSON.stringify([status, notice]);
    if (now !== drawn) show(status);
    drawn = now;
  } catch (error) {
    if (error.status === 401) return;
    drawn = "";
    fill($("outbox"), h("p", { class: "refused" }, `The outbox cannot be read: ${error.message}. It is asked again every ${lasting(LOOK_EVERY)}.`));
  }
  timer = setTimeout(look, LOOK_EVERY);
}

/** Shows the outbox, if this sidecar was told of one. */
export function begin(told) {
  mayAct = told.may_act;
  $("outbox-card").hidden = told.outbox === null;
  if (told.outbox === null) return;
  say($("outbox-title"), `Outbox ${told.outbox}`);
  look();
}
