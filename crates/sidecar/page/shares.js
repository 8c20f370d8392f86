// Shares against what the weights entitle each worker to.

import { $, count, fill, h, percent, ratio, say, svg, table } from "./dom.js";
import { colour, pattern } from "./colours.js";
import { chip, pick, shares } from "./ring.js";

const [HEIGHT, LEFT, TOP, BOTTOM] = [220, 40, 12, 26];
/** Up to so many are named below their columns. */
const NAMED = 8;

let ones = [];

/** The fullest and the emptiest worker, over the mean. */
export function evenness(slots) {
  const ratios = shares(slots).map((one) => one.ratio);
  return ratios.length === 0 || slots.owners === null ? null : { peak: Math.max(...ratios), least: Math.min(...ratios) };
}

function draw() {
  const width = $("shares").clientWidth;
  if (width === 0 || ones.length === 0) return;
  const most = Math.max(1.2, ones[0].ratio * 1.08);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
  const step = Math.min((width - LEFT) / ones.length, 110);
  const gap = step > 6 ? step * 0.14 : 0;
  const columns = ones.map((one, place) => {
    const box = { x: LEFT + place * step + gap, y: y(one.ratio), width: Math.max(step - 2 * gap, 0.5), height: Math.max(y(0) - y(one.ratio), 0) };
    const name = ones.length > NAMED ? null : svg("text", { x: box.x + box.width / 2, y: HEIGHT - 8, class: "axis column" }, one.id.length * 7.2 > step ? `…${one.id.slice(-Math.max(2, Math.floor(step / 7.2) - 1))}` : one.id);
    return svg(
      "g",
      { data: { member: one.id }, onpointerenter: () => pick(one.id), onpointerleave: () => pick(null) },
      svg("rect", { ...box, fill: colour(one.id) }),
      pattern(one.id) > 0 && step > 5 ? svg("rect", { ...box, fill: `url(#pattern-${pattern(one.id)})` }) : null,
      name,
      svg("title", {}, `${one.id}: ${percent(one.share)}, entitled to ${percent(one.ideal)}: ${ratio(one.ratio)}`),
    );
  });
  const end = LEFT + step * ones.length;
  const line = (value, style, text) => [
    svg("line", { x1: LEFT, x2: Math.max(end, width * 0.6), y1: y(value), y2: y(value), class: style }),
    svg("text", { x: LEFT - 6, y: y(value) + 4, class: "axis row" }, text),
  ];
  fill(
    $("shares"),
    svg("svg", { width, height: HEIGHT, role: "img", "aria-label": $("shares-said").textContent }, columns, line(0, "ground", "0"), line(1, "ideal", "1.00")),
  );
}

export function show(slots) {
  ones = slots.owners === null ? [] : shares(slots).sort((one, other) => other.ratio - one.ratio);
  const even = evenness(slots);
  if (even === null) {
    say($("shares-said"), "There are no slots to compare.");
    fill($("shares"));
    fill($("shares-table"));
    return;
  }
  const [first, last] = [ones[0], ones[ones.length - 1]];
  say($("shares-said"), `Peak over mean: ${ratio(even.peak)} (${first.id}). The least has ${ratio(even.least)} (${last.id}).`);
  draw();
  const rows = ones.map((one) => [h("span", {}, chip(one.id), one.id), String(one.weight), count(one.slots), percent(one.share, 2), percent(one.ideal, 2), ratio(one.ratio)]);
  fill($("shares-table"), table("Shares against what weights entitle to", ["Worker", "Weight", "Slots", "Share", "Entitled to", "Ratio"], rows, [1, 2, 3, 4, 5]));
}

export function begin() {
  new ResizeObserver(draw).observe($("shares"));
}
