//! `[default.resilience.sharding.instance]`: how this worker describes itself.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::Ipv6Addr;

use shardwise_core::{Address, InstanceId, NAME_BYTES_MAX, WEIGHT_MAX, Weight};
use shardwise_discovery::{METADATA_BYTES_MAX, random_incarnation};
use shardwise_settings::{Error, Origin, ResolvedValue, SettingsTable};

use super::keys;
use crate::error::{self, ErrorKind, Result};

/// The value of `instance.address` that stands for this machine's address towards the backend.
pub const ADDRESS_AUTO: &str = "auto";
/// The metadata key for the address at which a member takes requests and messages; shardwise writes it.
pub(crate) const CHANNEL_ADDRESS: &str = "shardwise.channel";
/// All metadata keys that shardwise writes or has written: earlier versions had an address for messages and another one for requests.
const RESERVED: [&str; 3] = [CHANNEL_ADDRESS, "shardwise.messages", "shardwise.requests"];
/// The length in bytes of the longest host name in DNS.
const HOST_BYTES_MAX: usize = 253;
/// The bytes after the host's name in a generated instance id: a hyphen and 8 hexadecimal digits.
const SUFFIX_BYTES: usize = 9;
/// Replaces the name of a host without one.
const NAMELESS_HOST: &str = "worker";

/// How this worker describes itself to others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct InstanceSettings {
    /// Its name in every group. `None`: generated at each start, see [`InstanceSettings::id_or_made`].
    pub id: Option<InstanceId>,
    /// Where others reach it: `address` and `port`. The host [`ADDRESS_AUTO`] stands for the address from which the kernel reaches the
    /// policy's backend. It is found when the policy's service is created, and nothing is sent for it.
    pub address: Option<Address>,
    /// Its failure domain, 1 to 255 bytes: [`owners`](crate::ShardingService::owners) prefers members of different ones.
    pub zone: Option<String>,
    /// Its share relative to others, 1 to 100.
    pub weight: Weight,
    /// The worker's version, 1 to 255 bytes.
    pub version: Option<String>,
    /// Metadata that others see; at most [`METADATA_BYTES_MAX`] bytes, names and values together.
    pub metadata: BTreeMap<String, String>,
}

impl InstanceSettings {
    /// The configured id, or a generated one: the host's name, a hyphen and 8 random hexadecimal digits. Each call generates another id,
    /// so a process should call it once. A long host name is truncated, so there is no error in practice.
    pub fn id_or_made(&self) -> Result<InstanceId> {
        match &self.id {
            Some(id) => Ok(id.clone()),
            None => made(&gethostname::gethostname(), random_incarnation().get()),
        }
    }
}

/// The id for a host's name and a random number.
fn made(host: &OsStr, random: u64) -> Result<InstanceId> {
    let host = host.to_string_lossy().replace('\0', "");
    let host = if host.is_empty() { NAMELESS_HOST } else { &host };
    let host = &host[..host.floor_char_boundary(NAME_BYTES_MAX - SUFFIX_BYTES)];
    // The upper half of the number: all of its bits are equally random.
    InstanceId::new(format!("{host}-{:08x}", random >> 32)).map_err(|error| error::Error::new(ErrorKind::Settings, error.to_string()))
}

pub(super) fn read(table: &SettingsTable<'_>) -> Result<InstanceSettings, Error> {
    let id = table.take_if_set(&keys::ID)?;
    if id.is_none() {
        table.note_from(&keys::ID, "<the host's name>-<8 random hexadecimal digits>", Origin::Default);
    }
    let id = id.map(|found| found.parse(|text| InstanceId::new(text))).transpose()?;
    let address = address(table)?;
    let zone = label(table.take_if_set(&keys::ZONE)?)?;
    let weight = table.take(&keys::WEIGHT)?;
    let allowed = || format!("1 to {WEIGHT_MAX} is allowed");
    let weight = weight.parse(|text| text.parse().ok().and_then(Weight::new).ok_or_else(allowed))?;
    let version = label(table.take_if_set(&keys::VERSION)?)?;
    Ok(InstanceSettings { id, address, zone, weight, version, metadata: metadata(table)? })
}

/// A short text that is not empty.
fn label(found: Option<ResolvedValue>) -> Result<Option<String>, Error> {
    let Some(found) = found else { return Ok(None) };
    let text = found.text();
    if (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.contains('\0') {
        return Ok(Some(text.to_owned()));
    }
    Err(found.refuse(format_args!("1 to {NAME_BYTES_MAX} bytes without NUL are allowed; leave the key out for none")))
}

fn address(table: &SettingsTable<'_>) -> Result<Option<Address>, Error> {
    let missing = |key: &str| format!("{}.{key} is missing; write both or none", table.path());
    let (host, port) = match (table.take_if_set(&keys::ADDRESS)?, table.take_if_set(&keys::PORT)?) {
        (None, None) => return Ok(None),
        (Some(host), None) => return Err(host.refuse(missing("port"))),
        (None, Some(port)) => return Err(port.refuse(missing("address"))),
        (Some(host), Some(port)) => (host, port.parse(str::parse)?),
    };
    let name = host.text();
    let plain =
        (1..=HOST_BYTES_MAX).contains(&name.len()) && !name.contains(|c: char| c.is_whitespace() || c.is_control() || "/[]@".contains(c));
    if !plain || (name.contains(':') && name.parse::<Ipv6Addr>().is_err()) {
        return Err(host.refuse("write a host name or an IP address alone, such as \"10.0.0.7\" or \"fd00::7\"; the port has its own key"));
    }
    Ok(Some(Address { host: name.to_owned(), port }))
}

fn metadata(table: &SettingsTable<'_>) -> Result<BTreeMap<String, String>, Error> {
    let mut metadata = BTreeMap::new();
    let mut bytes = 0;
    for (name, found) in table.take_all(&keys::METADATA)? {
        if name.is_empty() {
            return Err(found.refuse("a name has at least one character; write one before the value"));
        }
        if RESERVED.contains(&name) {
            return Err(found.refuse("shardwise itself writes this name; choose another one"));
        }
        bytes += name.len() + found.text().len();
        if bytes > METADATA_BYTES_MAX {
            return Err(found.refuse(format_args!("with it the metadata has {bytes} bytes; at most {METADATA_BYTES_MAX} are allowed")));
        }
        metadata.insert(name.to_owned(), found.text().to_owned());
    }
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_id_is_the_hosts_name_and_eight_digits() {
        assert_eq!(made(OsStr::new("web-1"), 0x0000_00ab_ffff_ffff).unwrap().as_str(), "web-1-000000ab");
        assert_eq!(made(OsStr::new(""), 0).unwrap().as_str(), "worker-00000000");
        let long = made(OsStr::new(&"é".repeat(300)), u64::MAX).unwrap();
        assert!(long.as_str().len() <= NAME_BYTES_MAX && long.as_str().ends_with("é-ffffffff"));
    }

    #[test]
    fn each_start_makes_another_id_unless_one_is_set() {
        let made = InstanceSettings::default();
        assert_ne!(made.id_or_made().unwrap(), made.id_or_made().unwrap());
        let set = InstanceSettings { id: Some(InstanceId::new("a").unwrap()), ..made };
        assert_eq!(set.id_or_made().unwrap().as_str(), "a");
    }
}
