// Colours that people who see few of them can tell apart (Okabe and Ito's), a pattern where they repeat, and the same one for a worker as long as the page lives.

// Neighbours in this order differ in lightness too.
const HUES = ["#0072b2", "#e69f00", "#009e73", "#f0e442", "#d55e00", "#56b4e9", "#cc79a7"];
/** Plain, then hatched, dotted and crossed. */
export const PATTERNS = 4;

const places = new Map();

/** Gives places to newcomers and takes them from those who are gone. `ids` in order. */
export function assign(ids) {
  const there = new Set(ids);
  for (const id of places.keys()) if (!there.has(id)) places.delete(id);
  const taken = new Set(places.values());
  let free = 0;
  for (const id of ids) {
    if (places.has(id)) continue;
    while (taken.has(free)) free += 1;
    places.set(id, free);
    taken.add(free);
  }
}

export const isKnown = (id) => places.has(id);
const place = (id) => places.get(id) ?? 0;
export const pattern = (id) => Math.floor(place(id) / HUES.length) % PATTERNS;

/** Lighter and darker where hues and patterns are used up. */
export function colour(id) {
  const hue = HUES[place(id) % HUES.length];
  const shade = [0, 0.35, -0.3][Math.floor(place(id) / HUES.length) % 3];
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
