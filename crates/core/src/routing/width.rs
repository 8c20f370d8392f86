//! The width of a key: over how many members its requests are spread.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Over how many members the requests of a key are spread: 1 to 4, the owner first, then its successors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u8")]
pub struct Width(u8);

/// Why a width is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WidthError {
    /// The number is out of range.
    #[error("width is {given}; whole numbers from 1 to {most} are allowed")]
    OutOfRange {
        /// The number.
        given: u64,
        /// The largest width allowed.
        most: Width,
    },
    /// Under exclusive ownership only the holder of a slot serves its keys.
    #[error("a key cannot be spread: the policy's ownership is \"exclusive\", so only the holder of its slot serves it")]
    Exclusive,
}

impl Width {
    /// The owner alone.
    pub const ONE: Self = Self(1);
    /// The largest width.
    pub const MAX: Self = Self(4);

    /// A width from 1 to 4.
    ///
    /// # Errors
    ///
    /// [`WidthError::OutOfRange`].
    pub fn new(width: u64) -> Result<Self, WidthError> {
        let narrow = u8::try_from(width).ok().map(Self).filter(|width| (Self::ONE..=Self::MAX).contains(width));
        narrow.ok_or(WidthError::OutOfRange { given: width, most: Self::MAX })
    }

    /// The width that another member reported, at least 1 and at most `max`.
    #[must_use]
    pub fn clamped(reported: u64, max: Self) -> Self {
        // At most `max`, so it fits.
        Self(u8::try_from(reported.clamp(1, u64::from(max.0))).unwrap_or(1))
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// One member more, at most `max`.
    #[must_use]
    pub(super) fn wider(self, max: Self) -> Self {
        Self(self.0.saturating_add(1)).min(max)
    }

    /// One member less, at least one.
    #[must_use]
    pub(super) fn narrower(self) -> Self {
        Self(self.0.saturating_sub(1)).max(Self::ONE)
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl TryFrom<u64> for Width {
    type Error = WidthError;
    fn try_from(width: u64) -> Result<Self, WidthError> {
        Self::new(width)
    }
}

impl From<Width> for u8 {
    fn from(width: Width) -> Self {
        width.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_to_four_are_widths() {
        for width in 1..=4 {
            assert_eq!(Width::new(width).map(|width| u64::from(width.get())), Ok(width));
        }
        for width in [0, 5, 256, 257, u64::MAX] {
            let refused = Width::new(width).unwrap_err().to_string();
            assert_eq!(refused, format!("width is {width}; whole numbers from 1 to 4 are allowed"));
        }
        assert_eq!(serde_json::to_string(&Width::MAX).unwrap(), "4");
        assert!(serde_json::from_str::<Width>("0").unwrap_err().to_string().starts_with("width is 0; whole numbers from 1 to 4"));
    }

    #[test]
    fn a_reported_width_is_clamped() {
        let max = Width::new(3).unwrap();
        let clamped = [0, 1, 2, 3, 4, u64::MAX].map(|reported| Width::clamped(reported, max).get());
        assert_eq!(clamped, [1, 1, 2, 3, 3, 3]);
        assert_eq!((Width::MAX.wider(Width::MAX), Width::ONE.wider(max).get()), (Width::MAX, 2));
        assert_eq!((Width::ONE.narrower(), Width::MAX.narrower().get()), (Width::ONE, 3));
    }
}
