//! What the server refuses without answering: publishes and subscriptions without the right to them.

use std::collections::VecDeque;

use shardwise_discovery::one_line;

/// How many refusals are remembered until their callers have seen them.
const REFUSALS_MAX: usize = 64;

/// Refusals in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    count: u64,
    recent: VecDeque<(u64, String)>,
    /// The first one of an inbox. Over this connection no answer arrives any more, even if the right is given later.
    inbox: Option<String>,
}

/// Finds the refusal of one message.
#[derive(Debug)]
pub(crate) struct AwaitedRefusal {
    /// How many refusals came before it.
    after: u64,
    /// Its subject, as refusals quote it.
    quoted: String,
}

/// What a server said.
#[derive(Debug)]
pub(crate) struct FoundRefusal {
    pub(crate) why: String,
    /// It concerns all answers over this connection.
    pub(crate) is_of_inbox: bool,
}

impl RefusalLog {
    pub(crate) fn add(&mut self, text: &str) {
        let text = one_line(text);
        if text.contains("Subscription to \"_INBOX") {
            self.inbox.get_or_insert_with(|| text.clone());
        }
        self.count += 1;
        if self.recent.len() >= REFUSALS_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((self.count, text));
    }

    /// What a refusal of the next message to that subject will be found by.
    pub(crate) fn awaited(&self, subject: &str) -> AwaitedRefusal {
        AwaitedRefusal { after: self.count, quoted: format!("\"{subject}\"") }
    }

    /// The refusal of that message, or of the inbox that its answer would come to.
    pub(crate) fn find(&self, awaited: &AwaitedRefusal) -> Option<FoundRefusal> {
        let refused = self.recent.iter().find(|(number, text)| *number > awaited.after && text.contains(&awaited.quoted));
        let of_message = refused.map(|(_, text)| FoundRefusal { why: text.clone(), is_of_inbox: false });
        of_message.or_else(|| self.inbox.as_ref().map(|text| FoundRefusal { why: text.clone(), is_of_inbox: true }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_found_by_its_subject_and_an_older_one_is_not() {
        let at = |log: &RefusalLog, after, quoted: &str| log.find(&AwaitedRefusal { after, quoted: quoted.into() });
        let mut log = RefusalLog::default();
        log.add("Permissions Violation for Publish to \"$KV.b.g.m.a\"");
        assert!(at(&log, 0, "\"$KV.b.g.m.a\"").is_some());
        assert!(at(&log, 1, "\"$KV.b.g.m.a\"").is_none() && at(&log, 0, "\"$KV.b.g.m.ab\"").is_none());
        log.add("Permissions Violation for Subscription to \"_INBOX.x.*\"");
        assert!(at(&log, 1, "\"$KV.b.g.m.a\"").is_some() && at(&log, 2, "\"$KV.b.g.m.a\"").is_some(), "no later answer arrives either");
        for _ in 0..REFUSALS_MAX * 2 {
            log.add("another");
        }
        assert_eq!(log.recent.len(), REFUSALS_MAX);
    }
}
