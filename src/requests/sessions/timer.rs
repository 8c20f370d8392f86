//! The task that ends sessions in time, and those of a member that is none any more.

use std::sync::{Arc, Weak};
use std::time::Duration;

use shardwise_core::Ownership;
use shardwise_core::routing::SessionEnd;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::registry::Sessions;

/// Timers stop while the machine is suspended and sessions do not, so the clock is read this often while one is open.
const SLEEP_LONGEST: Duration = Duration::from_secs(1);

impl Sessions {
    /// Ends sessions in time from the first call on. Call it inside a tokio runtime.
    pub(super) fn time(self: &Arc<Self>, ownership: watch::Receiver<Arc<Ownership>>) {
        self.timed.get_or_init(|| {
            tokio::spawn(ends_in_time(Arc::downgrade(self), Arc::clone(&self.changed), ownership));
        });
    }
}

async fn ends_in_time(sessions: Weak<Sessions>, changed: Arc<Notify>, mut ownership: watch::Receiver<Arc<Ownership>>) {
    let mut minter = None;
    loop {
        let Some(open) = sessions.upgrade() else { return };
        let is_live = ownership.borrow_and_update().is_live_at(open.clock.now());
        let present = open.life.incarnation();
        if !is_live {
            open.end_all(SessionEnd::Left);
        } else if minter != Some(present) {
            // It may have left and joined again in between.
            open.end_former(present);
            minter = Some(present);
        }
        open.expire();
        let pause = open.next_due().map(|due| due.since(open.clock.now()).min(SLEEP_LONGEST));
        drop(open);
        let due = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed.notified() => {}
            () = due => {}
            is_there = ownership.changed() => if is_there.is_err() {
                // The service has ended.
                if let Some(open) = sessions.upgrade() {
                    open.end_all(SessionEnd::Left);
                }
                return;
            },
        }
    }
}
