/**
 * Where the owner of a key goes on: the position that was saved last, in the same transaction as the work up to it.
 *
 * What a call does is a generator of statements, which does no I/O; the methods carry them out.
 */

import { Fenced, Moved, ShardwiseError } from "./errors.js";
import type { Fence, NameFence } from "./guard.js";
import { POSTGRES, SQLITE, SQLITE_POSITION, type Statements } from "./statements.js";

/**
 * A position as the database has it. `number`: how many times one was saved; 0 before the first time, when `value` is `null` and the work begins at
 * its start. `savedBy` and `savedEpoch`: the instance that saved it, and under which epoch.
 */
export interface Position { number: number; value: string | null; savedBy: string | null; savedEpoch: number | null }

/** `group` and `instance` are the `group` and the `instance_id` of `ownership()`, `fence` is the guard's. */
export interface ProgressOptions { group: string; key: string; fence: Fence | NameFence; instance: string }

/** A connection of PostgreSQL with a transaction, such as a `Client` of the package `pg`; not a pool. */
export interface PostgresConnection {
  query(text: string, values: unknown[]): Promise<{ rows: unknown[]; rowCount: number | null }>;
}
/** A database of `node:sqlite` or `better-sqlite3` with a transaction. */
export interface SqliteConnection {
  prepare(sql: string): { run(...values: (string | number)[]): { changes: number | bigint }; get(...values: (string | number)[]): unknown };
  readonly isTransaction?: boolean;
  readonly inTransaction?: boolean;
}

type Row = Record<string, unknown>;
/** A statement. It is answered with its first row, if it reads, and else with how many rows it has changed. */
interface Step { sql: string; values: (string | number)[]; reads: boolean }
type Steps<T> = Generator<Step, T, Row | number | undefined>;

const isNull = (value: unknown): value is null | undefined => value === null || value === undefined;
/** BIGINT comes as a text, a number or a bigint. */
const numberOf = (value: unknown): number | null => (isNull(value) ? null : Number(value));
const textOf = (value: unknown): string | null => (isNull(value) ? null : String(value));

/** The progress of one key, for its present owner. All calls belong into a transaction of yours; after an error, roll it back. */
export class Progress {
  readonly #options: ProgressOptions;
  readonly #resource: string;

  constructor(options: ProgressOptions) {
    this.#options = options;
    this.#resource = "slot" in options.fence ? `slot/${options.fence.slot}` : `name/${options.fence.name}`;
  }

  /** The position from which to go on. From the commit on, lower epochs are refused (`Fenced`). It checks the fence first. */
  async resume(connection: PostgresConnection): Promise<Position> {
    return carriedOut(connection, this.#resuming(POSTGRES));
  }

  /**
   * Saves the position `to`, at most 4,096 bytes, and returns it for the next call. `position` is the one from which the work went on: the answer of
   * `resume`, whose transaction was committed or is this one, or of the `save` before. If another task has saved one since, this is `Moved`. It
   * checks the fence first.
   */
  async save(connection: PostgresConnection, position: Position, to: string): Promise<Position> {
    return carriedOut(connection, this.#saving(POSTGRES, position, to));
  }

  /** As `resume`, in SQLite. */
  resumeSync(database: SqliteConnection): Position { return carriedOutSync(database, this.#resuming(SQLITE)); }

  /** As `save`, in SQLite. */
  saveSync(database: SqliteConnection, position: Position, to: string): Position {
    return carriedOutSync(database, this.#saving(SQLITE, position, to));
  }

  *#resuming(sql: Statements): Steps<Position> {
    yield* this.#checking(sql);
    const { group, key, fence } = this.#options;
    let row = yield { sql: sql.resume, values: [group, key, fence.epoch], reads: sql === POSTGRES };
    if (row === 1) row = yield { sql: SQLITE_POSITION, values: [group, key], reads: true };
    if (typeof row !== "object") throw this.#refusal(yield* this.#found(sql));
    const { number, position, saved_by, saved_epoch } = row;
    return { number: Number(number), value: textOf(position), savedBy: textOf(saved_by), savedEpoch: numberOf(saved_epoch) };
  }

  *#saving(sql: Statements, position: Position, to: string): Steps<Position> {
    if (typeof to !== "string") throw new TypeError(`a position is a text, not ${typeof to}`);
    yield* this.#checking(sql);
    const { group, key, fence, instance } = this.#options;
    const changed = yield { sql: sql.save, values: [group, key, fence.epoch, instance, position.number, to], reads: false };
    if (changed === 1) return { number: position.number + 1, value: to, savedBy: instance, savedEpoch: fence.epoch };
    const found = yield* this.#found(sql);
    if (found.epoch === null || found.epoch <= fence.epoch) throw new Moved(key, position.number, found.number);
    throw this.#refusal(found);
  }

  /** The fence. */
  *#checking(sql: Statements): Steps<void> {
    const { group, fence } = this.#options;
    const checked = yield { sql: sql.check, values: [group, this.#resource, fence.epoch], reads: sql === POSTGRES };
    if (typeof checked !== "object") {
      if (checked !== 1) throw this.#refusal();
      return;
    }
    const { seen, raised, fixed } = checked;
    if (raised === true && fixed === true) {
      throw new ShardwiseError(
        `epoch ${fence.epoch} of ${this.#resource} is new, and a transaction above READ COMMITTED does not see the last writes of its former owner: ` +
          "resume in a transaction in READ COMMITTED, commit it, and begin again",
      );
    }
    if (raised !== true && numberOf(seen) !== fence.epoch) throw this.#refusal({ epoch: numberOf(seen) });
  }

  /** The epoch and the number of the key in the database. */
  *#found(sql: Statements): Steps<{ epoch: number | null; number: number | null }> {
    const row = yield { sql: sql.found, values: [this.#options.group, this.#options.key], reads: true };
    if (typeof row !== "object" || !row["inside"]) throw noTransaction();
    return { epoch: numberOf(row["epoch"]), number: numberOf(row["number"]) };
  }

  #refusal({ epoch }: { epoch: number | null } = { epoch: null }): Fenced {
    return new Fenced(this.#options.group, this.#resource, this.#options.fence.epoch, epoch);
  }
}

function noTransaction(): ShardwiseError {
  return new ShardwiseError("progress is saved in the transaction that does the work, and there is none: begin one first");
}

async function carriedOut<T>(connection: PostgresConnection, steps: Steps<T>): Promise<T> {
  let step = steps.next();
  while (step.done !== true) {
    const { rows, rowCount } = await connection.query(step.value.sql, step.value.values);
    step = steps.next(step.value.reads ? (rows[0] as Row | undefined) : (rowCount ?? 0));
  }
  return step.value;
}

function carriedOutSync<T>(database: SqliteConnection, steps: Steps<T>): T {
  let step = steps.next();
  while (step.done !== true) {
    const { sql, values, reads } = step.value;
    const marked: (string | number)[] = [];
    const text = sql.replace(/\?(\d+)/g, (_, number: string) => {
      marked.push(values[Number(number) - 1] ?? "");
      return "?";
    });
    const statement = database.prepare(text);
    const answer = reads ? (statement.get(...marked) as Row | undefined) : Number(statement.run(...marked).changes);
    // PostgreSQL's statements find that out by themselves.
    if (database.isTransaction === false || database.inTransaction === false) throw noTransaction();
    step = steps.next(answer);
  }
  return step.value;
}
