//! `shardwise outbox restored`: raises epochs and sequences after commits were lost.

use clap::Args;
use serde_json::json;
use shardwise_outbox::settings::OutboxSettings;
use shardwise_outbox::store::ABOVE_MAX;

use super::OutboxArgs;
use super::open_store::OpenedStore;
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::output::{self, Format, count};

pub(super) const HELP: &str = "\
Use it after an older copy was restored, or a lagging standby took over: otherwise numbers that consumers have seen are used again, and \
those events are refused or dropped.
Stop all publishers first, and for a restored SQLite file the writers too. N is the highest shardepoch, and the highest sequence of any key, \
that any consumer has seen. If the epoch is unknown, use $(date +%s); 0 lifts nothing. Waiting events keep their sequences. Running it twice \
does no harm.
A copy of a PostgreSQL outbox by logical replication refuses every event until this has run in it, with the highest sequence that the \
source has given.

  shardwise outbox restored --epoch-above 7 --sequence-above 1200";

#[derive(Debug, Args)]
pub(crate) struct RestoredArgs {
    #[command(flatten)]
    pub(super) which: OutboxArgs,
    /// Continue epochs above this one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=ABOVE_MAX))]
    epoch_above: u64,
    /// Continue the sequences of every key above this one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=ABOVE_MAX))]
    sequence_above: u64,
}

impl RestoredArgs {
    pub(super) async fn run(&self, outbox: &OutboxSettings, common: &Common) -> Result<Code> {
        let store = OpenedStore::open(outbox).await?;
        let restored = match &store {
            OpenedStore::Sqlite(store) => store.restored(self.epoch_above, self.sequence_above).await?,
            #[cfg(feature = "postgres")]
            OpenedStore::Postgres(store) => store.restored(self.epoch_above, self.sequence_above).await?,
        };
        store.close().await;
        if common.format() == Format::Json {
            output::json_line(&json!({
                "epoch": restored.epoch, "sequence_above": self.sequence_above, "aggregates": restored.aggregates,
                "waiting": restored.waiting, "publishers_alive": restored.publishers,
            }))?;
            return Ok(Code::Ok);
        }
        output::text(&format!("epochs go on above {}, sequences above {}\n", restored.epoch, self.sequence_above))?;
        if restored.publishers > 0 {
            let alive = count(restored.publishers, "publisher");
            output::note(format_args!("{alive} still alive: slots are taken again, and events in flight may arrive twice"));
        }
        if restored.waiting > 0 {
            output::note(format_args!(
                "up to {} wait and keep sequences that are not above {}: consumers that drop seen sequences will drop the ones that were \
                 written after the loss",
                count(restored.waiting, "event"),
                self.sequence_above
            ));
        }
        Ok(Code::Ok)
    }
}
