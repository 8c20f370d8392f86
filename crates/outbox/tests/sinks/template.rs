//! The syntax and the properties of templates.

use shardwise_outbox::Delivery;
use shardwise_outbox::exercise::deliveries;
use shardwise_outbox::sink::Template;

fn of(aggregate_type: &str, aggregate_id: &str) -> Delivery {
    Delivery { aggregate_type: aggregate_type.into(), ..deliveries(aggregate_id, 1, 1).remove(0) }
}

#[test]
fn what_is_no_template_is_reported() {
    for (text, expected) in [
        ("", "is empty"),
        ("a.{", "has a { without its }"),
        ("a.}", "has a } without its {"),
        ("a.{key}", "has a name in braces that is not known; known are {aggregatetype}, {aggregateid},"),
    ] {
        let error = Template::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("a.") && !error.contains("key"), "{error}");
    }
}

#[test]
fn names_are_per_aggregate_only_if_no_two_aggregates_can_share_one() {
    for good in ["{aggregatetype}.{aggregateid}", "x{aggregatetype}:y{aggregateid}z", "{shardslot}/{aggregatetype}/{aggregateid}"] {
        assert!(Template::parse(good).unwrap().is_per_aggregate(), "{good}");
    }
    for fields in ["{aggregatetype}{aggregateid}", "{aggregatetype}-{aggregateid}", "{aggregatetype}_%2Ex{aggregateid}"] {
        assert!(!Template::parse(fields).unwrap().is_per_aggregate(), "{fields}");
    }
    let (slot, adjacent) = (Template::parse("{shardslot}{aggregatetype}.{aggregateid}").unwrap(), "{aggregatetype}{aggregateid}");
    assert!(!slot.is_per_aggregate());
    let adjacent = Template::parse(adjacent).unwrap();
    assert_eq!(adjacent.render(&of("ab", "c")), adjacent.render(&of("a", "bc")), "what it would mix up");
}
