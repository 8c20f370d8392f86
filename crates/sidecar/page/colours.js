// Colours that people who see few of them can distinguish (Okabe and Ito's), with a pattern and a shade. A worker's style follows from its id alone, so it is the
// same on every page, whichever other workers are there.

// Neighbours in this order differ in lightness too.
const HUES = ["#0072b2", "#e69f00", "#009e73", "#f0e442", "#d55e00", "#56b4e9", "#cc79a7"];
/** Plain, then hatched, dotted and crossed. */
export const PATTERNS = 4;
const SHADES = [0, 0.35, -0.3];
const STYLES = HUES.length * PATTERNS * SHADES.length;

let there = new Set();

/** Who is there now. */
export function assign(ids) {
  there = new Set(ids);
}

export const isKnown = (id) => there.has(id);

/** Names that are numbered get styles that follow each other, and so different hues. */
function place(id) {
  let hash = 0;
  for (const char of id) hash = (hash * 31 + char.codePointAt(0)) >>> 0;
  return hash % STYLES;
}

export const pattern = (id) => Math.floor(place(id) / HUES.length) % PATTERNS;

/** Lighter and darker beside the hue. */
export function colour(id) {
  const hue = HUES[place(id) % HUES.length];
  const shade = SHADES[Math.floor(place(id) / HUES.length) % SHADES.length];
  const part = (at) => {
    const value = parseInt(hue.slice(at, at + 2), 16);
    return Math.round(shade < 0 ? value * (1 + shade) : value + (255 - value) * shade);
  };
  return `rgb(${part(1)} ${part(3)} ${part(5)})`;
}

/** Black or white, whichever is read better on a worker's colour. */
export function ink(id) {
  const [r, g, b] = colour(id).match(/\d+/g).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000" : "#fff";
}
