//! Names at a destination that are built from an event's fields: `orders.{aggregatetype}.{aggregateid}`.

use std::fmt::Write as _;

use crate::{Delivery, Error, ErrorKind, Result};

const FIELDS: [(&str, Field); 5] = [
    ("aggregatetype", Field::AggregateType),
    ("aggregateid", Field::AggregateId),
    ("type", Field::EventType),
    ("id", Field::Id),
    ("shardslot", Field::Slot),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    AggregateType,
    AggregateId,
    EventType,
    Id,
    Slot,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Field(Field),
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
            let field = FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| *field).ok_or_else(|| {
                let known: Vec<_> = FIELDS.iter().map(|(known, _)| format!("{{{known}}}")).collect();
                wrong(&format!("has a name in braces that is not known; known are {}", known.join(", ")))
            })?;
            pieces.extend([TemplatePart::Text(before.to_owned()), TemplatePart::Field(field)]);
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
        let mut name = String::new();
        for piece in &self.0 {
            match piece {
                TemplatePart::Text(text) => name.push_str(text),
                TemplatePart::Field(Field::AggregateType) => escape(&event.aggregate_type, &mut name),
                TemplatePart::Field(Field::AggregateId) => escape(&event.aggregate_id, &mut name),
                TemplatePart::Field(Field::EventType) => escape(&event.event_type, &mut name),
                TemplatePart::Field(Field::Id) => escape(&event.id, &mut name),
                // Writing to a String does not fail.
                TemplatePart::Field(Field::Slot) => drop(write!(name, "{}", event.slot)),
            }
        }
        name
    }

    /// The event's aggregate type and type, as far as the template has them; `None` if it has neither. All events with the same value may
    /// fail together. The rest of the name is left out because it may contain a secret.
    pub fn destination(&self, event: &Delivery) -> Option<String> {
        let mut name = String::new();
        for piece in &self.0 {
            let value = match piece {
                TemplatePart::Field(Field::AggregateType) => &event.aggregate_type,
                TemplatePart::Field(Field::EventType) => &event.event_type,
                _ => continue,
            };
            if !name.is_empty() {
                name.push('/');
            }
            escape(value, &mut name);
        }
        (!name.is_empty()).then_some(name)
    }

    /// Whether different aggregates never share a name, and all events of one aggregate have the same name. Two fields are separated only
    /// by a sign that cannot occur in a value, such as a dot.
    pub fn is_per_aggregate(&self) -> bool {
        let has_both =
            self.has(Field::AggregateType) && self.has(Field::AggregateId) && !self.has(Field::EventType) && !self.has(Field::Id);
        has_both && self.are_fields_apart()
    }

    fn are_fields_apart(&self) -> bool {
        let mut apart = true;
        for piece in &self.0 {
            match piece {
                TemplatePart::Text(text) => apart |= text.bytes().any(|byte| !is_plain(byte) && byte != b'%'),
                TemplatePart::Field(_) if !apart => return false,
                TemplatePart::Field(_) => apart = false,
            }
        }
        true
    }

    /// Whether all events with the same name belong to one slot.
    pub fn is_per_slot(&self) -> bool {
        self.has(Field::Slot)
    }

    /// The pattern of all its names: the words between separators, with `*` for words that contain a field.
    pub fn pattern(&self, separator: char) -> String {
        let text: String = self.0.iter().map(|piece| if let TemplatePart::Text(text) = piece { text } else { "\0" }).collect();
        let words: Vec<_> = text.split(separator).map(|word| if word.contains('\0') { "*" } else { word }).collect();
        words.join(&separator.to_string())
    }

    fn has(&self, field: Field) -> bool {
        self.0.contains(&TemplatePart::Field(field))
    }
}

/// Whether a value's byte stays unescaped in a name.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

fn escape(value: &str, name: &mut String) {
    for byte in value.bytes() {
        if is_plain(byte) {
            name.push(char::from(byte));
        } else {
            let _ = write!(name, "%{byte:02X}");
        }
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
