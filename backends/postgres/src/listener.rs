//! Notifications: one connection listens for all groups of the process. A notification that is missed costs one poll.
//!
//! A pooler in transaction mode accepts LISTEN, delivers nothing, and has that connection to the server notified for the client that gets
//! it next. So the listener connects with a setting of its own, which a pooler refuses or drops, and sends LISTEN only where the session
//! has it. Elsewhere looking is all there is.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::timeout;

use crate::error::{Failure, PgResult};
use crate::shared::{Shared, expect_changes};
use crate::sql::notified_group;

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The setting of the listener's session. A pooler refuses it with one of these codes: a violation of the protocol, or not supported.
const SETTING: &str = "shardwise.listener";
const REFUSES_OPTIONS: [&str; 2] = ["08P01", "0A000"];
/// How long a listener that hears nothing is trusted, and how long it may take to answer then.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(5);
/// Pause before a lost listener is replaced, and before another one is tried where none works.
const RECONNECT_PAUSE: Duration = Duration::from_secs(2);
const POOLER_PAUSE: Duration = Duration::from_mins(10);

/// Starts the listener unless it runs.
pub(crate) fn start(shared: &Arc<Shared>) {
    let mut is_running = shared.listening.is_running.lock().unwrap_or_else(PoisonError::into_inner);
    if !std::mem::replace(&mut *is_running, true) {
        let end = ListenerEnd(Arc::downgrade(shared));
        tokio::spawn(async move {
            let end = end;
            while let Some(pause) = listen(&end.0).await {
                tokio::time::sleep(pause).await;
            }
        });
    }
}

/// Lets another listener start, whatever ended this one.
struct ListenerEnd(Weak<Shared>);

impl Drop for ListenerEnd {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            *shared.listening.is_running.lock().unwrap_or_else(PoisonError::into_inner) = false;
        }
    }
}

/// Listens until the connection is lost or nothing is followed any more. Answers how long to wait before listening again; `None`: it is
/// over.
async fn listen(shared: &Weak<Shared>) -> Option<Duration> {
    let mut listener = {
        let present = shared.upgrade().filter(|present| !present.groups.is_empty())?;
        match connect(&present).await {
            Ok(Some(listener)) => listener,
            Ok(None) => return Some(POOLER_PAUSE),
            Err(failure) => {
                tracing::debug!(%failure, "cannot listen for notifications; groups are polled instead");
                return Some(RECONNECT_PAUSE);
            }
        }
    };
    // Changes before LISTEN have sent no notification to this process.
    expect_all_changes(&*shared.upgrade()?);
    loop {
        let notification = timeout(SILENCE_LIMIT, listener.try_recv()).await;
        let is_lost = match &notification {
            Ok(Ok(notification)) => notification.is_none(),
            Ok(Err(_)) => true,
            // The connection may be dead without an error.
            Err(_) => !is_alive(&mut listener).await,
        };
        let present = shared.upgrade().filter(|present| !present.groups.is_empty())?;
        if is_lost {
            expect_all_changes(&present);
            return Some(RECONNECT_PAUSE);
        }
        let notified = notification.ok().and_then(Result::ok).flatten();
        if let Some(group) = notified.and_then(|notification| notified_group(notification.payload())) {
            present.expect_changes(&group);
        }
    }
}

/// Any group may have changed.
fn expect_all_changes(shared: &Shared) {
    shared.groups.all().iter().for_each(|group| expect_changes(group));
}

async fn is_alive(listener: &mut PgListener) -> bool {
    matches!(timeout(PING_LIMIT, sqlx::raw_sql("SELECT 1").execute(listener)).await, Ok(Ok(_)))
}

/// A listener that hears; `None` behind a pooler.
async fn connect(shared: &Shared) -> PgResult<Option<PgListener>> {
    let client = &shared.client;
    let late = || Failure::TimedOut { after: CONNECT_LIMIT };
    // The listener takes its connection from a pool.
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(CONNECT_LIMIT).idle_timeout(None).max_lifetime(None);
    let token = format!("{:016x}", rand::random::<u64>());
    let pool = pool.connect_lazy_with(client.options.clone().options([(SETTING, &token)]));
    let channel = client.schema.channel();
    let connecting = async {
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        let present =
            sqlx::raw_sql(AssertSqlSafe(format!("SELECT current_setting('{SETTING}', true) AS token"))).fetch_one(&mut listener).await?;
        if present.try_get::<Option<String>, _>("token")?.as_ref() != Some(&token) {
            return Ok(None);
        }
        listener.listen(&channel).await?;
        Ok::<_, sqlx::Error>(Some(listener))
    };
    let listener = match timeout(CONNECT_LIMIT, connecting).await.map_err(|_| late())? {
        Err(error) if is_refusal(&error) => None,
        connected => connected.map_err(|error| client.context.of_connecting(&error))?,
    };
    if listener.is_none() && !shared.listening.is_logged.swap(true, Ordering::Relaxed) {
        tracing::info!(
            database = client.context.place,
            "a pooler is in front of PostgreSQL, so no notifications arrive; changes are found by looking, within a quarter of the TTL and at \
             most {:?}",
            crate::observer::POLL_EVERY
        );
    }
    Ok(listener)
}

/// Whether a pooler refuses the listener's setting.
fn is_refusal(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| REFUSES_OPTIONS.contains(&code.as_ref()))
}
