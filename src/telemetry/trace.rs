//! Traces that continue in another process.
//!
//! The library only opens spans of the crate `tracing`, which have no id for other processes, as the header `traceparent` of W3C Trace
//! Context needs it. An application that exports traces provides it by calling [`connect`] once. Without that, requests carry no trace,
//! and incoming ones are ignored. No span has a key, an aggregate, a payload or a token among its fields.

use std::fmt;
use std::sync::OnceLock;

use tracing::Span;

/// The header that carries a [`TraceParent`].
pub const TRACEPARENT: &str = "traceparent";

static TRACES: OnceLock<Box<dyn Traces>> = OnceLock::new();

/// A span of any process, as in W3C Trace Context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// The id of the trace; not 0.
    pub trace_id: u128,
    /// The id of the span; not 0.
    pub span_id: u64,
    /// Whether its process records it.
    pub sampled: bool,
}

impl TraceParent {
    /// Parses a header's value; `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut next = |digits| hex(parts.next()?, digits);
        let (version, trace_id, span_id, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        // Later versions may append fields, and ff is not a version.
        if version == 0xff || version == 0 && parts.next().is_some() || trace_id == 0 || span_id == 0 {
            return None;
        }
        Some(Self { trace_id, span_id: u64::try_from(span_id).ok()?, sampled: flags & 1 == 1 })
    }

    /// Parses the values of all headers of that name; `None` unless there is exactly one.
    pub fn of<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let (first, second) = (values.next()?, values.next());
        if second.is_some() { None } else { Self::parse(std::str::from_utf8(first).ok()?) }
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == digits && text.bytes().all(is_digit)).then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// The application's exporter of traces, as the library uses it. No method may block.
pub trait Traces: Send + Sync + 'static {
    /// Makes the span a child of a span in another process. Called before it is entered for the first time.
    fn continues(&self, span: &Span, parent: TraceParent);

    /// Links the span to another one.
    fn links(&self, span: &Span, other: TraceParent);

    /// The span's id for other processes; `None` if it is not exported.
    fn name_of(&self, span: &Span) -> Option<TraceParent>;
}

/// Connects the application's exporter. Only the first call takes effect; returns whether this one did.
pub fn connect(traces: impl Traces) -> bool {
    TRACES.set(Box::new(traces)).is_ok()
}

/// Makes a span that was not entered yet a child of a span in another process.
pub fn continues(span: &Span, parent: TraceParent) {
    if let Some(traces) = connected(span) {
        traces.continues(span, parent);
    }
}

/// Links a span to one in another process.
pub fn links(span: &Span, other: TraceParent) {
    if let Some(traces) = connected(span) {
        traces.links(span, other);
    }
}

/// The span's id for requests made within it; `None` if it is not exported.
pub fn name_of(span: &Span) -> Option<TraceParent> {
    connected(span)?.name_of(span)
}

/// Marks a span as failed for this kind of reason, if it has the fields `otel.status_code` and `error.type`.
pub fn failed(span: &Span, kind: &str) {
    span.record("otel.status_code", "ERROR").record("error.type", kind);
}

fn connected(span: &Span) -> Option<&'static dyn Traces> {
    TRACES.get().filter(|_| !span.is_disabled()).map(|traces| &**traces)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_was_read_is_written_again() {
        let parent = TraceParent::parse(WELL).unwrap();
        let (trace_id, span_id) = (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331);
        assert_eq!(parent, TraceParent { trace_id, span_id, sampled: true });
        assert_eq!(parent.to_string(), WELL);
        let unsampled = TraceParent { trace_id: 1, span_id: 2, sampled: false };
        assert_eq!(unsampled.to_string(), "00-00000000000000000000000000000001-0000000000000002-00");
        assert_eq!(TraceParent::parse(&unsampled.to_string()), Some(unsampled));
    }

    #[test]
    fn other_flags_and_later_versions_are_read_for_what_is_known() {
        for (text, sampled) in [
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", true),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02", false),
            ("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", true),
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-is-to-come", true),
        ] {
            assert_eq!(TraceParent::parse(text).map(|parent| parent.sampled), Some(sampled), "{text}");
        }
    }

    #[test]
    fn of_two_headers_none_counts() {
        let of = |values: &[&str]| TraceParent::of(values.iter().map(|value| value.as_bytes())).is_some();
        assert_eq!([of(&[]), of(&[WELL]), of(&[WELL, WELL]), of(&["", WELL])], [false, true, false, false]);
        assert_eq!(TraceParent::of(std::iter::once(&b"00-\xff"[..])), None);
    }

    #[test]
    fn what_is_none_is_none() {
        for text in [
            "",
            "00",
            "00-1-2-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
            "0é-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceParent::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn without_an_exporter_nothing_goes_along() {
        assert_eq!(name_of(&Span::current()), None);
        assert_eq!(name_of(&Span::none()), None);
    }
}
