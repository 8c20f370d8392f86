// Calls of the sidecar. The token lives in this tab's session and goes into a header, never into an address.

const KEEP = "shardwise-token";
const CSRF = document.querySelector('meta[name="csrf"]').content;
/** No answer of a living sidecar takes longer. */
const PATIENCE = 8000;

export const hasToken = () => sessionStorage.getItem(KEEP) !== null;
export const keepToken = (token) => sessionStorage.setItem(KEEP, token);
export const forgetToken = () => sessionStorage.removeItem(KEEP);

/** A refusal, in the sidecar's words. `status` is 0 where there was no answer at all. */
export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

function headers(more) {
  const token = sessionStorage.getItem(KEEP);
  return { ...(token === null ? {} : { Authorization: `Bearer ${token}` }), ...more };
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options });
  } catch (error) {
    if (options.signal?.aborted && options.signal.reason?.name === "AbortError") throw error;
    throw new Refusal(0, "the sidecar does not answer");
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new Refusal(answer.status, problem.detail ?? problem.title ?? `the sidecar answers ${answer.status}`);
}

async function json(path, options) {
  const answer = await ask(path, { signal: AbortSignal.timeout(PATIENCE), ...options });
  try {
    return await answer.json();
  } catch {
    throw new Refusal(0, "the sidecar's answer ended too early");
  }
}

const of = (policy, rest) => `/v1/policies/${encodeURIComponent(policy)}/${rest}`;

export const get = (path, patience = PATIENCE) => json(path, { headers: headers({}), signal: AbortSignal.timeout(patience) });
export const fetchOf = (policy, rest, patience = PATIENCE) => get(of(policy, rest), patience);

/** Asks with a body; changes nothing. */
export const post = (policy, rest, body) =>
  json(of(policy, rest), { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) });

/** Does something: with the page's own token beside the operator's. */
export const act = (path, body) =>
  json(path, { method: "POST", headers: headers({ "Content-Type": "application/json", "X-Shardwise-CSRF": CSRF }), body: JSON.stringify(body) });
export const actOn = (policy, rest, body) => act(of(policy, rest), body);

/** Follows events until `signal` ends it or the connection does; `heard` is called with each. Returns the last id. */
export async function follow(policy, last, signal, heard) {
  const more = last === null ? {} : { "Last-Event-ID": last };
  const answer = await ask(of(policy, "rebalances"), { headers: headers({ Accept: "text/event-stream", ...more }), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const field = (name) => event.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      const data = field("data");
      if (data !== undefined) heard(field("event") ?? "message", JSON.parse(data), field("id") ?? null);
    }
  }
}
