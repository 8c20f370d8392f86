//! What the bucket must be, and what exclusive ownership needs beyond that.

use crate::config::SyncInterval;
use crate::connection::{BucketConnection, BucketState, ServerVersion};
use crate::error::{Failure, NatsResult};
use crate::jetstream::{self, StreamInfo, StreamSettings};
use crate::names::Bucket;

/// The oldest server for exclusive ownership: elections of older ones have lost acknowledged messages.
const EXCLUSIVE_MIN: ServerVersion = ServerVersion(2, 12, 3);
/// The replicas of a bucket that is made in a cluster.
const REPLICAS_DEFAULT: usize = 3;

/// The bucket, made if there is none, if it is what it must be.
pub(crate) async fn ensure(
    connection: &BucketConnection,
    bucket: &Bucket,
    replicas: Option<usize>,
) -> NatsResult<(BucketState, BucketOrigin)> {
    if let Some(info) = jetstream::stream_info(connection, bucket).await? {
        return Ok((checked(connection, bucket, &info)?, BucketOrigin::Found));
    }
    let replicas = replicas.unwrap_or(if connection.is_clustered { REPLICAS_DEFAULT } else { 1 });
    jetstream::create_stream(connection, bucket, replicas).await?;
    let info = jetstream::stream_info(connection, bucket).await?;
    let info = info.ok_or_else(|| Failure::NotReady { why: "the bucket was made and is not there yet".into() })?;
    Ok((checked(connection, bucket, &info)?, BucketOrigin::Made))
}

/// Whether the bucket was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BucketOrigin {
    Found,
    Made,
}

fn checked(connection: &BucketConnection, bucket: &Bucket, info: &StreamInfo) -> NatsResult<BucketState> {
    let is_clustered = connection.is_clustered || info.is_clustered();
    match wrong(&info.config, &bucket.subjects(), is_clustered) {
        Some(why) => Err(Failure::Bucket { bucket: bucket.name().to_owned(), why }),
        None => Ok(BucketState { created: info.created.clone(), is_clustered }),
    }
}

/// What is wrong with the stream, as the words that follow the bucket's name, and what to do.
fn wrong(settings: &StreamSettings, subjects: &str, is_clustered: bool) -> Option<String> {
    let StreamSettings { storage, num_replicas, max_age, max_msgs_per_subject, max_msgs, max_bytes, .. } = settings;
    let evicts = settings.discard == "old" && (*max_msgs > 0 || *max_bytes > 0);
    let why = if settings.mirror.is_some() {
        "is a mirror of another one, which takes no writes; name the original in discovery.nats.bucket"
    } else if settings.sealed || settings.no_ack || settings.retention != "limits" || !settings.subjects.iter().any(|one| one == subjects) {
        "is not a bucket that members can write to; name another one in discovery.nats.bucket; it will be created"
    } else if storage == "memory" {
        "is kept in memory, and a restart forgets it; recreate it with file storage, or name another one in discovery.nats.bucket"
    } else if *max_age != 0 {
        "has a max_age, by which each server would forget living members; set it to 0 (nats stream edit --max-age=0)"
    } else if *max_msgs_per_subject != 1 {
        "keeps a history; set it to 1 (nats stream edit --max-msgs-per-subject=1)"
    } else if evicts {
        "forgets the oldest messages at its limit; set discard to new (nats stream edit --discard=new)"
    } else if settings.deny_purge {
        "denies purges, so markers of what is gone would be kept indefinitely; recreate it, or name another one in discovery.nats.bucket"
    } else if is_clustered && *num_replicas < 3 {
        let what = if *num_replicas == 1 { "one replica" } else { "two replicas" };
        return Some(format!("has {what} in a cluster, so one server that fails stops all; set three (nats stream edit --replicas=3)"));
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Refuses exclusive ownership where servers or bucket cannot promise it.
pub(crate) fn allow_exclusive(version: ServerVersion, sync_interval: SyncInterval) -> NatsResult<()> {
    if version < EXCLUSIVE_MIN {
        let ServerVersion(major, minor, patch) = version;
        return Err(Failure::NotExclusive(format!(
            "needs servers of version 2.12.3 or newer, and this one has {major}.{minor}.{patch}; upgrade them"
        )));
    }
    if sync_interval != SyncInterval::Always {
        let why = "needs servers that flush before they acknowledge, and no client can see that: set sync_interval: always below jetstream in the \
                   configuration of each server, then discovery.nats.sync_interval = \"always\"";
        return Err(Failure::NotExclusive(why.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> StreamSettings {
        StreamSettings {
            subjects: vec!["$KV.b.>".into()],
            storage: "file".into(),
            num_replicas: 3,
            max_msgs_per_subject: 1,
            max_msgs: -1,
            max_bytes: -1,
            discard: "new".into(),
            retention: "limits".into(),
            ..StreamSettings::default()
        }
    }

    #[test]
    fn what_is_wrong_with_a_bucket_is_said_with_what_to_do() {
        let said = |settings: StreamSettings, is_clustered| wrong(&settings, "$KV.b.>", is_clustered);
        assert_eq!((said(good(), true), said(StreamSettings { num_replicas: 1, ..good() }, false)), (None, None));
        for (settings, is_clustered, expected) in [
            (StreamSettings { storage: "memory".into(), ..good() }, false, "memory"),
            (StreamSettings { max_age: 1, ..good() }, false, "max_age"),
            (StreamSettings { max_msgs_per_subject: 5, ..good() }, false, "history"),
            (StreamSettings { discard: "old".into(), max_bytes: 1, ..good() }, false, "discard"),
            (StreamSettings { deny_purge: true, ..good() }, false, "denies purges"),
            (StreamSettings { num_replicas: 1, ..good() }, true, "one replica in a cluster"),
            (StreamSettings { num_replicas: 2, ..good() }, true, "two replicas in a cluster"),
            (StreamSettings { subjects: vec!["x".into()], ..good() }, false, "not a bucket"),
        ] {
            let why = said(settings, is_clustered).unwrap_or_default();
            assert!(why.contains(expected), "{expected}: {why}");
        }
    }

    #[test]
    fn exclusive_ownership_needs_a_version_and_the_operators_word() {
        let said = |version, word| allow_exclusive(version, word).unwrap_err().to_string();
        assert!(said(ServerVersion(2, 12, 2), SyncInterval::Always).contains("2.12.3 or newer, and this one has 2.12.2"));
        assert!(said(ServerVersion(2, 15, 0), SyncInterval::Unknown).contains("discovery.nats.sync_interval = \"always\""));
        assert!(allow_exclusive(ServerVersion(2, 12, 3), SyncInterval::Always).is_ok());
    }
}
