//! The order of versions: dotted numbers first, then bytes (rule 8 of `docs/reference/placement.md`).
//!
//! It is a total order. "As numbers where both are numbers, else by bytes" would not be: by that rule, 1.9 is older than 1.10, 1.10 is
//! older than 1.5x, and 1.5x is older than 1.9.

use std::cmp::Ordering;

/// A member's version; `None` for a member without one, which is older than all others.
///
/// The text is split after its longest prefix of numbers with single dots between them. The numbers are compared one by one, at any
/// length; where one text has no more of them, it is older. If all are equal, the rest of the text is compared byte by byte.
///
/// So 1.9 is older than 1.10, which is older than 1.10.0, which is older than 1.10.0-rc1; `v2` and `latest` are older than 0.1, and 1.07
/// equals 1.7.
#[derive(Debug, Clone, Copy)]
pub struct Version<'a>(Option<&'a str>);

impl<'a> Version<'a> {
    /// The version in a member's record.
    pub fn of(text: Option<&'a str>) -> Self {
        Self(text)
    }

    /// The parts that are compared, in this order.
    fn parts(self) -> Option<(impl Iterator<Item = (usize, &'a str)>, &'a str)> {
        let text = self.0?;
        let (numbers, rest) = text.split_at(numbers_end(text));
        // Without leading zeros, the number with more digits is greater.
        let number = |digits: &'a str| digits.trim_start_matches('0');
        let numbers = numbers.split('.').filter(|digits| !digits.is_empty()).map(move |digits| (number(digits).len(), number(digits)));
        Some((numbers, rest))
    }
}

/// The end of the longest prefix of numbers with single dots between them.
fn numbers_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    // A dot belongs to it between two digits.
    let belongs = |at: &usize| is_digit(*at) || (bytes[*at] == b'.' && *at > 0 && is_digit(at - 1) && is_digit(at + 1));
    (0..bytes.len()).find(|at| !belongs(at)).unwrap_or(bytes.len())
}

impl Ord for Version<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.parts(), other.parts()) {
            (Some((numbers, rest)), Some((others, others_rest))) => numbers.cmp(others).then_with(|| rest.cmp(others_rest)),
            (mine, theirs) => mine.is_some().cmp(&theirs.is_some()),
        }
    }
}

impl PartialOrd for Version<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// From the oldest to the newest; those in one line are equal.
    const ORDER: [&[Option<&str>]; 19] = [
        &[None],
        &[Some("")],
        &[Some(".5")],
        &[Some("latest")],
        &[Some("v2")],
        &[Some("\u{661}.2")],
        &[Some("0"), Some("00")],
        &[Some("0.1")],
        &[Some("1"), Some("01")],
        &[Some("1-rc1")],
        &[Some("1.")],
        &[Some("1..3")],
        &[Some("1x")],
        &[Some("1.0"), Some("1.00")],
        &[Some("1.5x")],
        &[Some("1.9"), Some("1.09")],
        &[Some("1.10")],
        &[Some("1.10.0-rc1")],
        &[Some("99999999999999999999999999999999999999998"), Some("099999999999999999999999999999999999999998")],
    ];

    #[test]
    fn versions_stand_in_this_order() {
        let all = || ORDER.iter().enumerate().flat_map(|(at, same)| same.iter().map(move |text| (at, Version::of(*text))));
        for (at, version) in all() {
            for (other_at, other) in all() {
                assert_eq!(version.cmp(&other), at.cmp(&other_at), "{version:?} beside {other:?}");
            }
        }
    }

    #[test]
    fn a_number_may_be_as_long_as_it_likes() {
        let long = "9".repeat(100_000);
        let longer = format!("1{}", "0".repeat(100_000));
        assert!(Version::of(Some(&long)) < Version::of(Some(&longer)));
    }

    /// Texts that are alike enough to exercise every rule.
    fn text() -> impl Strategy<Value = Option<String>> {
        proptest::option::of(prop_oneof![4 => "[0-2.x]{0,6}", 1 => "[0-9]{1,3}(\\.[0-9]{1,3}){0,3}", 1 => any::<String>()])
    }

    proptest! {
        #[test]
        fn the_order_is_total(a in text(), b in text(), c in text()) {
            let [a, b, c] = [&a, &b, &c].map(|text| Version::of(text.as_deref()));
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            prop_assert_eq!(a.cmp(&a), Ordering::Equal);
            if a <= b && b <= c {
                prop_assert!(a <= c, "{:?} {:?} {:?}", a, b, c);
            }
            if a == b {
                prop_assert_eq!(a.cmp(&c), b.cmp(&c));
            }
        }

        #[test]
        fn dotted_numbers_are_compared_as_numbers(a in proptest::collection::vec(any::<u64>(), 1..5), b in proptest::collection::vec(any::<u64>(), 1..5)) {
            let written = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(".");
            let (one, other) = (written(&a), written(&b));
            prop_assert_eq!(Version::of(Some(&one)).cmp(&Version::of(Some(&other))), a.cmp(&b));
        }
    }
}
