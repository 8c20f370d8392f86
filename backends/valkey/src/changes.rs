//! Changes of groups, as messages of channels: the connection's task hands each to the reader that has subscribed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::{PushInfo, PushKind};
use tokio::sync::mpsc;

use crate::scripts::bytes;

/// The most messages of one group that may wait for their reader. One that is further behind reads the group anew.
const WAITING_MAX: usize = 1_024;

/// Who has subscribed to which channel over one connection.
#[derive(Debug, Default)]
pub(crate) struct ChangeRouter(Mutex<RoutingTable>);

#[derive(Debug, Default)]
struct RoutingTable {
    readers: HashMap<Vec<u8>, (u64, mpsc::Sender<Vec<u8>>)>,
    /// The number of the last subscription.
    last: u64,
    is_closed: bool,
}

impl ChangeRouter {
    fn table(&self) -> MutexGuard<'_, RoutingTable> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the server has pushed. Must not wait.
    pub(crate) fn deliver(&self, push: PushInfo) {
        match push.kind {
            PushKind::Message => {
                let mut parts = push.data.into_iter().filter_map(bytes);
                let (Some(channel), Some(message)) = (parts.next(), parts.next()) else { return };
                let mut table = self.table();
                let is_behind = table.readers.get(&channel).is_some_and(|(_, reader)| reader.try_send(message).is_err());
                if is_behind {
                    // It reads what has arrived, and then learns that there is no more.
                    table.readers.remove(&channel);
                }
            }
            PushKind::Disconnection => {
                let mut table = self.table();
                table.is_closed = true;
                table.readers.clear();
            }
            _ => {}
        }
    }

    pub(crate) fn add(&self, channel: &str) -> (u64, mpsc::Receiver<Vec<u8>>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let mut table = self.table();
        table.last += 1;
        let number = table.last;
        if !table.is_closed {
            table.readers.insert(channel.as_bytes().to_vec(), (number, sender));
        }
        (number, receiver)
    }

    pub(crate) fn remove(&self, channel: &str, number: u64) {
        let mut table = self.table();
        if table.readers.get(channel.as_bytes()).is_some_and(|(known, _)| *known == number) {
            table.readers.remove(channel.as_bytes());
        }
    }

    pub(crate) fn is_read(&self, channel: &str) -> bool {
        self.table().readers.contains_key(channel.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn message(channel: &str, text: &str) -> PushInfo {
        PushInfo { kind: PushKind::Message, data: [channel, text].map(|part| Value::BulkString(part.into())).to_vec() }
    }

    #[test]
    fn each_message_reaches_the_reader_of_its_channel() {
        let router = ChangeRouter::default();
        let (_, mut a) = router.add("a");
        router.deliver(message("a", "1"));
        router.deliver(message("b", "2"));
        assert_eq!(a.try_recv().ok(), Some(b"1".to_vec()));
        let (number, mut again) = router.add("a");
        router.remove("a", number - 1);
        router.deliver(message("a", "3"));
        assert_eq!(again.try_recv().ok(), Some(b"3".to_vec()), "the former reader takes nothing away");
        router.remove("a", number);
        assert!(!router.is_read("a"));
    }

    #[test]
    fn who_is_too_far_behind_or_whose_connection_ends_hears_the_end() {
        let router = ChangeRouter::default();
        let (_, mut slow) = router.add("a");
        for n in 0..=WAITING_MAX {
            router.deliver(message("a", &n.to_string()));
        }
        for n in 0..WAITING_MAX {
            assert_eq!(slow.try_recv().ok(), Some(n.to_string().into_bytes()));
        }
        assert_eq!(slow.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
        let (_, mut open) = router.add("a");
        router.deliver(PushInfo { kind: PushKind::Disconnection, data: Vec::new() });
        assert_eq!(open.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
        let (_, mut late) = router.add("a");
        assert_eq!(late.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
    }
}
