//! `shardwise demo`: several publishers share an outbox while one is killed and one joins, and every delivery is checked.

mod demo_run;
mod ledger;
mod real;
mod show;
mod stage;
mod tail;
mod writer;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use shardwise::Timing;
use shardwise::core::{format_duration, parse_duration};
use shardwise_outbox::SqliteStore;
use shardwise_outbox::settings::StoreSettings;

use crate::args::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format};
use crate::signals;
use demo_run::{DemoRun, DemoTimings};
use show::DemoDisplay;
use stage::{DemoStage, NAME};
use writer::EventWriter;

/// Watch publishers share an outbox while one is killed and one joins
#[derive(Debug, Args)]
#[command(after_help = "\
Writes events while publisher processes share one outbox. After a third of the events one of them gets SIGKILL, after two thirds a new one \
joins. Then the delivered file is checked. The exit code is 0 only if nothing is lost or out of order. The demo needs no settings and leaves \
nothing behind, unless --keep is given.

Your own events, such as the commits of any repository, author by author:

  git log --reverse --format='{\"aggregatetype\":\"author\",'\\
'\"aggregateid\":\"%ae\",\"type\":\"commit\",\"payload\":\"%H\"}' |
  shardwise demo --from -")]
pub(crate) struct Demo {
    /// Start with this many publisher processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    workers: u16,
    /// Write at least this many events
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000), value_name = "N")]
    events: u64,
    /// Spread the events over this many aggregates
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..), value_name = "N")]
    aggregates: u64,
    /// Write this many events a second
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000), value_name = "N")]
    rate: u64,
    /// Take over from a publisher that is silent for this long
    #[arg(long, default_value = "3s", value_parser = parse_duration, value_name = "TIME")]
    ttl: Duration,
    /// Work in this new directory and keep it
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Read the events from JSON lines instead; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["events", "aggregates"])]
    from: Option<PathBuf>,
}

#[derive(Serialize)]
struct Verdict {
    events: u64,
    delivered: u64,
    repeated: u64,
    repeated_late: u64,
    lost: u64,
    out_of_order: u64,
    takeover_ms: u64,
    handover_ms: u64,
    events_per_second: u64,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Events per second, rounded down.
fn rate(events: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(events) * 1_000_000_000 / time.as_nanos().max(1)).unwrap_or(u64::MAX)
}

impl Demo {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let quiet = common.format() == Format::Json;
        common.without_settings("the demo writes its own; set it by its options")?;
        Timing::new(self.ttl, None, Timing::default().stop_margin)
            .map_err(|error| CliFailure::new(Code::Usage, format!("--ttl {}: {}", format_duration(self.ttl), error.allowed)))?;
        self.keep.as_deref().map_or(Ok(()), DemoStage::check_keep)?;
        let (writer, refused) = match &self.from {
            Some(from) => {
                let real = real::read(from).await?;
                (EventWriter::real(real.events, self.rate, self.ttl), real.refused)
            }
            None => (EventWriter::made(self.events, self.aggregates, self.rate), 0),
        };
        let stage = DemoStage::set(self.keep.as_deref(), self.ttl)?;
        let settings = stage.settings()?;
        let StoreSettings::Sqlite { path } = &settings.outbox(NAME)?.store else {
            return Err(CliFailure::new(Code::Usage, "the demo's settings name another store than it wrote"));
        };
        let store = SqliteStore::init(path.clone()).await?;
        let placement = settings.settings.policy(NAME)?.policy.placement;
        let shutdown = signals::shutdown()?;
        let mut run = DemoRun::new(stage, store, writer, DemoDisplay::new(quiet, placement.slots), placement, self.ttl);
        let outcome = run.run(self.workers.into(), &shutdown).await;
        run.show.end();
        run.store.close().await;
        if outcome.is_err() {
            run.stage.kill_all().await;
        }
        match outcome {
            Ok(measured) => self.conclude(&mut run, &measured, refused, quiet),
            Err(failure) => {
                let interrupted = shutdown.is_cancelled();
                Err(if interrupted { failure } else { failure.and(format_args!("look into {}", run.stage.keep().display())) })
            }
        }
    }

    fn conclude(&self, run: &mut DemoRun, measured: &DemoTimings, refused: u64, quiet: bool) -> Result<Code> {
        let ledger = &run.ledger;
        let verdict = Verdict {
            events: ledger.events(),
            delivered: ledger.delivered,
            repeated: ledger.repeated,
            repeated_late: ledger.repeated_late,
            lost: ledger.lost(),
            out_of_order: ledger.out_of_order,
            takeover_ms: millis(measured.takeover),
            handover_ms: millis(measured.handover),
            events_per_second: rate(ledger.delivered, measured.elapsed),
        };
        let clean = ledger.is_clean();
        if quiet {
            output::json_line(&verdict)?;
        } else {
            output::text(&self.summary(&verdict, refused, clean))?;
        }
        if !clean || self.keep.is_some() {
            output::note(format_args!("settings, outbox, delivered events and logs: {}", run.stage.keep().display()));
        }
        Ok(if clean { Code::Ok } else { Code::No })
    }

    fn summary(&self, v: &Verdict, refused: u64, clean: bool) -> String {
        let verdict = if clean { "Nothing lost, nothing out of order." } else { "NOT CLEAN: events are lost, out of order or unknown." };
        let refused = if refused == 0 { String::new() } else { format!("  {refused:>9} of the lines of --from refused\n") };
        format!(
            "\n{verdict}\n\n{refused}  \
             {:>9} events written, {} delivered ({} a second)\n  \
             {:>9} lost, {} out of order\n  \
             {:>9} repeats of events that were in flight at the kill, {} of them after a later event\n  \
             {:>6} ms from the kill until others held the victim's slots (TTL {})\n  \
             {:>6} ms from the newcomer's start until it held its share\n",
            v.events,
            v.delivered,
            v.events_per_second,
            v.lost,
            v.out_of_order,
            v.repeated,
            v.repeated_late,
            v.takeover_ms,
            format_duration(self.ttl),
            v.handover_ms
        )
    }
}
