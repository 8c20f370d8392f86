//! Names that are similar to others.

/// Below this similarity (0 to 1) a suggestion confuses more than it helps.
const SIMILAR_MIN: f64 = 0.75;
/// The most wrong, missing, additional or swapped letters of a slip.
const SLIPS_MAX: usize = 2;

/// The most similar known name, if any is similar enough.
pub fn nearest<'n>(given: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let given = given.to_lowercase();
    let similarity = |name: &str| strsim::jaro_winkler(&given, &name.to_lowercase());
    let similar = known.into_iter().map(|name| (similarity(name), name)).filter(|(similarity, _)| *similarity >= SIMILAR_MIN);
    similar.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// Whether `given` is `known` or a slip of it. A suggestion may be wrong, because the name it is for is refused anyway; this decides
/// whether an application's own name is refused, so it is stricter, and callers also look at the contents.
pub(crate) fn is_slip_of(given: &str, known: &str) -> bool {
    strsim::osa_distance(&given.to_lowercase(), known) <= SLIPS_MAX
}

/// The known names, for a message that has just named an unknown one, with a suggestion.
pub fn listed(given: &str, known: &[&str]) -> String {
    let names = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let meant = nearest(given, known.iter().copied()).map(|name| format!(" (did you mean {name}?)")).unwrap_or_default();
    names + &meant
}
