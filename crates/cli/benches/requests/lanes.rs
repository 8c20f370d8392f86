//! Requests in lanes, each one after the other, and how long they take.

use std::time::{Duration, Instant};

/// How long requests took, sorted, and how many were answered in a second.
pub(crate) struct Times {
    sorted: Vec<Duration>,
    pub(crate) rate: f64,
}

impl Times {
    pub(crate) fn of(mut times: Vec<Duration>, lasted: Duration) -> Self {
        times.sort_unstable();
        Self { rate: times.len() as f64 / lasted.as_secs_f64(), sorted: times }
    }

    /// The smallest time that so many of a hundred do not exceed, in microseconds; none of no times.
    pub(crate) fn micros(&self, percent: usize) -> Option<f64> {
        let rank = (self.sorted.len() * percent).div_ceil(100).max(1);
        self.sorted.get(rank - 1).map(|time| time.as_secs_f64() * 1e6)
    }
}

/// That many lanes for a turn, of which the first fifth does not count.
pub(crate) async fn measured<C, W>(in_flight: usize, turn: Duration, call: C) -> Times
where
    C: Fn() -> W + Clone + Send + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let begun = Instant::now();
    let counts_from = begun + turn / 5;
    let ends = begun + turn;
    let lanes: Vec<_> = (0..in_flight)
        .map(|_| {
            let call = call.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                loop {
                    let asked = Instant::now();
                    if asked >= ends {
                        return times;
                    }
                    call().await;
                    if asked >= counts_from {
                        times.push(asked.elapsed());
                    }
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for lane in lanes {
        all.extend(lane.await.unwrap());
    }
    Times::of(all, counts_from.elapsed())
}
