//! How a member stays alive.

use std::time::Duration;

use super::{PolicyError, refuse};
use crate::format_duration;

const TTL_MIN: Duration = Duration::from_millis(100);
const TTL_MAX: Duration = Duration::from_hours(24);

/// How a member stays alive: lease, renewal, and the margin by which it stops before its lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// How long a record lives without a renewal.
    pub ttl: Duration,
    /// Time between renewals.
    pub renew_every: Duration,
    /// How long before the end of its lease the member stops owning.
    pub stop_margin: Duration,
}

impl Timing {
    /// Checks that three renewals fit into a lease and that a renewal comes before the deadline. `renew_every` defaults to `ttl / 3`.
    pub fn new(ttl: Duration, renew_every: Option<Duration>, stop_margin: Duration) -> Result<Self, PolicyError> {
        let renew = renew_every.unwrap_or(ttl / 3);
        if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
            let allowed = format!("between {} and {} is allowed", format_duration(TTL_MIN), format_duration(TTL_MAX));
            return Err(refuse("ttl", format_duration(ttl), allowed));
        }
        if renew.is_zero() {
            return Err(refuse("renew_every", "0s", "more than zero is needed"));
        }
        if renew * 3 > ttl {
            let (ttl, least) = (format_duration(ttl), format_duration(renew * 3));
            return Err(refuse(
                "ttl",
                ttl,
                format!("it must cover three renewals: at least {least} with renew_every = {}", format_duration(renew)),
            ));
        }
        let timing = Self { ttl, renew_every: renew, stop_margin };
        timing.check_lease(ttl).map(|()| timing)
    }

    /// Checks that a renewal comes before the deadline where the backend grants `granted`, which may be less than the requested TTL.
    pub fn check_lease(&self, granted: Duration) -> Result<(), PolicyError> {
        if self.owned_for(granted) > self.renewed_after(granted) {
            return Ok(());
        }
        let most = granted.saturating_sub(granted / 100).saturating_sub(self.renewed_after(granted));
        let (ttl, most) = (format_duration(self.ttl), format_duration(most));
        let lease =
            if granted == self.ttl { String::new() } else { format!(", of which the backend grants {},", format_duration(granted)) };
        let allowed =
            format!("with ttl = {ttl}{lease} ownership would end before the first renewal; use less than {most}, or a longer ttl");
        Err(refuse("stop_margin", format_duration(self.stop_margin), allowed))
    }

    /// The pause from the start of a renewal that granted `ttl` to the next one, and the timeout of the next one: `renew_every`, or a
    /// third of `ttl` if that is less.
    pub fn renewed_after(&self, ttl: Duration) -> Duration {
        self.renew_every.min(ttl / 3)
    }

    /// How long ownership lasts from the start of a renewal that granted `ttl`: 0.99 of it, less the margin. The 1 % bounds the
    /// difference between the rates of two clocks.
    pub fn owned_for(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(ttl / 100).saturating_sub(self.stop_margin)
    }
}

impl Default for Timing {
    /// A TTL of 10 s, renewed every third of it, with a margin of 100 ms.
    fn default() -> Self {
        Self { ttl: Duration::from_secs(10), renew_every: Duration::from_secs(10) / 3, stop_margin: Duration::from_millis(100) }
    }
}
