//! The system's limit on open files and connections of this process.

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The most descriptors a sidecar uses besides its clients' connections: for probes (8), requests to members and to the local worker
/// (128), pooled connections (64), and the backend, the outbox and files (56).
const OWN: rlim_t = 256;

/// Raises the soft limit of this process as far as `wanted` connections need and the hard limit allows. Returns how many connections fit,
/// and logs it if they are fewer.
pub(crate) fn for_connections(wanted: usize) -> usize {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => {
            tracing::warn!(%error, "how many files may be open is unknown");
            return wanted;
        }
    };
    let mut files = files_for(wanted, soft, hard);
    if files > soft
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, files, hard)
    {
        tracing::warn!(%error, soft, limit = files, "the limit of open files cannot be raised");
        files = soft;
    }
    let connections = wanted.min(connections_within(files));
    if connections < wanted {
        tracing::warn!(
            wanted,
            connections,
            files,
            "fewer connections than --max-connections are taken, because so few files may be open: raise the limit (ulimit -n, LimitNOFILE)"
        );
    }
    connections
}

/// The soft limit that the connections need, if the hard limit allows it; never less than the present one.
fn files_for(connections: usize, soft: rlim_t, hard: rlim_t) -> rlim_t {
    OWN.saturating_add(rlim_t::try_from(connections).unwrap_or(rlim_t::MAX)).min(hard).max(soft)
}

/// With a very low limit, part of it is still reserved for clients.
fn connections_within(files: rlim_t) -> usize {
    usize::try_from(files.saturating_sub(OWN).max(files / 4).max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_as_far_as_needed_and_what_does_not_fit_is_not_taken() {
        for (soft, hard, wanted, files, connections) in [
            (1_024, 4_096, 512, 1_024, 512),
            (768, 768, 512, 768, 512),
            (256, 1_048_576, 512, 768, 512),
            (256, rlim_t::MAX, 5_000, 5_256, 5_000),
            (256, 700, 512, 700, 444),
            (700, 700, 512, 700, 444),
            (300, 300, 512, 300, 75),
            (300, 300, 50, 300, 50),
            (2, 2, 512, 2, 1),
            (rlim_t::MAX, rlim_t::MAX, 1_000_000, rlim_t::MAX, 1_000_000),
        ] {
            let limit = files_for(wanted, soft, hard);
            assert_eq!((limit, wanted.min(connections_within(limit))), (files, connections), "{soft} {hard} {wanted}");
        }
    }
}
