/** The errors of the client. */

/** The base of all errors. `passes`: the error is transient, and a retry may succeed after `retryAfterMs`. */
export class ShardwiseError extends Error {
  override name = "ShardwiseError";
  readonly passes: boolean = false;
  readonly retryAfterMs: number = 0;
}

/** The sidecar did not answer in time. */
export class Unavailable extends ShardwiseError { override name = "Unavailable"; override readonly passes = true; }

/** This worker owns no keys at the moment; `state` says why. */
export class NotOwning extends Unavailable {
  override name = "NotOwning";
  constructor(readonly state: string) { super(`this worker owns nothing at the moment: it is ${state}`); }
}

/** The sidecar refused the request (RFC 9457). `kind` is a stable name, such as `unknown-instance`. `isRefused`: it says that no handler has seen it. */
export class Problem extends ShardwiseError {
  override name = "Problem";
  override readonly passes: boolean;
  readonly kind: string;
  constructor(readonly status: number, readonly type: string, readonly title: string, readonly detail: string, override readonly retryAfterMs: number, readonly isRefused = false) {
    super(`${status} ${title}: ${detail}`);
    this.passes = status === 429 || status === 503;
    this.kind = type.slice(type.lastIndexOf(":") + 1);
  }
  static async of(response: Response): Promise<Problem> {
    const isProblem = response.headers.get("content-type") === "application/problem+json";
    const problem = (isProblem ? await response.json() : {}) as Partial<Problem>;
    if (!isProblem) await response.body?.cancel();
    const after = Number(response.headers.get("retry-after") ?? 0);
    const title = String(problem.title ?? response.statusText);
    const isRefused = response.headers.get("shardwise-peer") === "refused";
    return new Problem(response.status, String(problem.type ?? "about:blank"), title, String(problem.detail ?? ""), after > 0 ? after * 1000 : 0, isRefused);
  }
}

/** No handler has seen the request, so it may be sent again. `problem` is what the sidecar has answered, if it was reached. */
export class NotHandled extends ShardwiseError {
  override name = "NotHandled";
  override readonly passes = true;
  override readonly retryAfterMs: number;
  constructor(why: string, readonly problem?: Problem | undefined) {
    super(`the request was not handled: ${why}`);
    this.retryAfterMs = problem?.retryAfterMs ?? 0;
  }
}
/** No member was reached in time, or the sidecar was not. */
export class Unsent extends NotHandled { override name = "Unsent"; }
/** The member that was asked last does not serve the destination, and no other one took the request in time. */
export class NotMine extends NotHandled { override name = "NotMine"; }
/** The member that was asked last has too many requests, or the sidecar has; send fewer at once, or later. */
export class Busy extends NotHandled { override name = "Busy"; }

/** The request may have been handled: not at all, in part or in full. If it is sent again, it may be handled twice. */
export class Unknown extends ShardwiseError {
  override name = "Unknown";
  constructor(why: string, readonly problem?: Problem | undefined) { super(`it is unknown if the request was handled: ${why}`); }
}

/** Why a key or a name cannot be worked on now, or why work in it has to stop: this worker does not hold it, or not any more. */
export class NotHeld extends ShardwiseError { override name = "NotHeld"; }

/** The lease has ended: all work under it has to stop. `isFinal`: no other one is opened. `cause` is the error that ended it, if there was one. */
export class LeaseEnded extends NotHeld {
  override name = "LeaseEnded";
  constructor(why: string, readonly isFinal: boolean, options?: ErrorOptions) { super(`the lease has ended: ${why}`, options); }
}

/** The database has seen a higher epoch: another worker has acquired the resource since. Roll back, and give up this work. */
export class Fenced extends ShardwiseError {
  override name = "Fenced";
  constructor(readonly group: string, readonly resource: string, readonly epoch: number, readonly seen: number | null = null) {
    const known = seen === null ? "" : ` (${seen} was seen)`;
    super(`${resource} of group ${JSON.stringify(group)} is held under a higher epoch than ${epoch}${known}: roll back and abandon this work`);
  }
}

/** The database has another position of the key than the one that `save` names: another task has saved one since. Roll back, and resume. */
export class Moved extends ShardwiseError {
  override name = "Moved";
  constructor(readonly key: string, readonly number: number, readonly found: number | null) {
    const has = found === null ? "none, because the transaction of `resume` was not committed" : `number ${found}`;
    super(`the progress of ${JSON.stringify(key)} was not saved: it goes on from position number ${number}, but the database has ${has}; roll back, and resume`);
  }
}
