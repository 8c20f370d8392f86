//! Numbers out of an input, in turn; zeros where it has ended.

pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    /// From 0 to 65,535.
    pub(crate) fn short(&mut self) -> u32 {
        u32::from(self.byte()) << 8 | u32::from(self.byte())
    }

    pub(crate) fn word(&mut self) -> u32 {
        self.short() << 16 | self.short()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
