//! Owners whose work is taken over, after SIGKILL, during SIGSTOP or while they write on
//! (`crates/fencing/tests/databases/progress_torture`).

use std::time::Duration;

use serde_json::Value;

use super::{SoakReport, SoakRun};
use crate::failure::TaskFailure;
use crate::measured::row;

/// The columns of its table, as the test names them.
const FIELDS: &str = "database takeovers kills stops overlaps saves items refused moved wrong";
const DATABASES: [&str; 2] = ["postgres", "sqlite"];
const ALLOWANCE: Duration = Duration::from_mins(20);
/// For one takeover in both databases.
const TAKEOVER_MAX: Duration = Duration::from_secs(3);
const TESTS: &str = "shardwise-fencing --all-features --test databases -- no_position_goes_backwards --nocapture --test-threads=1";

/// Runs that many takeovers in each database. The tests fail if anything is wrong.
pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let reported = soak.figures(ALLOWANCE + TAKEOVER_MAX * soak.runs, [soak.tests(TESTS)])?;
    Ok(SoakReport { text: table(&reported), short: shortfalls(&reported, soak.runs) })
}

fn table(reported: &[Value]) -> String {
    let mut text = "Each owner is a process with two tasks for each of two keys. A transaction does one to four items, in their order, and saves \
         the position behind them. Then the owner is killed (`kills`), stopped for up to 150 ms (`stops`) or left to write on (`overlaps`), \
         and the next one takes over under a higher epoch. `refused`: former owners of which every task was refused. `moved`: positions \
         that they did not save because another task had. `wrong`: items done twice or left out, epochs that fell in the order of the \
         items, and positions that went backwards for an observer.\n\n"
        .to_owned();
    text += &row(FIELDS.split(' '));
    text.extend(["|---|", &"---:|".repeat(FIELDS.split(' ').count() - 1), "\n"]);
    text.extend(reported.iter().map(|run| row(FIELDS.split(' ').map(|field| &run[field])).replace('"', "")));
    text
}

fn shortfalls(reported: &[Value], runs: u32) -> Vec<String> {
    let is_complete =
        |database: &&str| reported.iter().any(|run| run["database"] == **database && run["takeovers"] == runs && run["wrong"] == 0);
    let missing = DATABASES.into_iter().filter(|database| !is_complete(database));
    missing.map(|database| format!("{database}: there are no {runs} takeovers without anything wrong")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_database_has_all_takeovers() {
        let run = |database, takeovers, wrong| json!({ "database": database, "takeovers": takeovers, "kills": 334, "wrong": wrong });
        let both = [run("postgres", 1_000, 0), run("sqlite", 1_000, 0)];
        assert_eq!(shortfalls(&both, 1_000), Vec::<String>::new());
        assert!(table(&both).contains("\n| postgres | 1000 | 334 |"), "{}", table(&both));
        assert_eq!(shortfalls(&[run("postgres", 999, 0), run("sqlite", 1_000, 1)], 1_000).len(), 2);
        assert_eq!(shortfalls(&both[..1], 1_000), ["sqlite: there are no 1000 takeovers without anything wrong"]);
    }
}
