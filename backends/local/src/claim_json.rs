//! Resources and claims as the JSON that goes into statements and comes out of them: one value for thousands of rows.

use serde::Deserialize;
use serde_json::{Value, json};
use shardwise_core::{Claim, ClaimName, Epoch, Holder, Incarnation, InstanceId, Resource, SLOTS_MAX};
use shardwise_discovery::one_line;

/// The changes: claims that are held, and those that came free before that.
pub(crate) struct Changes {
    pub(crate) held: Vec<(Resource, Claim)>,
    pub(crate) ended: Vec<Resource>,
}

/// A slot is a number, a name is text.
fn written(resource: &Resource) -> Value {
    match resource {
        Resource::Slot(slot) => Value::from(*slot),
        Resource::Name(name) => Value::from(name.as_str()),
    }
}

/// A list of resources.
pub(crate) fn encode<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> String {
    resources.into_iter().map(written).collect::<Value>().to_string()
}

/// A list of resources with epochs.
pub(crate) fn encode_held(held: &[(Resource, Epoch)]) -> String {
    held.iter().map(|(resource, epoch)| json!([written(resource), epoch.get()])).collect::<Value>().to_string()
}

/// The inverse of [`encode_held`]. Text that cannot be read, such as after an edit by hand, is an error that names the resource.
pub(crate) fn decode_held(json: &str) -> Result<Vec<(Resource, Epoch)>, String> {
    parsed::<Vec<(Value, i64)>>(json)?.into_iter().map(read_claim).collect()
}

pub(crate) fn decode_changes(held: &str, ended: &str) -> Result<Changes, String> {
    let mut claims = Vec::new();
    for (id, incarnation, held) in parsed::<Vec<(String, String, Vec<(Value, i64)>)>>(held)? {
        let incarnation = Incarnation::from_hex(&incarnation).ok_or_else(|| format!("{id:?} has the incarnation {incarnation:?}"))?;
        let instance_id = InstanceId::new(&id).map_err(|error| error.to_string())?;
        let holder = Holder { instance_id, incarnation };
        for pair in held {
            let (resource, epoch) = read_claim(pair)?;
            claims.push((resource, Claim { holder: holder.clone(), epoch }));
        }
    }
    // An entry that cannot be read was never reported as held.
    let ended = parsed::<Vec<Value>>(ended)?.iter().filter_map(|value| read_resource(value).ok()).collect();
    Ok(Changes { held: claims, ended })
}

fn parsed<'de, T: Deserialize<'de>>(json: &'de str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|error| one_line(&error.to_string()))
}

fn read_claim((value, epoch): (Value, i64)) -> Result<(Resource, Epoch), String> {
    let resource = read_resource(&value)?;
    let number = u64::try_from(epoch).map_err(|_| format!("on {resource}: {epoch} is not an epoch"))?;
    let epoch = Epoch::new(number).map_err(|error| format!("on {resource}: {error}"))?;
    Ok((resource, epoch))
}

/// The resource that a value of the table stands for, or why it is none.
fn read_resource(value: &Value) -> Result<Resource, String> {
    match value {
        Value::String(name) => ClaimName::new(name).map(Resource::Name).map_err(|error| error.to_string()),
        Value::Number(slot) if !slot.is_f64() => {
            let valid = slot.as_u64().and_then(|slot| u32::try_from(slot).ok()).filter(|slot| *slot < SLOTS_MAX);
            valid.map(Resource::Slot).ok_or_else(|| format!("{slot} is no slot"))
        }
        Value::Null => Err("there are bytes where a slot or a name should be".to_owned()),
        other => Err(format!("{other} is neither a slot nor a name")),
    }
}
