//! Whether the server of a connection still does its work. One that is cut off from its cluster goes on answering pings, while requests
//! get no answer, or the error that no responder is there.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long requests may go without an answer that helps: longer than an election (4 to 9 s), in which all servers are alike.
const UNANSWERED_MAX: Duration = Duration::from_secs(10);
/// The same for a connection over which none has come yet.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(2);
/// A request that its caller gave up sooner says nothing.
const GIVEN_UP_MIN: Duration = Duration::from_millis(250);

/// How the requests over one connection went.
#[derive(Debug, Default)]
pub(crate) struct AnswerLog(Mutex<LoggedAnswers>);

#[derive(Debug, Default)]
struct LoggedAnswers {
    has_answered: bool,
    /// When the first request was sent that has had no answer since the last one that had.
    unanswered_since: Option<Instant>,
    is_useless: bool,
}

impl AnswerLog {
    fn log(&self) -> MutexGuard<'_, LoggedAnswers> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is sent. Unless it is said how it went, it was given up.
    pub(crate) fn asked(&self) -> AwaitedAnswer<'_> {
        AwaitedAnswer { log: self, asked: Instant::now(), is_open: true }
    }

    /// Whether no request is answered any more, so that another server may do better.
    pub(crate) fn is_useless(&self) -> bool {
        self.log().is_useless
    }

    fn unanswered(&self, asked: Instant, now: Instant) {
        let mut log = self.log();
        let since = *log.unanswered_since.get_or_insert(asked);
        let most = if log.has_answered { UNANSWERED_MAX } else { FIRST_ANSWER_MAX };
        log.is_useless = now.saturating_duration_since(since) >= most;
    }
}

/// A request under way.
pub(crate) struct AwaitedAnswer<'a> {
    log: &'a AnswerLog,
    asked: Instant,
    is_open: bool,
}

impl AwaitedAnswer<'_> {
    /// The server has answered, be it with a refusal.
    pub(crate) fn answered(mut self) {
        self.is_open = false;
        *self.log.log() = LoggedAnswers { has_answered: true, unanswered_since: None, is_useless: false };
    }

    /// No answer has come, or only the one that no server can answer.
    pub(crate) fn unanswered(mut self) {
        self.is_open = false;
        self.log.unanswered(self.asked, Instant::now());
    }

    /// The connection has ended, which says nothing.
    pub(crate) fn void(mut self) {
        self.is_open = false;
    }
}

impl Drop for AwaitedAnswer<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        if self.is_open && now.saturating_duration_since(self.asked) >= GIVEN_UP_MIN {
            self.log.unanswered(self.asked, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_server_is_left_when_nothing_was_answered_for_longer_than_an_election() {
        let log = AnswerLog::default();
        log.asked().answered();
        for second in 1..=10 {
            let request = log.asked();
            advance(SECOND).await;
            drop(request);
            assert_eq!(log.is_useless(), second == 10, "after {second} s");
        }
        log.asked().answered();
        assert!(!log.is_useless(), "it has come back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answered_is_left_soon() {
        let log = AnswerLog::default();
        log.asked().unanswered();
        assert!(!log.is_useless());
        advance(SECOND * 2).await;
        log.asked().void();
        assert!(!log.is_useless());
        log.asked().unanswered();
        assert!(log.is_useless());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_given_up_at_once_says_nothing() {
        let log = AnswerLog::default();
        drop(log.asked());
        advance(SECOND * 20).await;
        drop(log.asked());
        assert!(!log.is_useless());
    }
}
