// Who holds each slot and name by its claim, and where that is not the worker that the placement names.

import { $, clock, count, fill, h, many, say, table } from "./dom.js";
import { fetchOf } from "./api.js";
import { chip } from "./ring.js";

/** The most rows of a table. */
const SHOWN = 200;

const WHY = {
  loss: "the worker vanished, and more are missing than max_loss allows",
  grace: "the worker is away, and its share waits for it",
  version_rule: "the versions differ, so holders keep what they have",
  drain: "the holder is leaving or drained, and finishes its work first",
  expiring: "the holder is gone, and its claim ends with its lease",
  handover: "the holder finishes its work first",
  unclaimed: "not claimed yet",
  min_members: "fewer workers are active than min_members",
};

let drawn = null;

/** Why a holder is not the worker that the placement names. */
export const reason = (why) => WHY[why] ?? why;

/** Asks for the holders if claims have changed since, which includes that they cannot be read any more. Under eventual ownership there are none. */
export async function fetchHolders(asked, own, isNew) {
  if (own.claims_seen === null) return;
  if (!isNew && asked.claimsSeen === own.claims_seen && !asked.claimsError) {
    asked.holdersAt = Date.now();
    return;
  }
  try {
    asked.holders = await fetchOf(asked.policy, "holders");
    asked.claimsError = null;
    asked.claimsSeen = own.claims_seen;
    asked.holdersAt = Date.now();
  } catch (error) {
    asked.claimsError = error.message;
  }
  const unheld = asked.holders?.slots.some((slot) => slot.why === "unclaimed") ?? false;
  asked.unheldSince = unheld ? (asked.unheldSince ?? Date.now()) : null;
}

/** How many slots each worker holds; `null` where nothing is known of claims, and where what is known is old. */
export function held(state) {
  if (!state.holders || state.claimsError) return null;
  const counted = new Map();
  for (const { holder } of state.holders.slots) if (holder !== null) counted.set(holder, (counted.get(holder) ?? 0) + 1);
  return counted;
}

/** What is wrong with the claims, each with how bad it is. */
export function troubles(state) {
  const found = [];
  if (state.claimsError) found.push({ style: "warn", text: `Who holds what cannot be read: ${state.claimsError}.` });
  if (!state.holders || state.claimsError) return found;
  const counted = new Map();
  for (const { why } of state.holders.slots) if (why !== null) counted.set(why, (counted.get(why) ?? 0) + 1);
  const isLong = state.unheldSince && Date.now() - state.unheldSince > state.ttl + 1000;
  for (const [why, slots] of counted) {
    if (why === "unclaimed" && isLong) found.push({ style: "bad", text: `No worker holds ${many(slots, "slot")} for longer than the TTL: no worker works on their keys. The workers' logs say why they cannot claim them.` });
    // These two are reported elsewhere, with what to do.
    else if (why !== "loss" && why !== "min_members") found.push({ style: "note", text: `${many(slots, "slot")} not held by the worker that the placement names: ${reason(why)}.` });
  }
  return found;
}

/** One holder in a sentence, for the answer about a key. */
export function sentence(one, claimsError) {
  if (claimsError) return h("p", { class: "hint" }, "Which worker holds it cannot be read at the moment.");
  if (one.holder === null && one.why === null) return null;
  const who = one.holder === null ? "No worker holds it" : [h("b", {}, one.holder), ` holds it under epoch ${count(one.epoch)}`, one.since === null ? "" : ` since ${clock(new Date(one.since))}`];
  return h("p", {}, who, one.why === null ? "." : `; the placement names ${one.wanted ?? "no worker"}: ${reason(one.why)}.`);
}

const worker = (id) => (id === null ? "none" : h("span", {}, chip(id), id));
const since = (one) => (one.holder === null ? "–" : one.since === null ? "before this page's sidecar looked" : clock(new Date(one.since)));
const epoch = (one) => (one.epoch === null ? "–" : count(one.epoch));

function rows(all, row) {
  return [all.slice(0, SHOWN).map(row), all.length > SHOWN ? h("p", { class: "hint" }, `${count(all.length - SHOWN)} more are not shown.`) : null];
}

export function show(state) {
  $("holders-card").hidden = !state.holders;
  const old = state.holders && state.claimsError ? `These are the holders as of ${clock(new Date(state.holdersAt))}: they cannot be read at the moment.` : "";
  say($("holders-old"), old);
  $("holders-old").hidden = old === "";
  if (!state.holders || drawn === state.holders) return;
  drawn = state.holders;
  const { slots, names } = state.holders;
  const other = slots.filter((slot) => slot.why !== null);
  const said = other.length === 0 ? `Each of ${many(slots.length, "slot")} is held by the worker that the placement names.` : `${many(other.length, "slot")} of ${count(slots.length)} not held by the worker that the placement names:`;
  const [others, moreOthers] = rows(other, (one) => [count(one.slot), worker(one.holder), epoch(one), since(one), worker(one.wanted), reason(one.why)]);
  const [named, moreNames] = rows(names, (one) => [one.name, worker(one.holder), epoch(one), since(one)]);
  fill(
    $("holders"),
    h("p", { class: "said" }, said),
    other.length === 0 ? null : table("Slots that another worker holds", ["Slot", "Held by", "Epoch", "Since", "Should be", "Why"], others, [0, 2]),
    moreOthers,
    names.length === 0 ? h("p", { class: "hint" }, "No singleton, daemon or timer is held.") : table("Names and their holders", ["Name", "Held by", "Epoch", "Since"], named, [2]),
    moreNames,
    h("p", { class: "hint" }, "A worker that reports a slot as finished and goes on working in it overlaps with the next holder. This page cannot see that; the fence in its writes stops it."),
  );
}
