// The ring: every slot in its place, and inside it what each worker has, added up. One worker can be picked: by pointing at it, or with the arrow keys.

import { $, count, fill, h, many, percent, say, svg, table } from "./dom.js";
import { colour, ink, isKnown, pattern } from "./colours.js";

const SIZE = 520;
const [BAND_IN, BAND_OUT, ARC_IN, ARC_OUT] = [214, 252, 126, 204];
/** Slots shown around the one that is looked at closer. */
const CLOSE = 17;
const TURN = 2 * Math.PI;

let shown = null;
let picked = null;
let marked = null;

/** Slots and shares of each worker, in the order of the placement. */
export function shares(slots) {
  const counts = slots.members.map(() => 0);
  for (const owner of slots.owners ?? []) counts[owner] += 1;
  const weights = slots.members.reduce((sum, member) => sum + member.weight, 0);
  const total = slots.owners?.length ?? 0;
  return slots.members.map((member, place) => {
    const ideal = member.weight / weights;
    const share = total === 0 ? 0 : counts[place] / total;
    return { id: member.instance_id, weight: member.weight, slots: counts[place], share, ideal, ratio: ideal === 0 ? 0 : share / ideal };
  });
}

const at = (angle, radius) => `${(Math.sin(angle) * radius).toFixed(2)} ${(-Math.cos(angle) * radius).toFixed(2)}`;

function sector(from, to, inner, outer) {
  // A whole turn would have no beginning and no end.
  const end = Math.min(to, from + TURN - 0.0001);
  const large = end - from > Math.PI ? 1 : 0;
  return `M${at(from, outer)}A${outer} ${outer} 0 ${large} 1 ${at(end, outer)}L${at(end, inner)}A${inner} ${inner} 0 ${large} 0 ${at(from, inner)}Z`;
}

function patterns() {
  const tile = (number, ...marks) => svg("pattern", { id: `pattern-${number}`, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, marks);
  const line = (props) => svg("rect", { fill: "#000", "fill-opacity": 0.45, ...props });
  return svg(
    "defs",
    {},
    tile(1, line({ width: 2.5, height: 8 })),
    tile(2, svg("circle", { cx: 4, cy: 4, r: 1.8, fill: "#000", "fill-opacity": 0.5 })),
    tile(3, line({ width: 2, height: 8 }), line({ width: 8, height: 2 })),
  );
}

/** Draws the outer band: runs of one owner are one arc, and no more arcs than there are pixels. */
function band() {
  const canvas = $("slots-band");
  const width = canvas.clientWidth;
  if (width === 0) return;
  const dots = Math.round(width * (window.devicePixelRatio || 1));
  canvas.width = dots;
  canvas.height = dots;
  const pen = canvas.getContext("2d");
  const owners = shown.slots.owners ?? [];
  const scale = dots / SIZE;
  const radius = ((BAND_IN + BAND_OUT) / 2) * scale;
  const steps = Math.min(owners.length, Math.ceil(TURN * radius));
  const runs = shown.slots.members.map(() => []);
  for (let step = 0, begin = 0; step < steps; step += 1) {
    const of = (n) => owners[Math.floor(((n + 0.5) * owners.length) / steps)];
    if (step + 1 === steps || of(step) !== of(step + 1)) {
      runs[of(step)].push([begin, step + 1]);
      begin = step + 1;
    }
  }
  pen.lineWidth = (BAND_OUT - BAND_IN) * scale;
  const angle = (step) => (step / steps) * TURN - TURN / 4;
  runs.forEach((arcs, place) => {
    const id = shown.slots.members[place].instance_id;
    pen.globalAlpha = picked === null || picked === id ? 1 : 0.1;
    pen.strokeStyle = colour(id);
    pen.beginPath();
    for (const [from, to] of arcs) {
      pen.moveTo(dots / 2 + Math.cos(angle(from)) * radius, dots / 2 + Math.sin(angle(from)) * radius);
      pen.arc(dots / 2, dots / 2, radius, angle(from), angle(to));
    }
    pen.stroke();
  });
}

function arcs() {
  let from = 0;
  return shown.shares.filter((one) => one.slots > 0).map((one) => {
    const to = from + one.share * TURN;
    const [d, middle] = [sector(from, to, ARC_IN, ARC_OUT), (from + to) / 2];
    const room = Math.min(Math.floor(((to - from) * (ARC_IN + ARC_OUT)) / 2 / 8), 10);
    from = to;
    const text = one.id.length <= room ? one.id : `…${one.id.slice(1 - room)}`;
    const [x, y] = at(middle, (ARC_IN + ARC_OUT) / 2).split(" ");
    const label = room < 5 || to - middle < 0.1 ? null : svg("text", { x, y, fill: ink(one.id), class: "arc-label" }, text);
    return svg(
      "g",
      { class: "arc", data: { member: one.id, slots: one.slots }, onpointerenter: () => pick(one.id), onclick: () => pick(one.id) },
      svg("path", { d, fill: colour(one.id), class: "arc-fill" }),
      pattern(one.id) > 0 ? svg("path", { d, fill: `url(#pattern-${pattern(one.id)})` }) : null,
      label,
      svg("title", {}, `${one.id}: ${many(one.slots, "slot")}, ${percent(one.share)}`),
    );
  });
}

/** What the middle of the ring and the line below it say. */
function describe() {
  const one = shown.shares.find((share) => share.id === picked);
  const total = shown.slots.owners?.length ?? 0;
  const lines = one === undefined ? [count(total), "slots", many(shown.shares.length, "worker")] : [percent(one.share), many(one.slots, "slot"), one.id];
  const short = (text) => (text.length > 24 ? `…${text.slice(-23)}` : text);
  fill($("ring-middle"), lines.map((text, row) => svg("text", { y: [-8, 20, 44][row], class: row === 0 ? "middle-large" : "middle-small" }, short(text))));
  say(
    $("ring-said"),
    one === undefined
      ? `${many(total, "slot")} on ${many(shown.shares.length, "worker")}. Point at a worker, or use the arrow keys on the ring, to see its slots.`
      : `${one.id} has ${count(one.slots)} of ${many(total, "slot")}: ${percent(one.share)}, where its weight entitles it to ${percent(one.ideal)}.`,
  );
  const slider = $("ring-pick");
  slider.setAttribute("aria-valuenow", one === undefined ? 0 : shown.shares.indexOf(one) + 1);
  slider.setAttribute("aria-valuetext", one === undefined ? "all workers" : `${one.id}, ${many(one.slots, "slot")}, ${percent(one.share)}`);
  for (const arc of slider.querySelectorAll(".arc")) arc.classList.toggle("dim", picked !== null && arc.dataset.member !== picked);
}

/** Shows one worker's slots alone; `null` shows all. */
export function pick(id) {
  if (shown === null || picked === id) return;
  picked = id;
  band();
  describe();
}

/** Marks a slot on the ring and looks at it closer. */
export function mark(slot) {
  marked = slot;
  if (shown === null || slot === null || !shown.slots.owners) return;
  $("closer").value = slot;
  closer();
}

function closer() {
  const owners = shown.slots.owners;
  const slot = Math.min(Number($("closer").value), owners.length - 1);
  const first = Math.max(0, Math.min(slot - Math.floor(CLOSE / 2), owners.length - CLOSE));
  const cells = owners.slice(first, first + CLOSE).map((owner, step) => {
    const id = shown.slots.members[owner].instance_id;
    return h("i", { class: first + step === slot ? "cell here" : "cell", title: `slot ${count(first + step)}: ${id}`, style: { background: colour(id) } });
  });
  const owner = shown.slots.members[owners[slot]].instance_id;
  fill($("close-up"), h("div", { class: "cells" }, cells), h("p", { class: "said" }, `Slot ${count(slot)} belongs to ${owner}.`));
  $("closer").setAttribute("aria-valuetext", `slot ${count(slot)}, ${owner}`);
  const angle = ((slot + 0.5) / owners.length) * TURN;
  $("ring-mark")?.setAttribute("d", `M${at(angle, BAND_OUT + 1)}L${at(angle - 0.03, BAND_OUT + 14)}L${at(angle + 0.03, BAND_OUT + 14)}Z`);
  $("ring-mark")?.toggleAttribute("hidden", marked === null);
}

function keys(event) {
  const ids = [null, ...shown.shares.map((share) => share.id)];
  const now = ids.indexOf(picked);
  const to = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 1, End: ids.length - 1, Escape: 0 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  pick(ids[(to + ids.length) % ids.length]);
}

function frame() {
  const max = shown.shares.length;
  const slider = { id: "ring-pick", role: "slider", tabindex: 0, "aria-label": "A worker on the ring", "aria-valuemin": 0, "aria-valuemax": max, onkeydown: keys, onpointerleave: () => pick(null) };
  const edge = 16;
  return svg(
    "svg",
    { class: max > 60 ? "many" : null, viewBox: `${-SIZE / 2 - edge} ${-SIZE / 2 - edge} ${SIZE + 2 * edge} ${SIZE + 2 * edge}`, ...slider },
    patterns(),
    arcs(),
    svg("path", { id: "ring-mark", class: "mark", hidden: marked === null }),
    svg("g", { id: "ring-middle", class: "middle" }),
  );
}

/** Draws the ring anew. `slots` is the sidecar's answer. */
export function show(slots) {
  const had = document.activeElement?.id === "ring-pick";
  shown = { slots, shares: shares(slots) };
  if (!shown.shares.some((share) => share.id === picked)) picked = null;
  $("ring").querySelector("svg")?.remove();
  const drawn = slots.owners !== null;
  for (const part of ["ring", "closer-label", "close-up"]) $(part).toggleAttribute("hidden", !drawn);
  if (!drawn) {
    const why = slots.hint !== null ? `The owners cannot be computed here: ${slots.hint}` : slots.placement === null ? "No worker owns anything now." : `The placement ${slots.placement} has no slots: it gives each key its owner, so there is no ring to draw. Ask for a key below.`;
    say($("ring-said"), why);
    fill($("ring-table"));
    return;
  }
  $("ring").append(frame());
  $("closer").max = slots.owners.length - 1;
  band();
  describe();
  closer();
  if (had) $("ring-pick").focus();
  const rows = shown.shares.map((one) => [h("span", {}, chip(one.id), one.id), count(one.slots), percent(one.share, 2)]);
  fill($("ring-table"), table("Slots of each worker", ["Worker", "Slots", "Share"], rows, [1, 2]));
}

/** A worker's colour and pattern as a small square; hollow for who is not there. */
export function chip(id) {
  return svg(
    "svg",
    { class: "chip", viewBox: "0 0 14 14", "aria-hidden": "true" },
    isKnown(id) ? svg("rect", { width: 14, height: 14, rx: 3, fill: colour(id) }) : svg("rect", { class: "hollow", x: 1, y: 1, width: 12, height: 12, rx: 3 }),
    pattern(id) > 0 ? svg("rect", { width: 14, height: 14, rx: 3, fill: `url(#pattern-${pattern(id)})` }) : null,
  );
}

export function begin() {
  $("closer").addEventListener("input", () => {
    marked = Number($("closer").value);
    closer();
  });
  new ResizeObserver(() => shown?.slots.owners && band()).observe($("ring"));
  $("ring").addEventListener("pointermove", (event) => {
    if (!shown?.slots.owners) return;
    const box = $("slots-band").getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2];
    const radius = (Math.hypot(x, y) * SIZE) / box.width;
    if (radius < BAND_IN || radius > BAND_OUT) return;
    const turn = (Math.atan2(x, -y) / TURN + 1) % 1;
    mark(Math.floor(turn * shown.slots.owners.length));
  });
}
