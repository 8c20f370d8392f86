// The page's life: which group, what is fetched when, and what is said when the sidecar does not answer.

import { $, clock, fill, h, lasting, say } from "./dom.js";
import { Refusal, follow, forgetToken, get, hasToken, keepToken, fetchOf } from "./api.js";
import { assign } from "./colours.js";
import * as agree from "./agree.js";
import * as holders from "./holders.js";
import * as members from "./members.js";
import { begin, fetchChanges } from "./changes.js";
import * as others from "./others.js";
import * as outbox from "./outbox.js";
import * as owner from "./owner.js";
import * as requests from "./requests.js";
import * as ring from "./ring.js";
import * as shares from "./shares.js";
import * as summary from "./summary.js";
import * as timeline from "./timeline.js";
import * as whatif from "./whatif.js";

/** How often it is looked whether anything has changed; events come at once. */
const POLL_EVERY = 1000;
const POLL_HIDDEN = 10000;
/** How often ages are counted on. */
const TICK_EVERY = 500;
/** After so long without an answer what is shown counts as old. */
const OLD_AFTER = 2500;
const FOLLOW_AGAIN = 1000;

let state = null;
let answered = Date.now();
/** Why there is no answer, and the sidecar's own words. */
let reason = ["has not answered", ""];
let timer = null;
let looking = false;
let again = false;
let following = null;

/** Asks for what has changed, and shows it. One at a time; who comes meanwhile has it done once more. */
async function refresh() {
  if (looking) {
    again = true;
    return;
  }
  looking = true;
  clearTimeout(timer);
  const asked = state;
  try {
    await showChanges(asked);
    if (asked === state) heard();
  } catch (error) {
    if (asked === state) failed(error);
  }
  looking = false;
  if ($("sign-in").hidden) timer = setTimeout(refresh, again ? 0 : document.hidden ? POLL_HIDDEN : POLL_EVERY);
  again = false;
}

async function showChanges(asked) {
  const isNew = await fetchChanges(asked);
  if (asked !== state) return;
  // First, so that what is drawn has a width.
  $("content").hidden = false;
  if (isNew) {
    assign(asked.members.members.map((member) => member.instance_id));
    ring.show(asked.slots);
    shares.show(asked.slots);
    whatif.show(asked);
  }
  summary.show(asked);
  agree.show(asked);
  members.show(asked);
  holders.show(asked);
  requests.show(asked);
  if (isNew && document.body.dataset.ready !== "yes") {
    document.body.dataset.ready = "yes";
    performance.mark("ready");
  }
}

function heard() {
  answered = Date.now();
  reason = ["has not answered", ""];
  $("lost").hidden = true;
  document.body.classList.remove("old");
  const { own } = state;
  say($("where"), state.observed ? `group ${own.group}, only observed` : `${own.instance_id}, group ${own.group}`);
  freshness();
  document.title = own.state === "active" || state.observed ? `${own.group} – shardwise` : `(${own.state}) ${own.group} – shardwise`;
}

/** Says whether what is shown is of now: the sidecar answers, and what it says is proven. Looked at by the clock, so that an answer that does not come
 *  cannot hold it up. */
function freshness() {
  if (!state?.own || Date.now() - answered > OLD_AFTER) return;
  const { own } = state;
  const proof = Math.max(own.view_age_ms ?? 0, state.observed ? 0 : (own.renewed_ms_ago ?? 0)) + Date.now() - state.ownAt;
  const isLate = proof > state.ttl / 2 + POLL_EVERY;
  say($("fresh"), isLate ? `${lasting(proof)} old` : "live");
  $("fresh").dataset.state = isLate ? "late" : "live";
}

/** Once in a while, whatever the sidecar does. */
function tick() {
  if (state?.own === undefined || !$("content") || $("content").hidden) return;
  members.tick(state);
  if (Date.now() - answered > (document.hidden ? POLL_HIDDEN + OLD_AFTER : OLD_AFTER)) lost();
  else freshness();
}

function failed(error) {
  if (error instanceof Refusal && error.status === 401) {
    signIn(hasToken() ? "This is not the token that the sidecar was started with." : "");
    return;
  }
  reason = error.status === 0 ? ["has not answered", ""] : ["refuses", `: ${error.message}`];
  if (Date.now() - answered >= OLD_AFTER) lost();
}

/** What is shown is old. */
function lost() {
  const [what, words] = reason;
  const why = `The sidecar ${what} since ${clock(new Date(answered))}${words}`;
  if (state?.own) summary.old(why);
  say($("lost"), state?.own ? `${why}. The page shows the last known state. It is asked again every second.` : `${why}. It is asked again every second.`);
  $("lost").hidden = false;
  say($("fresh"), "old");
  $("fresh").dataset.state = "old";
  document.body.classList.toggle("old", Boolean(state.own));
}

/** Hears of rebalances as they happen, and comes back where it was when the connection ends. */
async function listen(asked) {
  let last = null;
  while (asked === state) {
    following = new AbortController();
    try {
      // Followed first, read then: nothing between the two is missed, and what comes twice is known by its id.
      const live = follow(asked.policy, last, following.signal, (kind, data, id) => {
        last = id ?? last;
        if (kind === "gap") timeline.gap();
        if (kind === "rebalance") timeline.add(data);
        refresh();
      });
      if (last === null) {
        const past = await fetchOf(asked.policy, "rebalances").catch(() => null);
        if (past !== null && asked === state) timeline.take(past);
        last = timeline.latest()?.id ?? null;
      }
      await live;
    } catch {
      // The other loop shows that it does not answer.
    }
    await new Promise((resolve) => setTimeout(resolve, FOLLOW_AGAIN));
  }
}

function choose(policy, listed) {
  following?.abort();
  agree.forget();
  whatif.forget();
  others.choose(listed.policies, policy.policy);
  state = { ...begin(policy, listed.may_act), refresh };
  // What is shown is another group's.
  $("content").hidden = true;
  ring.pick(null);
  refresh();
  listen(state);
}

function signIn(why) {
  clearTimeout(timer);
  following?.abort();
  state = null;
  others.forget();
  forgetToken();
  $("content").hidden = true;
  $("sign-in").hidden = false;
  say($("sign-in-error"), why);
  say($("fresh"), "locked");
  $("fresh").dataset.state = "old";
  $("token").focus();
}

async function start() {
  try {
    const listed = await get("/v1/policies");
    $("sign-in").hidden = true;
    $("lost").hidden = true;
    outbox.begin(listed);
    const select = $("group");
    fill(select, listed.policies.map((policy) => h("option", { value: policy.policy }, `${policy.group} (policy ${policy.policy})`)));
    $("group-label").hidden = listed.policies.length < 2;
    select.onchange = () => choose(listed.policies[select.selectedIndex], listed);
    // The one that this sidecar works for, before those that it only shows.
    select.selectedIndex = Math.max(listed.policies.findIndex((policy) => !policy.only_observed), 0);
    choose(listed.policies[select.selectedIndex], listed);
  } catch (error) {
    if (error.status === 401) {
      signIn(hasToken() ? "This is not the token that the sidecar was started with." : "");
      return;
    }
    say($("lost"), `The group cannot be shown: ${error.message}. It is asked again every second.`);
    $("lost").hidden = false;
    setTimeout(start, POLL_EVERY);
  }
}

const current = () => state;
ring.begin();
shares.begin();
members.begin();
agree.begin(current);
summary.begin(current);
setInterval(tick, TICK_EVERY);
owner.begin(current);
whatif.begin(current);
$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken($("token").value.trim());
  $("token").value = "";
  start();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && state !== null) refresh();
});
start();
