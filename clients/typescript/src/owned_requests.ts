/** Requests to the owner of a key and to the holder of a name, at the worker that has it. A handler of a key works under the lease, as entered work does. */

import { NotHeld } from "./errors.js";
import { type ForwardedRequest, Refusal, type RequestHandler, problem } from "./forwarded.js";
import type { Fence, Guard } from "./guard.js";
import type { Lease } from "./lease.js";
import { tied } from "./waits.js";

/**
 * A request to a key, at the worker that owns the key. `fence` is for your own writes, and `undefined` under eventual ownership. `guard` is the work under
 * the lease of `onOwned`; then `signal` aborts also when the slot is lost.
 */
export interface OwnedRequest extends ForwardedRequest { key: string; guard: Guard | undefined }
/** Returns a `Reply`, or a value that is sent as JSON. */
export type OwnedHandler = (request: OwnedRequest) => unknown;

/** A request to a name, such as `singleton/leader`, at the worker that holds it. The epoch is for your own writes. */
export interface HeldRequest extends ForwardedRequest { name: string; epoch: number }
/** Returns a `Reply`, or a value that is sent as JSON. */
export type HeldHandler = (request: HeldRequest) => unknown;

/** The handler of requests to names. The sidecar holds the name until the answer. */
export function ofHolder(handler: HeldHandler): RequestHandler {
  return (request) => {
    const { name, epoch } = request;
    if (name === undefined || epoch === undefined) return problem(400, "not understood", "the sidecar does not say which name it holds, and under which epoch");
    return handler({ ...request, name, epoch });
  };
}

/** The handler of requests to keys, entered under the lease. */
export function underLease(handler: OwnedHandler, lease: Lease | undefined): RequestHandler {
  return async (request) => {
    const { key, fence } = request;
    if (key === undefined) return problem(400, "the key is not valid", "the sidecar does not pass on this key, as a header cannot be that long");
    if (lease === undefined) return handler({ ...request, key, guard: undefined });
    const guard = entered(lease, key, fence);
    if (guard instanceof Refusal) return guard;
    const [ends, end] = tied(request.signal);
    guard.lost.addEventListener("abort", end);
    try {
      const answer = await handler({ ...request, key, fence: guard.fence, guard, signal: ends.signal });
      if (guard.isHeld) return answer;
    } catch (error) {
      if (guard.isHeld) throw error;
    } finally {
      end();
      guard.leave();
    }
    return problem(502, "it is unknown if this was handled", "this worker has lost the slot of the key meanwhile");
  };
}

function entered(lease: Lease, key: string, fence: Fence | undefined): Guard | Refusal {
  const refusal = (why: string) => new Refusal(421, "this worker does not hold the key", why);
  try {
    const guard = lease.enter(key);
    if (fence === undefined || (fence.slot === guard.fence.slot && fence.epoch === guard.fence.epoch)) return guard;
    guard.leave();
    return refusal("the sidecar holds it under another epoch, of which this worker has not heard yet");
  } catch (error) {
    if (error instanceof NotHeld) return refusal(error.message);
    throw error;
  }
}
