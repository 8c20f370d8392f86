//! Addresses in this member's record, on which the modules above listen.

use std::collections::BTreeMap;

use shardwise_core::Member;
use shardwise_discovery::METADATA_BYTES_MAX;
use tokio::sync::watch;

use crate::error::{Error, ErrorKind, Result};

/// The metadata that shardwise adds to the configured one, by name. The driver keeps it in the record.
pub(crate) struct AdvertisedAddresses {
    host: Option<String>,
    /// Bytes of the configured metadata, names and values together.
    configured_bytes: usize,
    addresses: watch::Sender<BTreeMap<&'static str, String>>,
}

impl AdvertisedAddresses {
    pub(super) fn new(member: &Member) -> Self {
        Self {
            host: member.address.as_ref().map(|address| address.host.clone()),
            configured_bytes: member.metadata.iter().map(|(name, text)| name.len() + text.len()).sum(),
            addresses: watch::Sender::default(),
        }
    }

    /// That port at the host under which others reach this worker; `None` where `instance.address` is not set.
    pub(crate) fn at_host(&self, port: u16) -> Option<String> {
        let host = self.host.as_ref()?;
        Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    }

    /// Publishes `address` under the metadata name `key`; an error, and no change, if the record's metadata would become too long.
    pub(crate) fn show(&self, key: &'static str, address: &str) -> Result<()> {
        let mut bytes = 0;
        self.addresses.send_if_modified(|addresses| {
            let others = addresses.iter().filter(|(name, _)| **name != key).map(|(name, text)| name.len() + text.len());
            bytes = self.configured_bytes + others.sum::<usize>() + key.len() + address.len();
            bytes <= METADATA_BYTES_MAX && addresses.insert(key, address.to_owned()).as_deref() != Some(address)
        });
        if bytes <= METADATA_BYTES_MAX {
            return Ok(());
        }
        let message = format!(
            "with {key} = {address:?} this worker's metadata has {bytes} bytes; at most {METADATA_BYTES_MAX} are allowed: shorten instance.metadata"
        );
        Err(Error::new(ErrorKind::Settings, message))
    }

    pub(super) fn follow(&self) -> watch::Receiver<BTreeMap<&'static str, String>> {
        self.addresses.subscribe()
    }

    pub(super) fn keys(&self) -> Vec<&'static str> {
        self.addresses.borrow().keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwise_core::{Address, InstanceId};

    #[test]
    fn what_does_not_fit_into_the_record_is_refused_and_changes_nothing() {
        let member = Member {
            address: Some(Address { host: "fd00::7".into(), port: 1 }),
            metadata: BTreeMap::from([("k".into(), "v".repeat(METADATA_BYTES_MAX - 10))]),
            ..Member::named(InstanceId::new("w").unwrap())
        };
        let advertised = AdvertisedAddresses::new(&member);
        assert_eq!(advertised.at_host(80).as_deref(), Some("[fd00::7]:80"));
        advertised.show("a", "12:3").unwrap();
        advertised.show("a", "45:6").unwrap();
        let error = advertised.show("b", "12:34").unwrap_err();
        assert!(error.to_string().contains("shorten instance.metadata"), "{error}");
        assert_eq!((advertised.keys(), advertised.follow().borrow().get("a").map(String::as_str)), (vec!["a"], Some("45:6")));
    }
}
