//! Names at a destination that are built from an event's fields: `orders.{aggregatetype}.{aggregateid}`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{Delivery, Error, ErrorKind, Result};

const FIELDS: [(&str, TemplatePart); 5] = [
    ("aggregatetype", TemplatePart::AggregateType),
    ("aggregateid", TemplatePart::AggregateId),
    ("type", TemplatePart::EventType),
    ("id", TemplatePart::Id),
    ("shardslot", TemplatePart::Slot),
];
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    AggregateType,
    AggregateId,
    EventType,
    Id,
    Slot,
}

/// A text that may contain `{aggregatetype}`, `{aggregateid}`, `{type}`, `{id}` and `{shardslot}`.
///
/// Values from an event are escaped: every byte except ASCII letters, digits, `-` and `_` becomes `%XX`. So a value cannot reach beyond
/// its place in the name, and different values never produce the same name if another sign, such as a dot, separates two fields.
///
/// ```
/// use shardwise_outbox::exercise::deliveries;
/// use shardwise_outbox::sink::Template;
///
/// let subject = Template::parse("orders.{aggregatetype}.{aggregateid}")?;
/// assert_eq!(subject.render(&deliveries("a.b *", 1, 1)[0]), "orders.order.a%2Eb%20%2A");
/// # Ok::<_, shardwise_outbox::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<TemplatePart>);

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: an unmatched brace, or an unknown name in braces.
    pub fn parse(text: &str) -> Result<Self> {
        // The wrong part is not shown: a URL may contain a secret anywhere.
        let wrong = |what: &str| Error::new(ErrorKind::Settings, format!("the template {what}"));
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, after) = behind.split_once('}').ok_or_else(|| wrong("has a { without its }"))?;
            let field = FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| field.clone()).ok_or_else(|| {
                let known: Vec<_> = FIELDS.iter().map(|(known, _)| format!("{{{known}}}")).collect();
                wrong(&format!("has a name in braces that is not known; known are {}", known.join(", ")))
            })?;
            pieces.extend([TemplatePart::Text(before.to_owned()), field]);
            rest = after;
        }
        pieces.push(TemplatePart::Text(rest.to_owned()));
        pieces.retain(|piece| *piece != TemplatePart::Text(String::new()));
        if pieces.iter().any(|piece| matches!(piece, TemplatePart::Text(text) if text.contains('}'))) {
            return Err(wrong("has a } without its {"));
        }
        if pieces.is_empty() { Err(wrong("is empty: write a name")) } else { Ok(Self(pieces)) }
    }

    /// The name for an event.
    pub fn render(&self, event: &Delivery) -> String {
        self.rendered(event, |name, value| name.extend(utf8_percent_encode(value, ESCAPED)))
    }

    /// The name for an event with its values as they are: for destinations in which a name has no structure.
    #[cfg(feature = "kafka")]
    pub(super) fn unescaped(&self, event: &Delivery) -> String {
        self.rendered(event, String::push_str)
    }

    fn rendered(&self, event: &Delivery, put: impl Fn(&mut String, &str)) -> String {
        let mut name = String::new();
        for piece in &self.0 {
            match piece {
                TemplatePart::Text(text) => name.push_str(text),
                TemplatePart::AggregateType => put(&mut name, &event.aggregate_type),
                TemplatePart::AggregateId => put(&mut name, &event.aggregate_id),
                TemplatePart::EventType => put(&mut name, &event.event_type),
                TemplatePart::Id => put(&mut name, &event.id),
                TemplatePart::Slot => put(&mut name, &event.slot.to_string()),
            }
        }
        name
    }

    /// The text between the fields.
    #[cfg(feature = "kafka")]
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| if let TemplatePart::Text(text) = piece { Some(text.as_str()) } else { None })
    }

    /// The name, if it is the same for all events.
    #[cfg(feature = "kafka")]
    pub(super) fn fixed(&self) -> Option<&str> {
        if let [TemplatePart::Text(text)] = self.0.as_slice() { Some(text) } else { None }
    }

    /// The event's aggregate type and type, as far as the template has them; `None` if it has neither. All events with the same value may
    /// fail together. The rest of the name is left out because it may contain a secret.
    pub fn destination(&self, event: &Delivery) -> Option<String> {
        let values = self.0.iter().filter_map(|piece| match piece {
            TemplatePart::AggregateType => Some(&event.aggregate_type),
            TemplatePart::EventType => Some(&event.event_type),
            _ => None,
        });
        let mut name = String::new();
        for value in values {
            if !name.is_empty() {
                name.push('/');
            }
            name.extend(utf8_percent_encode(value, ESCAPED));
        }
        (!name.is_empty()).then_some(name)
    }

    /// Whether different aggregates never share a name, and all events of one aggregate have the same name. Two fields are separated only
    /// by a sign that cannot occur in a value, such as a dot.
    pub fn is_per_aggregate(&self) -> bool {
        let has = |part| self.0.contains(&part);
        let has_both = has(TemplatePart::AggregateType) && has(TemplatePart::AggregateId);
        has_both && !has(TemplatePart::EventType) && !has(TemplatePart::Id) && self.are_fields_apart()
    }

    fn are_fields_apart(&self) -> bool {
        let mut apart = true;
        for piece in &self.0 {
            match piece {
                TemplatePart::Text(text) => apart |= text.bytes().any(|byte| !byte.is_ascii_alphanumeric() && !b"-_%".contains(&byte)),
                _ if !apart => return false,
                _ => apart = false,
            }
        }
        true
    }

    /// Whether all events with the same name belong to one slot.
    pub fn is_per_slot(&self) -> bool {
        self.0.contains(&TemplatePart::Slot)
    }

    /// The pattern of all its names: the words between separators, with `*` for words that contain a field.
    pub fn pattern(&self, separator: char) -> String {
        let text: String = self.0.iter().map(|piece| if let TemplatePart::Text(text) = piece { text } else { "\0" }).collect();
        let words: Vec<_> = text.split(separator).map(|word| if word.contains('\0') { "*" } else { word }).collect();
        words.join(&separator.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exercise::deliveries;
    use proptest::prelude::*;

    fn event(aggregate_type: &str, aggregate_id: &str) -> Delivery {
        Delivery { aggregate_type: aggregate_type.into(), ..deliveries(aggregate_id, 1, 1).remove(0) }
    }

    #[test]
    fn fields_stand_in_their_places() {
        let template = Template::parse("/{shardslot}/{type}-{id}.{aggregatetype}").unwrap();
        let event = Delivery { slot: 7, event_type: "Order/Placed".into(), id: "é".into(), ..event("order", "1") };
        assert_eq!(template.render(&event), "/7/Order%2FPlaced-%C3%A9.order");
        assert_eq!(template.destination(&event), Some("Order%2FPlaced/order".into()));
        assert_eq!(Template::parse("/{id}").unwrap().destination(&event), None, "no two kinds, and so one place");
        assert_eq!(Template::parse("plain").unwrap().render(&event), "plain");
        assert_eq!(Template::parse("a.b{id}.c.{type}").unwrap().pattern('.'), "a.*.c.*");
        #[cfg(feature = "kafka")]
        assert_eq!((template.unescaped(&event).as_str(), template.fixed()), ("/7/Order/Placed-é.order", None));
    }

    proptest! {
        #[test]
        fn no_two_aggregates_have_a_name_in_common(a in ".{1,6}", b in ".{1,6}", c in ".{1,6}", d in ".{1,6}") {
            let template = Template::parse("x.{aggregatetype}.{aggregateid}").unwrap();
            let names = [template.render(&event(&a, &b)), template.render(&event(&c, &d))];
            prop_assert_eq!(names[0] == names[1], (a, b) == (c, d));
            prop_assert!(names[0].bytes().all(|byte| byte.is_ascii_graphic() && byte != b'*' && byte != b'>'));
        }
    }
}
