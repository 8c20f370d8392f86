//! `shardwise outbox enqueue`: events from JSON lines.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use shardwise_outbox::settings::OutboxSettings;

use super::OutboxArgs;
use super::open_store::OpenedStore;
use crate::common::Common;
use crate::events::{self, EventLine};
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format, count};
use crate::signals;

/// The most refused lines in the JSON output; all are counted.
const REFUSED_SHOWN_MAX: usize = 10_000;
/// The most lines in one transaction.
const ENQUEUE_BATCH: usize = 500;

#[derive(Debug, Args)]
pub(crate) struct Enqueue {
    #[command(flatten)]
    pub(super) which: OutboxArgs,
    /// Read the lines from this file [default: stdin]
    #[arg(long, default_value = "-", hide_default_value = true, value_name = "FILE")]
    from: PathBuf,
}

impl Enqueue {
    pub(super) async fn run(&self, outbox: &OutboxSettings, common: &Common) -> Result<Code> {
        let store = OpenedStore::open(outbox).await?;
        let shutdown = signals::shutdown()?;
        let mut lines = events::open(&self.from)?;
        let (mut enqueued, mut refused, mut refused_total) = (0u64, Vec::new(), 0u64);
        let (mut batch, mut through) = (Vec::with_capacity(ENQUEUE_BATCH), 0);
        loop {
            let so_far = |failure: CliFailure| match through {
                0 => failure.and("nothing was written"),
                _ => failure.and(format_args!("{} of lines 1 to {through} written, go on behind them", count(enqueued, "event"))),
            };
            let read = tokio::select! {
                read = lines.recv_many(&mut batch, ENQUEUE_BATCH) => read,
                () = shutdown.cancelled() => return Err(so_far(CliFailure::new(Code::No, "interrupted"))),
            };
            if read == 0 {
                break;
            }
            let last = batch.last().and_then(|line| line.as_ref().ok()).map_or(through, |line| line.number);
            let (written, mut bad) = write(&store, std::mem::take(&mut batch)).await.map_err(so_far)?;
            (enqueued, through) = (enqueued + written, last);
            refused_total += bad.len() as u64;
            if common.format() == Format::Human {
                bad.drain(..).for_each(|(line, why)| output::note(format_args!("line {line}: {why}")));
            } else {
                bad.truncate(REFUSED_SHOWN_MAX.saturating_sub(refused.len()));
                refused.append(&mut bad);
            }
        }
        store.close().await;
        let refused: Vec<_> = refused.iter().map(|(line, reason)| json!({"line": line, "reason": reason})).collect();
        let json = json!({"enqueued": enqueued, "refused": refused, "refused_total": refused_total});
        let text = || format!("{} enqueued, {} refused\n", count(enqueued, "event"), count(refused_total, "line"));
        // If only the failure of stdout were reported, the user would enqueue the events again.
        common.print(&json, text).map_err(|failure| failure.and(format_args!("{} enqueued all the same", count(enqueued, "event"))))?;
        Ok(if refused_total == 0 { Code::Ok } else { Code::No })
    }
}

/// Writes the valid lines of a batch in one transaction; a line that the store refuses does not prevent the others.
async fn write(store: &OpenedStore, batch: Vec<Result<EventLine>>) -> Result<(u64, Vec<(u64, String)>)> {
    let (mut good, mut numbers, mut refused) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()), Vec::new());
    for line in batch {
        let EventLine { number, event } = line?;
        match event {
            Ok(event) => {
                good.push(event);
                numbers.push(number);
            }
            Err(why) => refused.push((number, why)),
        }
    }
    let answers = store.enqueue_each(good).await?;
    let written = answers.iter().filter(|answer| answer.is_ok()).count() as u64;
    refused.extend(numbers.into_iter().zip(answers).filter_map(|(number, answer)| answer.err().map(|error| (number, error.to_string()))));
    refused.sort_by_key(|(number, _)| *number);
    Ok((written, refused))
}
