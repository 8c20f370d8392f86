/** A worker's side of `shardwise serve`, the process next to it: which keys are mine and under which lease, who owns what, what moves, and requests. */

export type { Ask, To } from "./ask.js";
export { Client } from "./client.js";
export {
  Busy, Fenced, LeaseEnded, Moved, NotHandled, NotHeld, NotMine, NotOwning, Problem, ShardwiseError, Unavailable, Unknown, Unsent,
} from "./errors.js";
export { type ForwardedRequest, Reply, type RequestHandler } from "./forwarded.js";
export { Guard, type Fence, type NameFence } from "./guard.js";
export { type IncomingRequest, type OutgoingResponse, RequestHandlers } from "./handlers.js";
export type { Call, Options, UnderLease } from "./http.js";
export type { Keys } from "./keys.js";
export { Lease, type LeaseOptions, type SlotChange } from "./lease.js";
export type { NamedRun, Tenure } from "./named.js";
export type { KeyWork, OwnedRun } from "./owned.js";
export type { HeldHandler, HeldRequest, OwnedHandler, OwnedRequest } from "./owned_requests.js";
export { type Position, type PostgresConnection, Progress, type ProgressOptions, type SqliteConnection } from "./progress.js";
export { Answer, type Send } from "./requests.js";
export type {
  Changed, EnteredKey, Evenness, Event, Explanation, Grant, GrantLine, GrantTable, Group, Held, HeldName, HeldSlot, Holders, Member, Move, Owned, Owner, Ownership,
  Period, Plan, Rebalance, Route, Step, Vanished, Wish, WorkerLease,
} from "./types.js";
export type { Clock } from "./waits.js";
