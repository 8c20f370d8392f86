// Requests to the workers: the load that each reports, what it has refused, and the keys whose requests are spread or moved.

import { $, count, fill, h, table } from "./dom.js";
import { statuses } from "./agree.js";
import { fetchOf } from "./api.js";
import { chip } from "./ring.js";

/** How often the operator's routes are read from the backend. */
const ROUTES_EVERY = 5000;
/** The most rows of a table. */
const SHOWN = 200;

let current = null;
let drawn = "";

/** Only where a key may be spread there are routes: not under exclusive ownership, and not without slots. */
async function fetchRoutes(state) {
  const mayHave = state.ownership === "eventual" && (state.slots?.owners ?? null) !== null;
  if (!mayHave || Date.now() - (state.routesAt ?? 0) < ROUTES_EVERY) return;
  state.routesAt = Date.now();
  try {
    state.routes = (await fetchOf(state.policy, "routes")).routes;
  } catch {
    // Those of before stay; other parts of the page say if the backend does not answer.
  }
}

const number = (value) => (typeof value === "number" ? count(value) : "–");

/** What each worker says of its requests; those that say nothing are left out. */
function reports() {
  const known = [...statuses()].filter(([, status]) => typeof status.requests === "object" && status.requests !== null);
  return known.map(([id, { requests }]) => ({ id, ...requests, wide: Array.isArray(requests.wide) ? requests.wide : [] }));
}

/** The hot keys: by hash the operator's route, and the width that the owner reports. */
function hotKeys(all, routes) {
  const keys = new Map(routes.map((route) => [route.key_hash, { route }]));
  for (const { id, wide } of all) {
    for (const { key, width } of wide) if (typeof key === "string") keys.set(key, { ...keys.get(key), owner: id, width });
  }
  return [...keys].sort(([one], [other]) => (one < other ? -1 : 1));
}

function draw(state) {
  const all = reports();
  const routes = state.routes ?? [];
  const keys = hotKeys(all, routes);
  $("requests-card").hidden = all.length === 0 && routes.length === 0;
  const now = JSON.stringify([state.policy, all, routes]);
  if (now === drawn) return;
  drawn = now;
  const workers = all.slice(0, SHOWN).map((one) => [
    h("span", {}, chip(one.id), one.id),
    number(one.load),
    number(one.refused_busy),
    number(one.refused_not_mine),
    number(one.sessions),
  ]);
  const more = all.length > SHOWN ? h("p", { class: "hint" }, `${count(all.length - SHOWN)} more are not shown.`) : null;
  fill($("requests"), table("Requests to each worker", ["Worker", "Load", "Refused: too many", "Refused: another's", "Sessions"], workers, [1, 2, 3, 4]), more);
  const hot = keys.slice(0, SHOWN).map(([hash, { route, owner, width }]) => [
    h("code", {}, hash),
    owner === undefined ? "–" : h("span", {}, chip(owner), owner),
    number(width),
    route === undefined ? "–" : String(route.width),
    route === undefined || route.skip.length === 0 ? "–" : route.skip.join(", "),
  ]);
  const none = h("p", { class: "hint" }, "No key is spread over several workers, and no operator has set a route.");
  const heads = ["Key's hash", "Owner", "Width by its owner", "Width by an operator", "Avoids"];
  fill($("hot-keys"), hot.length === 0 ? none : table("Keys whose requests are spread or moved", heads, hot, [2, 3]));
}

/** What is known now, and the routes once they are read. */
export function show(state) {
  current = state;
  draw(state);
  fetchRoutes(state).then(() => {
    // Meanwhile another group may have been chosen.
    if (current === state) draw(state);
  });
}
