/** The answers of the sidecar, as /openapi.json describes them; a test compares the two. A newer sidecar may add fields. */

import type { ShardwiseError } from "./errors.js";

export type Str = string | null;
export type Num = number | null;
/** Who holds a slot, under exclusive ownership: its epoch and since when, and if that is not the member that the placement names, which one is and why. */
export interface Held { holder: Str; incarnation: Str; epoch: Num; since: Str; wanted: Str; why: Str }
export interface Owner extends Held { key: string; slot: Num; owner: Str; address: Str; mine: boolean; revision: number }
export interface Ownership {
  policy: string; group: string; instance_id: string; state: string; hint: Str; drained: boolean; worker: Str; worker_failure: Str; lease_age_ms: Num; lease_ends_in_ms: Num; spared: boolean; owned_for_ms: Num; revision: number;
  renewed_ms_ago: Num; viewed_ms_ago: Num; view_age_ms: Num; view_fingerprint: string; policy_fingerprint: Str; members: number; slots: Num; slots_owned: Num;
  ranges: number[][] | null; claims_seen: Num; stands_still: boolean;
}
export interface Member { instance_id: string; incarnation: string; state: string; worker: Str; address: Str; zone: Str; version: Str; weight: number;
  slots: Num; holds: Num; metadata: Record<string, string> }
export interface Vanished { instance_id: string; incarnation: string; at: string; ms_ago: number; is_back: boolean }
export interface Group { revision: number; view_fingerprint: string; members: Member[]; foreign: string[]; vanished: Vanished[] }
export interface Step { instance_id: string; point: Num; place: Str; slots: Num; capacity: Num; weight_slots: Num; weight_capacity: Num }
export interface Explanation extends Held {
  key: string; placement: Str; hash: Str; slot: Num; start: Str; passed: Step[]; owner: Step | null; before: Step | null; next: Str;
}
export interface Evenness { members: number; peak: number; least: number }
export interface Move { from: Str; to: Str; share: number }
export interface Plan { placement: string; moved_share: number; exact_share: number; moves: Move[]; before: Evenness; after: Evenness }
export interface Wish { instance_id: string; drained: boolean; changed: boolean }
export interface Changed { instance_id: string; state: string[] | null; weight: number[] | null }
export interface Rebalance {
  id: string; at: string; cause: string; took_ms: number; revision: number; members: number; joined: number; members_joined: string[];
  left: number; members_left: string[]; vanished: number; members_vanished: string[]; members_changed: Changed[]; slots_owned: Num; gained: Num; lost: Num; moved_share: Num;
}

/** The keys of a list that this worker owns. It owns none unless `state` is active, stale or unsharded. */
export interface Owned { keys: string[]; state: string }
/** `rebalance`: this worker's ownership has changed. `gap`: events may be missing, so query the ownership now; it comes first, and after each
 * reconnection. `lost`: the connection to the sidecar is lost (`error` says why), so ownership may end unnoticed. */
export type Event = { kind: "rebalance"; rebalance: Rebalance } | { kind: "gap" } | { kind: "lost"; error: ShardwiseError };

export interface HeldSlot extends Held { slot: number }
export interface HeldName extends Held { name: string }
/** Who holds what: every slot in order, and the names that are held. */
export interface Holders { revision: number; view_fingerprint: string; slots: HeldSlot[]; names: HeldName[] }

/** Where a request to a key would go: the members that may serve it, its owner first, and the one that was chosen. */
export interface Route { key: string; key_hash: string; set: string[]; pick: string; incarnation: string; why: string; epoch: Num }

/** A lease, and for how long its grants hold, counted from before the question. */
export interface WorkerLease { id: string; ttl_ms: number; valid_ms: number; version: number }
/** The period that a timer has fired: when it was due, in milliseconds since 1970, and its number. */
export interface Period { due_ms: number; number: number }
/** A slot or a name that this worker holds under an epoch. `finish`: it must be handed over. */
export interface Grant { grant: number; slot: Num; name: Str; epoch: number; period: Period | null; finish: boolean }
/** A key that is held now, with its fence, and for how long, counted from before the question. */
export interface EnteredKey { key: string; slot: number; epoch: number; valid_ms: number }
/** All grants; `slots` is the size of the ring. `lost`: grants that are lost and not finished yet. */
export interface GrantTable { version: number; valid_ms: number; slots: number; grants: Grant[]; lost?: number[] | null }
/** A line of the stream of grants: `all`, `granted`, `finish`, `lost`, `alive` or `ended`. */
export interface GrantLine extends GrantTable { type: string; why?: Str }
