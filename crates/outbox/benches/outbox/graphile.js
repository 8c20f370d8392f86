// graphile-worker with jobs that do nothing: seconds from its start to the last job done. Arguments: address, number of jobs.
const { createRequire } = require("module");
const load = createRequire(process.cwd() + "/");
const { run, makeWorkerUtils, Logger } = load("graphile-worker");
const { Pool } = load("pg");

const [url, count] = [process.argv[2], Number(process.argv[3])];
const logger = new Logger(() => () => {});

async function main() {
  const pool = new Pool({ connectionString: url, max: 10 });
  pool.on("error", () => {});
  const utils = await makeWorkerUtils({ pgPool: pool, logger });
  await utils.migrate();
  for (let n = 0; n < count; n += 10000) {
    await pool.query(
      `SELECT 1 FROM graphile_worker.add_jobs(
         (SELECT array_agg(json_populate_record(NULL::graphile_worker.job_spec, json_build_object('identifier', 'noop', 'payload', json_build_object('n', i))))
          FROM generate_series($1::int, $2::int) AS i))`,
      [n + 1, Math.min(n + 10000, count)],
    );
  }
  await pool.query("VACUUM ANALYZE graphile_worker._private_jobs");
  await pool.query("CHECKPOINT");
  let done = 0, finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const begun = process.hrtime.bigint();
  const runner = await run({
    pgPool: pool,
    logger,
    noHandleSignals: true,
    taskList: { noop: () => { if (++done === count) finish(); } },
    preset: {
      worker: { concurrentJobs: 24, maxPoolSize: 10, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
    },
  });
  await finished;
  let left = 1;
  while (left > 0) left = Number((await pool.query("SELECT count(*) AS n FROM graphile_worker._private_jobs")).rows[0].n);
  const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
  console.log(JSON.stringify({ seconds }));
  await runner.stop();
  await utils.release();
  await pool.end();
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
