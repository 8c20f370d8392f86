//! Following one group for all its watches: read it, wait for changes, prove it current, and start over after a pause when something fails.

use std::future::Future;
use std::time::Duration;

use shardwise_core::Backoff;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Feed, Watched};
use crate::{Result, jittered};

/// First and longest pause after failures that may pass by themselves.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// Pause after a failure that does not pass before its cause is fixed, or, of a watch, before other watches are dropped.
pub const REPAIR_PAUSE: Duration = Duration::from_secs(5);

/// How a backend reads one group. What it reads goes to [`Feed::show`] and
/// [`Feed::prove`]; an error starts over with [`GroupReader::open`].
pub trait GroupReader<T: Watched>: Send + 'static {
    /// Whether [`GroupReader::next`] also proves the group current, as often as
    /// [`Feed::pace`] asks for. If not, [`GroupReader::prove`] is called in time.
    const NEXT_PROVES: bool;

    /// Reads the whole group and shows it, with its proof. What was read before no longer counts.
    fn open(&mut self, feed: &Feed<T>) -> impl Future<Output = Result<()>> + Send;

    /// Waits for a change and shows it. May be dropped at any point without losing one.
    fn next(&mut self, feed: &Feed<T>) -> impl Future<Output = Result<()>> + Send;

    /// Proves that what is shown is current as of this call, or shows what is. Must end within a limited time.
    fn prove(&mut self, feed: &Feed<T>) -> impl Future<Output = Result<()>> + Send {
        self.open(feed)
    }
}

/// Follows the feed's group in a task for as long as it is watched.
pub fn follow<T: Watched, R: GroupReader<T>>(mut reader: R, feed: Feed<T>) {
    tokio::spawn(async move {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
        while !feed.end_unwatched() {
            if let Err(error) = keep_up(&mut reader, &feed, &mut backoff).await {
                let pause = if error.is_retryable() { backoff.fail() } else { REPAIR_PAUSE };
                feed.fail(error);
                let jittered = jittered(pause);
                let unwatched = async {
                    while feed.pace().is_some() {
                        feed.stirred().await;
                    }
                };
                // Either way the loop looks again.
                let _ = timeout(jittered, unwatched).await;
            }
        }
    });
}

/// Until the group is no longer watched, or something fails.
async fn keep_up<T: Watched, R: GroupReader<T>>(reader: &mut R, feed: &Feed<T>, backoff: &mut Backoff) -> Result<()> {
    let mut proven = Instant::now();
    reader.open(feed).await?;
    while let Some(pace) = feed.pace() {
        let prove = tokio::select! {
            read = reader.next(feed) => {
                read?;
                backoff.reset();
                false
            }
            // A new watch wants a state proven after it came.
            () = feed.stirred() => feed.has_newcomer(),
            () = sleep_until(proven + pace * 3 / 4), if !R::NEXT_PROVES => true,
        };
        if prove {
            proven = Instant::now();
            reader.prove(feed).await?;
            backoff.reset();
        }
    }
    Ok(())
}
