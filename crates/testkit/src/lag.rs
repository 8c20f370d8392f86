//! How late this machine itself is, measured beside what a test measures.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long each sleep is to take, and after how many of them something is flushed.
const SLEEP: Duration = Duration::from_millis(5);
const FLUSH_EVERY: u32 = 20;
/// So many threads and processes hand on, one after the other, what a takeover waits for: the server's clock, its log, its watch, the
/// driver, its question, the server, its answer, the driver, the snapshot, the test.
const WAKES: u32 = 10;
/// And so often it waits for a disk: the end of the lease, the claim, what the new holder writes.
const FLUSHES: u32 = 3;

/// Measures, from its beginning on, how much later than asked this machine wakes a thread that sleeps, and how long it takes to flush a
/// page. On a machine that is busy with other tests each hand through which a takeover goes is late by that, and [`Lag::allowance`] is what
/// it comes to; on an idle machine it is some hundredths of a second.
pub struct Lag {
    shared: Arc<LagShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct LagShared {
    over: AtomicBool,
    wake_ns: AtomicU64,
    flush_ns: AtomicU64,
}

impl Lag {
    /// Begins to measure.
    pub fn begin() -> Self {
        let shared = Arc::new(LagShared::default());
        let measured = Arc::clone(&shared);
        Self { thread: Some(std::thread::spawn(move || measured.measure())), shared }
    }

    /// How much later than on an idle machine something may be that goes through ten threads and is flushed three times.
    pub fn allowance(&self) -> Duration {
        let worst = |of: &AtomicU64| Duration::from_nanos(of.load(Ordering::Relaxed));
        worst(&self.shared.wake_ns) * WAKES + worst(&self.shared.flush_ns) * FLUSHES
    }
}

impl Drop for Lag {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}

impl LagShared {
    fn measure(&self) {
        // Without a file there is nothing to say about the disk.
        let mut file = tempfile::tempfile().ok();
        while !self.over.load(Ordering::Relaxed) {
            for _ in 0..FLUSH_EVERY {
                let asked = Instant::now();
                std::thread::sleep(SLEEP);
                keep_worst(&self.wake_ns, asked.elapsed().saturating_sub(SLEEP));
                if self.over.load(Ordering::Relaxed) {
                    return;
                }
            }
            let begun = Instant::now();
            if file.as_mut().is_some_and(|file| flush(file).is_ok()) {
                keep_worst(&self.flush_ns, begun.elapsed());
            }
        }
    }
}

fn flush(file: &mut File) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&[0; 4_096])?;
    file.sync_data()
}

fn keep_worst(worst: &AtomicU64, took: Duration) {
    worst.fetch_max(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_counts_ten_and_three_times() {
        let lag = Lag::begin();
        std::thread::sleep(SLEEP * (FLUSH_EVERY + 10));
        assert!(lag.allowance() > Duration::ZERO);
        lag.shared.over.store(true, Ordering::Relaxed);
        lag.shared.wake_ns.store(7_000_000_000, Ordering::Relaxed);
        lag.shared.flush_ns.store(1_000_000_000_000, Ordering::Relaxed);
        assert!(lag.allowance() >= Duration::from_secs(3_070));
    }
}
