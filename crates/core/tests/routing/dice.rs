//! Random numbers from a seed.

/// `SplitMix64` (Steele, Lea, Flood 2014): small, seeded, good enough for arrivals and picks.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, sides: usize) -> usize {
        usize::try_from(self.next() % sides as u64).expect("below a usize")
    }

    /// Nanoseconds until the next of so many independent arrivals a second.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a pause of seconds, never negative")]
    pub(crate) fn pause(&mut self, per_second: f64) -> u64 {
        // Above 0, so that the logarithm is finite.
        let uniform = (self.next() >> 11) as f64 + 1.0;
        (-(uniform / (1_u64 << 53) as f64).ln() / per_second * 1e9) as u64
    }
}
