// Elements and texts. Nothing here ever becomes markup: all text is set as text.

const SVG = "http://www.w3.org/2000/svg";

function dress(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const $ = (id) => document.getElementById(id);
export const h = (tag, props, ...children) => dress(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => dress(document.createElementNS(SVG, tag), props, children);
export const fill = (node, ...children) => node.replaceChildren(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));

/** As `fill`, where the button that has the focus keeps it: rows are drawn anew under a user's hands. */
export function refill(node, ...children) {
  const focused = node.contains(document.activeElement) ? [...node.querySelectorAll("button")].indexOf(document.activeElement) : -1;
  fill(node, ...children);
  if (focused >= 0) node.querySelectorAll("button")[focused]?.focus();
}

/** Sets a text only where it is another one, so that a screen reader does not repeat it. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const count = (n) => n.toLocaleString("en");
export const many = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const percent = (share, digits = 1) => `${(share * 100).toFixed(digits)} %`;
export const ratio = (number) => number.toFixed(2);

/** How long, in the two largest units. */
export function lasting(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  const [d, hh, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d > 0) return `${d} d ${hh} h`;
  if (hh > 0) return `${hh} h ${m} min`;
  if (m > 0 && Math.floor(s % 60) === 0) return `${m} min`;
  return m > 0 ? `${m} min ${Math.floor(s % 60)} s` : `${Math.floor(s)} s`;
}

const TIME = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });

/** Date, time and zone: what is read here is compared with other machines' logs. */
export const clock = (date) => TIME.format(date);

/** A table whose cells know their column's name, so that a phone can show rows as cards. Each row is a list of texts and nodes. */
export function table(caption, heads, rows, numbers = []) {
  const cell = (content, column) =>
    h(column === 0 ? "th" : "td", { scope: column === 0 ? "row" : null, data: { label: heads[column] }, class: numbers.includes(column) ? "number" : null }, content);
  return h(
    "table",
    {},
    h("caption", { class: "visually-hidden" }, caption),
    h("thead", {}, h("tr", {}, heads.map((head, column) => h("th", { scope: "col", class: numbers.includes(column) ? "number" : null }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", row.props ?? {}, (row.cells ?? row).map(cell)))),
  );
}

/** Asks before something is done. `work` does it; what it throws is shown, and it can be tried again. */
export function ask(title, text, verb, work) {
  const dialog = $("ask");
  // Another question is never put under a finger that answers this one.
  if (dialog.open) return;
  const form = dialog.querySelector("form");
  say($("ask-title"), title);
  fill($("ask-text"), text);
  say($("ask-yes"), verb);
  say($("ask-error"), "");
  $("ask-yes").disabled = false;
  const answered = async (event) => {
    if (event.submitter?.value !== "yes") return;
    event.preventDefault();
    $("ask-yes").disabled = true;
    try {
      await work();
      if (form.onsubmit === answered) dialog.close();
    } catch (error) {
      if (form.onsubmit !== answered) return;
      say($("ask-error"), error.message);
      $("ask-yes").disabled = false;
    }
  };
  form.onsubmit = answered;
  dialog.showModal();
}
