/** A worker's side of `shardwise serve`, the process next to it: which keys are mine and under which lease, who owns what, what moves, and requests. */

export { Client } from "./client.js";
export { Fenced, LeaseEnded, Moved, NotHeld, NotOwning, Problem, ShardwiseError, Unavailable } from "./errors.js";
export { Guard, type Fence, type NameFence } from "./guard.js";
export { type ForwardedRequest, type IncomingRequest, type OutgoingResponse, Reply, type RequestHandler, RequestHandlers } from "./handlers.js";
export type { Call, Options, UnderLease } from "./http.js";
export type { Keys } from "./keys.js";
export { Lease, type LeaseOptions, type SlotChange } from "./lease.js";
export type { NamedRun, Tenure } from "./named.js";
export type { KeyWork, OwnedRun } from "./owned.js";
export { type Position, type PostgresConnection, Progress, type ProgressOptions, type SqliteConnection } from "./progress.js";
export { Answer, type Send } from "./requests.js";
export type {
  Changed, EnteredKey, Evenness, Event, Explanation, Grant, GrantLine, GrantTable, Group, Held, HeldName, HeldSlot, Holders, Member, Move, Owned, Owner, Ownership,
  Period, Plan, Rebalance, Step, Vanished, Wish, WorkerLease,
} from "./types.js";
export type { Clock } from "./waits.js";
