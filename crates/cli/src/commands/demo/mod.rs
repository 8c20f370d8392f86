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
use serde_json::json;
use shardwise::Timing;
use shardwise::core::{format_duration, parse_duration};
use shardwise_outbox::SqliteStore;
use shardwise_outbox::settings::StoreSettings;

use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format, millis};
use crate::{signals, status_line};
use demo_run::{DemoRun, DemoTimings};
use ledger::Ledger;
use show::DemoDisplay;
use stage::{DemoStage, NAME};
use writer::EventWriter;

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

/// Events per second, rounded down.
fn rate(events: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(events) * 1_000_000_000 / time.as_nanos().max(1)).unwrap_or(u64::MAX)
}

impl Demo {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        common.without_settings("the demo writes its own; set it by its options")?;
        Timing::new(self.ttl, None, Timing::default().stop_margin)
            .map_err(|error| CliFailure::usage(format!("--ttl {}: {}", format_duration(self.ttl), error.allowed)))?;
        self.keep.as_deref().map_or(Ok(()), DemoStage::check_keep)?;
        let (writer, refused) = match &self.from {
            Some(from) => {
                let (events, refused) = real::read(from).await?;
                (EventWriter::real(events, self.rate, self.ttl), refused)
            }
            None => (EventWriter::made(self.events, self.aggregates, self.rate, self.ttl), 0),
        };
        let stage = DemoStage::set(self.keep.as_deref(), self.ttl)?;
        let settings = stage.settings()?;
        let StoreSettings::Sqlite { path } = &settings.outbox(NAME)?.store else {
            return Err(CliFailure::usage("the demo's settings name another store than it wrote"));
        };
        let store = SqliteStore::init(path.clone()).await?;
        let placement = settings.settings.policy(NAME)?.policy.placement;
        let shutdown = signals::shutdown()?;
        let show = DemoDisplay::new(common.format() == Format::Json, placement.slots);
        let mut run = DemoRun::new(stage, store, writer, show, placement, self.ttl);
        let outcome = run.run(self.workers.into(), &shutdown).await;
        // Removes the bars; printed lines stay.
        status_line::draw(&[]);
        run.store.close().await;
        match outcome {
            Ok(measured) => self.conclude(&mut run, &measured, refused, common),
            Err(failure) => {
                run.stage.kill_all().await;
                let interrupted = shutdown.is_cancelled();
                Err(if interrupted { failure } else { failure.and(format_args!("look into {}", run.stage.keep().display())) })
            }
        }
    }

    fn conclude(&self, run: &mut DemoRun, measured: &DemoTimings, refused: u64, common: &Common) -> Result<Code> {
        let Ledger { delivered, repeated, repeated_late, out_of_order, .. } = run.ledger;
        let (events, lost, is_clean) = (run.ledger.events(), run.ledger.lost(), run.ledger.is_clean());
        let (takeover_ms, handover_ms) = (millis(measured.takeover), millis(measured.handover));
        let events_per_second = rate(delivered, measured.elapsed);
        let json = json!({
            "events": events, "delivered": delivered, "repeated": repeated, "repeated_late": repeated_late, "lost": lost,
            "out_of_order": out_of_order, "takeover_ms": takeover_ms, "handover_ms": handover_ms, "events_per_second": events_per_second,
        });
        common.print(&json, || {
            let verdict =
                if is_clean { "Nothing lost, nothing out of order." } else { "NOT CLEAN: events are lost, out of order or unknown." };
            let refused = if refused == 0 { String::new() } else { format!("  {refused:>9} of the lines of --from refused\n") };
            format!(
                "\n{verdict}\n\n{refused}  \
                 {events:>9} events written, {delivered} delivered ({events_per_second} a second)\n  \
                 {lost:>9} lost, {out_of_order} out of order\n  \
                 {repeated:>9} repeats of events that were in flight at the kill, {repeated_late} of them after a later event\n  \
                 {takeover_ms:>6} ms from the kill until others held the victim's slots (TTL {})\n  \
                 {handover_ms:>6} ms from the newcomer's start until it held its share\n",
                format_duration(self.ttl)
            )
        })?;
        if !is_clean || self.keep.is_some() {
            output::note(format_args!("settings, outbox, delivered events and logs: {}", run.stage.keep().display()));
        }
        Ok(if is_clean { Code::Ok } else { Code::No })
    }
}
