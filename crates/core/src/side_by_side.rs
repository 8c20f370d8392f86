//! Comparing two sorted lists in one pass.

use std::cmp::Ordering;
use std::iter::from_fn;

/// Goes through two lists that are sorted by a key that each has once, and brings what has the same key together. A lookup of each element
/// in the other list would take ten times as long for a thousand.
pub fn side_by_side<T, K: Ord>(
    left: impl IntoIterator<Item = T>,
    right: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> impl Iterator<Item = (Option<T>, Option<T>)> {
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    from_fn(move || {
        let order = match (left.peek(), right.peek()) {
            (Some(left), Some(right)) => key(left).cmp(&key(right)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        let left = if order.is_le() { left.next() } else { None };
        Some((left, if order.is_ge() { right.next() } else { None }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_the_same_key_comes_together() {
        let both = |left: &[u32], right: &[u32]| {
            side_by_side(left.to_vec(), right.to_vec(), |number| *number)
                .map(|(left, right)| (left.unwrap_or(0), right.unwrap_or(0)))
                .collect()
        };
        let seen: Vec<(u32, u32)> = both(&[1, 3, 4, 7], &[2, 3, 7, 9]);
        assert_eq!(seen, [(1, 0), (0, 2), (3, 3), (4, 0), (7, 7), (0, 9)]);
        let seen: [Vec<(u32, u32)>; 3] = [both(&[], &[]), both(&[5], &[]), both(&[], &[5])];
        assert_eq!(seen, [vec![], vec![(5, 0)], vec![(0, 5)]]);
    }
}
