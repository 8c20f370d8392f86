//! Who holds a slot or a name: the fields of JSON, and the words.

use std::time::SystemTime;

use serde_json::{Map, Value, json};
use shardwise::{Holding, Mismatch, Moment};

/// The fields of JSON, named as in the HTTP API; all are null if there is no holding.
pub(super) fn fields(holding: Option<&Holding>, now: Moment) -> Map<String, Value> {
    let claim = holding.and_then(|holding| holding.held.as_ref()).map(|held| &held.claim);
    let fields = json!({
        "holder": claim.map(|claim| &claim.holder.instance_id),
        "incarnation": claim.map(|claim| claim.holder.incarnation.to_string()),
        "epoch": claim.map(|claim| claim.epoch),
        "since": holding.and_then(|holding| since(holding, now)),
        "wanted": holding.and_then(|holding| holding.wanted.as_ref()),
        "why": holding.and_then(|holding| holding.mismatch).map(Mismatch::as_str),
    });
    if let Value::Object(fields) = fields { fields } else { Map::new() }
}

/// `worker-1 under epoch 7, since …`.
pub(super) fn in_words(holding: &Holding, now: Moment) -> String {
    let Some(held) = &holding.held else { return "none".to_owned() };
    let since = since(holding, now).unwrap_or_else(|| "before this command looked".to_owned());
    format!("{} under epoch {}, since {since}", held.claim.holder.instance_id, held.claim.epoch)
}

/// The cells of a table with the holder and its epoch.
pub(super) fn cells(holding: Option<&Holding>) -> [String; 2] {
    let claim = holding.and_then(|holding| holding.held.as_ref()).map(|held| &held.claim);
    let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [cell(claim.map(|claim| claim.holder.instance_id.to_string())), cell(claim.map(|claim| claim.epoch.to_string()))]
}

/// Since when, by this machine's clock; `None` if it was held before this process looked.
fn since(holding: &Holding, now: Moment) -> Option<String> {
    let since = holding.held.as_ref()?.since?;
    let at = SystemTime::now().checked_sub(now.since(since))?;
    Some(humantime::format_rfc3339_millis(at).to_string())
}
