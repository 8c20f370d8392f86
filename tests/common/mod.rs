//! What several test files need.

use std::time::Duration;

/// Waits for a condition in the runtime's time.
///
/// # Panics
///
/// If it does not come true within 50 s.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not within 50 s");
}
