// One group as the page knows it, and asking for what has changed.

import { fetchOf } from "./api.js";
import { fetchHolders } from "./holders.js";

/** Nothing is known of it yet. */
export const begin = (policy, mayAct) => ({
  policy: policy.policy,
  ttl: policy.ttl_ms,
  observed: policy.only_observed,
  minMembers: policy.min_members,
  ownership: policy.ownership,
  mayAct,
  drained: [],
  seen: "",
});

/** Asks for what has changed and keeps it; says whether anything has but ages. */
export async function fetchChanges(asked) {
  const own = await fetchOf(asked.policy, "ownership");
  const seen = `${own.view_fingerprint} ${own.revision}`;
  const isNew = asked.seen !== seen;
  if (isNew) {
    const [slots, group] = await Promise.all([fetchOf(asked.policy, "slots"), fetchOf(asked.policy, "members")]);
    // A drain request counts before the member has seen it; without drain support there are none.
    asked.drained = (await fetchOf(asked.policy, "drained").catch(() => ({ drained: asked.drained }))).drained;
    Object.assign(asked, { slots, members: group, membersAt: Date.now() });
    // These may be of a moment before or after: then all is asked once more.
    asked.seen = slots.view_fingerprint === own.view_fingerprint && group.view_fingerprint === own.view_fingerprint ? seen : "";
  }
  await fetchHolders(asked, own, isNew);
  Object.assign(asked, { own, ownAt: Date.now() });
  return isNew;
}
