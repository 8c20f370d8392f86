//! Where another fleet keeps one key for each of its workers.

use crate::error::{Failure, NatsResult};
use crate::names::Bucket;

/// Where the other fleet's keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatusKeys {
    bucket: Bucket,
    /// The subjects of the keys that stand for workers.
    filter: String,
}

impl StatusKeys {
    /// The keys of `bucket` that match `keys`: parts separated by dots, where `*` is any part and `>` all further ones.
    pub(crate) fn new(bucket: &str, keys: &str) -> NatsResult<Self> {
        let bucket = Bucket::of_setting("status_bucket", bucket)?;
        let parts: Vec<_> = keys.split('.').collect();
        let is_plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'*' | b'>'));
        let is_part = |(at, part): (usize, &&str)| is_plain(part) || *part == "*" || (*part == ">" && at + 1 == parts.len());
        if !parts.iter().enumerate().all(is_part) {
            let why = format!("is {keys:?}; write parts separated by dots, such as \"workers.*\", or \">\" for all keys");
            return Err(Failure::Setting { setting: "status_keys", why });
        }
        Ok(Self { filter: format!("$KV.{}.{keys}", bucket.name()), bucket })
    }

    pub(crate) const fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    pub(crate) const fn filter(&self) -> &String {
        &self.filter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_by_a_bucket_and_a_filter() {
        let filter = |keys| StatusKeys::new("status", keys).map(|keys| keys.filter).map_err(|failure| failure.to_string());
        for (keys, expected) in [(">", "$KV.status.>"), ("workers.*", "$KV.status.workers.*"), ("*.eu.>", "$KV.status.*.eu.>")] {
            assert_eq!(filter(keys).as_deref(), Ok(expected));
        }
        for wrong in ["", ".", "a.", "a b", ">.a", "a*", "a>", "ü"] {
            assert!(filter(wrong).unwrap_err().starts_with("discovery.nats.status_keys is "), "{wrong}");
        }
        let said = StatusKeys::new("a.b", ">").unwrap_err().to_string();
        assert!(said.starts_with("discovery.nats.status_bucket is \"a.b\""), "{said}");
    }
}
