//! Shared by the tests of all sinks.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use shardwise_outbox::Delivery;
use shardwise_outbox::exercise::deliveries;

/// The time limit of anything that must happen.
pub(crate) const LIMIT: Duration = Duration::from_mins(3);

/// A name that no other test of this program uses.
pub(crate) fn unique(start: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{start}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs work that cannot move between threads on a separate thread.
pub(crate) async fn aside<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) {
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(work())).await.unwrap();
}

/// Decodes `%XX`.
pub(crate) fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        let hex = behind.get(..2).filter(|_| *first == b'%').map(|hex| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap());
        bytes.push(hex.unwrap_or(*first));
        rest = if hex.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8(bytes).unwrap()
}

/// An event with every optional part.
pub(crate) fn rich(aggregate_id: &str) -> Delivery {
    let headers =
        r#"{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"a=1","tenant":"ü 1","X-Odd":[1]}"#;
    Delivery { headers: Some(headers.into()), slot: 7, epoch: 9, ..deliveries(aggregate_id, 1, 1).remove(0) }
}

/// As many headers that become attributes, of about 50 bytes each.
pub(crate) fn headers(count: usize) -> String {
    let headers: Vec<_> = (0..count).map(|n| format!("\"h{n}\":\"{}\"", "x".repeat(40))).collect();
    format!("{{{}}}", headers.join(","))
}
