//! Resources and claims as the JSON that goes into statements and comes out of them: one value for thousands of rows.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shardwise_core::{Claim, ClaimName, Epoch, Holder, Incarnation, InstanceId, Resource, SLOTS_MAX};
use shardwise_discovery::one_line;

/// The changes: claims that are held, and those that came free before that.
pub(crate) struct Changes {
    pub(crate) held: Vec<(Resource, Claim)>,
    pub(crate) ended: Vec<Resource>,
}

/// A slot is a number, a name is text.
#[derive(Serialize)]
#[serde(untagged)]
enum ResourceJson<'a> {
    Slot(u32),
    Name(&'a str),
}

impl<'a> From<&'a Resource> for ResourceJson<'a> {
    fn from(resource: &'a Resource) -> Self {
        match resource {
            Resource::Slot(slot) => Self::Slot(*slot),
            Resource::Name(name) => Self::Name(name.as_str()),
        }
    }
}

/// A list of resources.
pub(crate) fn encode<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> serde_json::Result<String> {
    let written: Vec<_> = resources.into_iter().map(ResourceJson::from).collect();
    serde_json::to_string(&written)
}

/// A list of resources with epochs.
pub(crate) fn encode_held(held: &[(Resource, Epoch)]) -> serde_json::Result<String> {
    let written: Vec<_> = held.iter().map(|(resource, epoch)| (ResourceJson::from(resource), epoch.get())).collect();
    serde_json::to_string(&written)
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
    let epoch =
        u64::try_from(epoch).map_err(|_| format!("{epoch} is not an epoch")).and_then(|epoch| Epoch::new(epoch).map_err(|e| e.to_string()));
    epoch.map(|epoch| (resource.clone(), epoch)).map_err(|why| format!("on {resource}: {why}"))
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
