//! The clock that leases, deadlines and reads share.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use shardwise_core::Moment;

/// A source of [`Moment`]s: the machine's boot clock, or a stand-in for tests.
#[derive(Clone)]
pub struct Clock(ClockSource);

#[derive(Clone)]
enum ClockSource {
    Boot,
    Custom(Arc<dyn Fn() -> Moment + Send + Sync>, Option<Arc<dyn Fn() -> Duration + Send + Sync>>),
}

impl Clock {
    /// `CLOCK_BOOTTIME` on Linux: shared by all processes of the machine, never jumps, runs on in suspend. Elsewhere the monotonic
    /// clock.
    pub const fn system() -> Self {
        Self(ClockSource::Boot)
    }

    /// Tokio's clock, which tests can pause and advance; it begins at the present moment with one second. Read it inside the runtime.
    pub fn tokio() -> Self {
        let origin = tokio::time::Instant::now();
        Self::custom(move || Moment::from_nanos(1_000_000_000).plus(origin.elapsed()))
    }

    /// A clock of the caller's own, for simulations. It must never go backwards.
    pub fn custom(now: impl Fn() -> Moment + Send + Sync + 'static) -> Self {
        Self(ClockSource::Custom(Arc::new(now), None))
    }

    /// The same with a separate time of day, which may be wrong and go backwards, as wall clocks do.
    #[must_use]
    pub fn with_time_of_day(self, since_1970: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        let clock = self.clone();
        Self(ClockSource::Custom(Arc::new(move || clock.now()), Some(Arc::new(since_1970))))
    }

    /// The present moment.
    #[inline]
    pub fn now(&self) -> Moment {
        match &self.0 {
            ClockSource::Boot => boot_time(),
            ClockSource::Custom(now, _) => now(),
        }
    }

    /// The time of day: the duration since the beginning of 1970 (UTC) by this machine's wall clock. It may jump either way. A stand-in
    /// without a separate time of day returns its own moment.
    pub fn since_1970(&self) -> Duration {
        match &self.0 {
            ClockSource::Boot => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            ClockSource::Custom(_, Some(since_1970)) => since_1970(),
            ClockSource::Custom(_, None) => Duration::from_nanos(self.now().as_nanos()),
        }
    }
}

fn boot_time() -> Moment {
    #[cfg(target_os = "linux")]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(id);
    // Both parts are non-negative on these clocks; 584 years fit into 64 bits of nanoseconds.
    Moment::from_nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            ClockSource::Boot => "Clock::system",
            ClockSource::Custom(..) => "Clock::custom",
        })
    }
}
