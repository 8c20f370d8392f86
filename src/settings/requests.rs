//! Requests of one policy: over how many members a hot key may be spread, and how many requests a member handles and sends at once.

use shardwise_core::OwnershipMode;
use shardwise_core::routing::Width;
use shardwise_settings::{Error, SettingsTable};

use super::keys;

/// The largest number of requests that may be in progress at once, in any of these settings.
pub(super) const REQUESTS_MAX: u64 = 65_536;

/// How requests to keys are spread, and how many are in progress at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestSettings {
    /// Over how many members the requests of a hot key may be spread: its owner and the members that follow it. 1, the default: only the
    /// owner serves a key. Under exclusive ownership and under a key placement it is always 1.
    ///
    /// Above 1 the handlers of [`crate::ShardingService::on_owned`] also run on members that do not own the key.
    pub max_width: Width,
    /// A key is widened while more of its requests than this are in progress at its owner.
    pub saturated_at: u32,
    /// How many requests this member handles at once, at most 65,536. As many again wait for a place, at most 50 ms and a tenth of their
    /// own time; others are refused as busy.
    pub at_once: u32,
    /// How many requests of this caller wait for an answer at once, at most 65,536; further ones are refused as busy.
    pub waiting: u32,
}

impl Default for RequestSettings {
    fn default() -> Self {
        Self { max_width: Width::ONE, saturated_at: 8, at_once: 64, waiting: 1_024 }
    }
}

impl RequestSettings {
    /// The largest width of a key under that policy.
    pub(crate) fn max_width_under(&self, policy: &shardwise_core::Policy) -> Width {
        let is_spread = policy.ownership == OwnershipMode::Eventual && policy.placement.kind.by_key().is_none();
        if is_spread { self.max_width } else { Width::ONE }
    }

    /// How many requests a member takes at once on a connection. No caller has more in flight there, whatever its settings, so that none
    /// waits inside HTTP/2; those that the member neither handles nor keeps waiting are refused as busy.
    #[cfg(feature = "requests")]
    pub(crate) const STREAMS_MAX: u32 = 1_024;

    /// How many requests this caller has in flight on a connection: enough for all that a member with the same settings handles at once.
    #[cfg(feature = "requests")]
    pub(crate) fn streams(&self) -> u32 {
        self.at_once.clamp(64, Self::STREAMS_MAX)
    }

    /// A number of requests as the size of a limit.
    pub(crate) fn limit(number: u32) -> usize {
        usize::try_from(u64::from(number).clamp(1, REQUESTS_MAX)).unwrap_or(1)
    }
}

fn width(text: &str) -> Result<Width, String> {
    let number = text.parse().map_err(|_| "write a whole number".to_owned())?;
    Width::new(number).map_err(|error| error.to_string())
}

/// Reads the settings of requests from the table of the policy with that ownership.
pub(super) fn read(table: &SettingsTable<'_>, ownership: OwnershipMode) -> Result<RequestSettings, Error> {
    let max_width = table.take(&keys::MAX_WIDTH)?;
    let settings = RequestSettings {
        max_width: max_width.parse(width)?,
        saturated_at: table.take(&keys::SATURATED_AT)?.parse(str::parse)?,
        at_once: table.take(&keys::REQUESTS_AT_ONCE)?.parse(str::parse)?,
        waiting: table.take(&keys::REQUESTS_WAITING)?.parse(str::parse)?,
    };
    if ownership == OwnershipMode::Exclusive && settings.max_width > Width::ONE {
        return Err(max_width.refuse("with ownership = \"exclusive\" only the holder of a slot serves its keys: remove it"));
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use shardwise_core::{GroupName, KeyPlacement, PlacementKind, Policy, PolicyName};

    use super::*;

    #[test]
    fn only_slots_under_eventual_ownership_are_spread() {
        let mut policy = Policy::new(PolicyName::new("p").unwrap(), GroupName::new("g").unwrap());
        let settings = RequestSettings { max_width: Width::MAX, ..RequestSettings::default() };
        assert_eq!(settings.max_width_under(&policy), Width::MAX);
        assert_eq!(RequestSettings::default().max_width_under(&policy), Width::ONE);
        policy.ownership = OwnershipMode::Exclusive;
        assert_eq!(settings.max_width_under(&policy), Width::ONE);
        policy.ownership = OwnershipMode::Eventual;
        policy.placement.kind = PlacementKind::Key(KeyPlacement::Modulo);
        assert_eq!(settings.max_width_under(&policy), Width::ONE);
    }

    #[test]
    fn a_limit_made_in_code_is_clamped() {
        assert_eq!([0, 1, 64, u32::MAX].map(RequestSettings::limit), [1, 1, 64, 65_536]);
    }
}
