// Who owns a key, and why.

import { $, count, fill, h, many } from "./dom.js";
import { fetchOf } from "./api.js";
import { sentence } from "./holders.js";
import { mark, pick } from "./ring.js";

const HASHES = { ring: "XXH3-64", quota: "XXH3-64", uhashring: "MD5", modulo: "FNV-1a 32-bit", hashring: "SipHash" };

const bold = (text) => h("b", {}, text);
const code = (text) => h("code", {}, text);

function passed(step) {
  const why = step.weight_capacity !== null && step.weight_slots !== null ? `the workers of its weight have ${count(step.weight_slots)} of at most ${count(step.weight_capacity)}` : `it has ${count(step.slots ?? 0)} of at most ${count(step.capacity ?? 0)}`;
  return h("li", {}, "passed over ", bold(step.instance_id), `: full, ${why}`);
}

function steps(why, slots) {
  const items = [h("li", {}, "The key ", code(JSON.stringify(why.key)), ` is hashed (${HASHES[why.placement] ?? "hash"}): `, code(why.hash))];
  if (why.slot !== null) {
    items.push(h("li", {}, "Of ", many(slots, "slot"), ` it is in slot `, bold(count(why.slot)), ", whose arc begins at ", code(why.start), "."));
    items.push(h("li", {}, "From there clockwise, the first worker with room:", why.passed.length > 0 ? h("ul", {}, why.passed.slice(0, 12).map(passed), why.passed.length > 12 ? h("li", {}, `and ${count(why.passed.length - 12)} more`) : null) : " the very first one has."));
  }
  const { owner } = why;
  const point = owner.point === null ? "" : `: its point ${count(owner.point)}${owner.place === null ? "" : ` at ${owner.place}`}`;
  items.push(h("li", {}, bold(owner.instance_id), point, owner.capacity === null ? "" : `, when it had ${count(owner.slots)} of at most ${count(owner.capacity)} slots`, "."));
  if (why.before !== null) items.push(h("li", {}, bold(why.before.instance_id), " had been given it first, and the owner was given it from that share."));
  if (why.next !== null) items.push(h("li", {}, "If ", bold(owner.instance_id), " left, ", bold(why.next), " would own it."));
  return h("ol", { class: "steps" }, items);
}

async function explain(state) {
  const key = $("key").value;
  const place = encodeURIComponent(key);
  fill($("owner"), h("p", { class: "hint" }, "Asking…"));
  try {
    // "." and ".." would be taken for folders by the browser.
    if (key === "." || key === "..") throw new Error("a browser cannot ask for this key; shardwise explain can");
    const [owner, why] = await Promise.all([fetchOf(state.policy, `owner/${place}`), fetchOf(state.policy, `explain/${place}`)]);
    if (why.owner === null) {
      fill($("owner"), h("p", { class: "answer" }, "No worker owns it now."));
      return;
    }
    const mine = owner.mine ? " This worker holds it right now." : "";
    fill(
      $("owner"),
      h("p", { class: "answer" }, bold(why.owner.instance_id), owner.address === null ? "" : ` at ${owner.address}`, ".", mine),
      sentence(owner, state.claimsError),
      steps(why, state.slots.owners?.length ?? 0),
    );
    if (why.slot !== null) {
      mark(why.slot);
      pick(why.owner.instance_id);
    }
  } catch (error) {
    fill($("owner"), h("p", { class: "refused" }, `No answer: ${error.message}`));
  }
}

export function begin(current) {
  $("owner-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const state = current();
    if (state?.slots) explain(state);
  });
}
