/**
 * Progress in PostgreSQL and in SQLite. SHARDWISE_POSTGRES is the address of a database without tables, SHARDWISE_PG the folder of the package `pg`,
 * SHARDWISE_SQL that of the tables, SHARDWISE_README the client's page. It runs apart from the other tests: `node:sqlite` needs a newer Node than the client.
 */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { after, before, beforeEach, test } from "node:test";

import { Fenced, Moved, type Position, type PostgresConnection, Progress, ShardwiseError, type SqliteConnection } from "../src/index.js";

interface PgClient extends PostgresConnection { connect(): Promise<void>; end(): Promise<void>; query(text: string, values?: unknown[]): ReturnType<PostgresConnection["query"]> }
interface Database extends SqliteConnection { exec(sql: string): void; close(): void }

const require = createRequire(import.meta.url);
const pg = require(process.env["SHARDWISE_PG"] ?? "") as { Client: new (options: { connectionString: string | undefined }) => PgClient };
const sqlite = require("node:sqlite") as { DatabaseSync: new (path: string) => Database };

const START: Position = { number: 0, value: null, savedBy: null, savedEpoch: null };
const saved = (number: number, value: string, epoch: number): Position => ({ number, value, savedBy: `worker-${epoch}`, savedEpoch: epoch });
const owner = (slot = 17, epoch = 5) => new Progress({ group: "büro 1", key: "customers", fence: { slot, epoch }, instance: `worker-${epoch}` });
const noTransaction = (error: unknown) => error instanceof ShardwiseError && error.message.includes("begin one first");

async function tables(database: string): Promise<string> {
  const files = ["fence", "progress"].map((table) => path.join(process.env["SHARDWISE_SQL"] ?? "", database, `${table}.up.sql`));
  return (await Promise.all(files.map((file) => readFile(file, "utf8")))).join("");
}

/** A transaction in either database. */
interface Transaction {
  resume(progress: Progress): Promise<Position>;
  save(progress: Progress, position: Position, to: string): Promise<Position>;
}
type InTransaction = <T>(work: (tx: Transaction) => Promise<T>) => Promise<T>;

let [client, other, database]: [PgClient?, PgClient?, Database?] = [];
const connected = async () => {
  const made = new pg.Client({ connectionString: process.env["SHARDWISE_POSTGRES"] });
  await made.connect();
  return made;
};

before(async () => {
  [client, other] = [await connected(), await connected()];
  await client.query(await tables("postgres"));
});
beforeEach(async () => {
  await client?.query("TRUNCATE shardwise_fence, shardwise_progress");
  database?.close();
  database = new sqlite.DatabaseSync(":memory:");
  database.exec(await tables("sqlite"));
});
after(async () => {
  await Promise.all([client?.end(), other?.end()]);
  database?.close();
});

async function inPostgres<T>(connection: PgClient | undefined, work: (tx: Transaction) => Promise<T>, begin = "BEGIN"): Promise<T> {
  assert.ok(connection !== undefined);
  await connection.query(begin);
  try {
    const done = await work({
      resume: (progress) => progress.resume(connection),
      save: (progress, position, to) => progress.save(connection, position, to),
    });
    await connection.query("COMMIT");
    return done;
  } catch (error) {
    await connection.query("ROLLBACK");
    throw error;
  }
}

async function inSqlite<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
  const db = database;
  assert.ok(db !== undefined);
  db.exec("BEGIN IMMEDIATE");
  try {
    const done = await work({
      resume: async (progress) => progress.resumeSync(db),
      save: async (progress, position, to) => progress.saveSync(db, position, to),
    });
    db.exec("COMMIT");
    return done;
  } catch (error) {
    db.exec("ROLLBACK");
    throw error;
  }
}

const DATABASES: [string, InTransaction][] = [["PostgreSQL", (work) => inPostgres(client, work)], ["SQLite", inSqlite]];

for (const [name, inTransaction] of DATABASES) {
  const resume = (progress: Progress) => inTransaction((tx) => tx.resume(progress));
  const save = (progress: Progress, position: Position, to: string) => inTransaction((tx) => tx.save(progress, position, to));

  test(`${name}: the next owner goes on, and the former one is refused`, async () => {
    assert.deepEqual(await resume(owner()), START);
    const one = await save(owner(), START, "10");
    assert.deepEqual(one, saved(1, "10", 5));
    await inTransaction(async (tx) => assert.deepEqual(await tx.save(owner(), await tx.resume(owner()), "20"), saved(2, "20", 5)));
    assert.deepEqual(await resume(owner(17, 6)), saved(2, "20", 5));
    const fenced = (error: unknown) => error instanceof Fenced && error.resource === "slot/17" && error.epoch === 5;
    await assert.rejects(resume(owner()), fenced);
    await assert.rejects(save(owner(), saved(2, "20", 5), "stale"), fenced);
    // The number of slots was changed: only the row of the key has seen the owner's epoch.
    await resume(owner(300, 7));
    await assert.rejects(save(owner(17, 6), saved(2, "20", 5), "stale"), (error) => error instanceof Fenced && error.seen === 7);
    await assert.rejects(resume(owner(17, 6)), (error) => error instanceof Fenced && error.seen === 7);
    const named = new Progress({ group: "büro 1", key: "orders", fence: { name: "singleton/leader", epoch: 5 }, instance: "worker-5" });
    assert.deepEqual(await save(named, await resume(named), ""), saved(1, "", 5));
  });

  test(`${name}: two tasks cannot overwrite each other`, async () => {
    const start = await resume(owner());
    const one = await save(owner(), start, "a");
    const message = 'the progress of "customers" was not saved: it goes on from position number 0, but the database has number 1; roll back, and resume';
    await assert.rejects(save(owner(), start, "z"), { name: "Moved", message });
    // The same text as before is another position.
    await save(owner(), await save(owner(), one, "b"), "a");
    await assert.rejects(save(owner(), one, "z"), (error) => error instanceof Moved && error.number === 1 && error.found === 3);
    assert.deepEqual(await resume(owner()), saved(3, "a", 5));
  });

  test(`${name}: what is rolled back was not saved`, async () => {
    const fails = async (work: (tx: Transaction) => Promise<Position>) => {
      await assert.rejects(inTransaction(async (tx) => { await work(tx); throw new RangeError("on purpose"); }), RangeError);
    };
    await fails((tx) => tx.resume(owner()));
    await assert.rejects(save(owner(), START, "1"), (error) => error instanceof Moved && error.found === null);
    await resume(owner());
    await fails((tx) => tx.save(owner(), START, "1"));
    assert.deepEqual(await resume(owner()), START);
    await assert.rejects(save(owner(), START, 7 as unknown as string), new TypeError("a position is a text, not number"));
    await assert.rejects(save(owner(), START, "x".repeat(4_097)), /position_within_4096_bytes/);
  });
}

test("without a transaction there is no progress", async () => {
  const [pgClient, db] = [client, database];
  assert.ok(pgClient !== undefined && db !== undefined);
  await assert.rejects(owner().resume(pgClient), noTransaction);
  await assert.rejects(owner().save(pgClient, START, "1"), noTransaction);
  assert.throws(() => owner().resumeSync(db), noTransaction);
  assert.throws(() => owner().saveSync(db, START, "1"), noTransaction);
});

test("above READ COMMITTED a new epoch comes first", async () => {
  const above = () => inPostgres(client, (tx) => tx.resume(owner()), "BEGIN ISOLATION LEVEL REPEATABLE READ");
  await assert.rejects(above(), /resume in a transaction in READ COMMITTED/);
  await inPostgres(client, (tx) => tx.resume(owner()));
  assert.deepEqual(await above(), START);
});

test("tasks that resume wait for each other", async () => {
  const saves = async (connection: PgClient | undefined) => {
    for (let time = 0; time < 10; time++) {
      await inPostgres(connection, async (tx) => {
        const position = await tx.resume(owner());
        await tx.save(owner(), position, String(Number(position.value ?? 0) + 1));
      });
    }
  };
  await Promise.all([saves(client), saves(other)]);
  assert.deepEqual(await inPostgres(client, (tx) => tx.resume(owner())), saved(20, "20", 5));
});

test("the example of the page runs", async () => {
  const text = await readFile(process.env["SHARDWISE_README"] ?? "", "utf8");
  const [, example = ""] = /```ts\n(.*?)```/s.exec(text.slice(text.indexOf("\n## Progress\n"))) ?? [];
  const AsyncFunction = (async () => undefined).constructor as new (...texts: string[]) => (...values: unknown[]) => Promise<void>;
  const runs = new AsyncFunction("Progress", "group", "key", "guard", "instance", "db", "rows", example);
  const [db, rows] = [client, Array.from({ length: 2_500 }, (_, row) => row)];
  assert.ok(db !== undefined);
  await db.query("CREATE TABLE imported (row int)");
  // What is at its end has nothing left to do.
  for (let time = 0; time < 2; time++) {
    await runs(Progress, "importers", "file-1", { fence: { slot: 17, epoch: 5 }, isHeld: true }, "worker-5", db, rows);
  }
  const imported = await db.query("SELECT row FROM imported ORDER BY row");
  assert.deepEqual(imported.rows.map((row) => (row as { row: number }).row), rows);
});
