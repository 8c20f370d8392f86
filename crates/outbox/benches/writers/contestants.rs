//! Who writes what: the tables, the statements, and the aggregates that a transaction is about.

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::index;

/// The database in which every table is empty, and the one whose outbox has an event of each aggregate.
pub(crate) const EMPTY: &str = "empty";
pub(crate) const KNOWN: &str = "known";

/// A table, or a function that writes one, with the statement of a writer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    /// Where its rows are counted.
    pub(crate) table: &'static str,
    /// The database that each run begins with a copy of.
    pub(crate) database: &'static str,
    statement: Statement,
}

#[derive(Debug, Clone, Copy)]
enum Statement {
    Events,
    Jobs,
    Graphile,
}

const PLAIN: Contestant = Contestant { name: "plain", table: "plain", database: EMPTY, statement: Statement::Events };
const CHECKED: Contestant = Contestant { name: "checked", table: "checked", ..PLAIN };
const OURS: Contestant = Contestant { name: "ours", table: "outbox", ..PLAIN };
const OURS_KNOWN: Contestant = Contestant { name: "ours, known", database: KNOWN, ..OURS };
const SKIP_LOCKED: Contestant = Contestant { name: "skip locked", table: "queue", database: EMPTY, statement: Statement::Jobs };
pub(crate) const GRAPHILE: Contestant =
    Contestant { name: "graphile-worker", table: "graphile_worker._private_jobs", database: EMPTY, statement: Statement::Graphile };

/// What one transaction of a client writes, in one statement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pattern {
    /// One event of an aggregate drawn at random.
    One,
    /// Ten events of ten aggregates.
    Ten,
    /// Ten events of one aggregate.
    TenOfOne,
    /// One event, and all clients have the same aggregate.
    Hot,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) pattern: Pattern,
    pub(crate) contestant: Contestant,
}

const fn run(pattern: Pattern, contestant: Contestant) -> Run {
    Run { pattern, contestant }
}

pub(crate) const RUNS: &[Run] = &[
    run(Pattern::One, PLAIN),
    run(Pattern::One, CHECKED),
    run(Pattern::One, OURS),
    run(Pattern::One, OURS_KNOWN),
    run(Pattern::One, SKIP_LOCKED),
    run(Pattern::One, GRAPHILE),
    run(Pattern::Ten, PLAIN),
    run(Pattern::Ten, OURS),
    run(Pattern::Ten, OURS_KNOWN),
    run(Pattern::Ten, SKIP_LOCKED),
    run(Pattern::Ten, GRAPHILE),
    run(Pattern::TenOfOne, PLAIN),
    run(Pattern::TenOfOne, OURS),
    run(Pattern::Hot, OURS),
];

impl Pattern {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Ten => "ten",
            Self::TenOfOne => "ten of one",
            Self::Hot => "hot",
        }
    }

    pub(crate) fn events(self) -> usize {
        match self {
            Self::One | Self::Hot => 1,
            Self::Ten | Self::TenOfOne => 10,
        }
    }

    /// The aggregate of each event, from 0 to below `aggregates`; sorted, as writers of several aggregates must sort them.
    pub(crate) fn draw(self, chance: &mut StdRng, aggregates: u64) -> Vec<u64> {
        match self {
            Self::One => vec![chance.random_range(0..aggregates)],
            Self::Ten => {
                let length = usize::try_from(aggregates).unwrap();
                let mut drawn: Vec<u64> = index::sample(chance, length, self.events()).into_iter().map(|at| at as u64).collect();
                drawn.sort_unstable();
                drawn
            }
            Self::TenOfOne => vec![chance.random_range(0..aggregates); self.events()],
            Self::Hot => vec![0],
        }
    }
}

impl Contestant {
    /// Whether the statement takes the aggregate of each event, before the event's payload. A job of graphile-worker has none: its order
    /// within a named queue would cost a row for each name, and is not asked for.
    pub(crate) fn takes_aggregates(self) -> bool {
        !matches!(self.statement, Statement::Graphile)
    }

    /// The statement that writes so many events.
    pub(crate) fn sql(self, events: usize) -> String {
        let rows = |row: fn(usize) -> String| (0..events).map(row).collect::<Vec<_>>().join(", ");
        match self.statement {
            Statement::Events => {
                let rows = rows(|n| format!("('order', ${}, 'OrderPlaced', ${})", 2 * n + 1, 2 * n + 2));
                format!("INSERT INTO {} (aggregatetype, aggregateid, type, payload) VALUES {rows}", self.table)
            }
            Statement::Jobs => {
                let rows = rows(|n| format!("('order/' || ${}, 'OrderPlaced', ${})", 2 * n + 1, 2 * n + 2));
                format!("INSERT INTO {} (key, type, payload) VALUES {rows}", self.table)
            }
            Statement::Graphile if events == 1 => "SELECT 1 FROM graphile_worker.add_job('OrderPlaced', $1::json)".to_owned(),
            Statement::Graphile => {
                let job =
                    |n: usize| format!("('OrderPlaced', ${}::json, NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec", n + 1);
                format!("SELECT 1 FROM graphile_worker.add_jobs(ARRAY[{}])", rows(job))
            }
        }
    }
}
