//! The system's limit on open files and connections of this process.

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The most descriptors a sidecar uses besides its clients' connections: for probes (8), requests to members and to the local worker
/// (128), pooled connections (64), and the backend, the outbox and files (56).
const OWN: rlim_t = 256;

/// The changes that the limits require.
#[derive(Debug, PartialEq, Eq)]
struct DescriptorPlan {
    /// The new soft limit, if it must change.
    raise_to: Option<rlim_t>,
    connections: usize,
}

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
    let mut fit = fit(soft, hard, wanted);
    if let Some(limit) = fit.raise_to
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, limit, hard)
    {
        tracing::warn!(%error, soft, limit, "the limit of open files cannot be raised");
        fit = self::fit(soft, soft, wanted);
    }
    if fit.connections < wanted {
        tracing::warn!(
            wanted,
            connections = fit.connections,
            files = fit.raise_to.unwrap_or(soft),
            "fewer connections than --max-connections are taken, because so few files may be open: raise the limit (ulimit -n, LimitNOFILE)"
        );
    }
    fit.connections
}

fn fit(soft: rlim_t, hard: rlim_t, wanted: usize) -> DescriptorPlan {
    let needed = OWN.saturating_add(rlim_t::try_from(wanted).unwrap_or(rlim_t::MAX));
    let limit = if soft >= needed { soft } else { hard.min(needed) };
    // With a very low limit, part of it is still reserved for clients.
    let room = limit.saturating_sub(OWN).max(limit / 4).max(1);
    DescriptorPlan { raise_to: (limit != soft).then_some(limit), connections: wanted.min(usize::try_from(room).unwrap_or(usize::MAX)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_as_far_as_needed_and_what_does_not_fit_is_not_taken() {
        for (soft, hard, wanted, raise_to, connections) in [
            (1_024, 4_096, 512, None, 512),
            (768, 768, 512, None, 512),
            (256, 1_048_576, 512, Some(768), 512),
            (256, rlim_t::MAX, 5_000, Some(5_256), 5_000),
            (256, 700, 512, Some(700), 444),
            (700, 700, 512, None, 444),
            (300, 300, 512, None, 75),
            (300, 300, 50, None, 50),
            (2, 2, 512, None, 1),
            (rlim_t::MAX, rlim_t::MAX, 1_000_000, None, 1_000_000),
        ] {
            assert_eq!(fit(soft, hard, wanted), DescriptorPlan { raise_to, connections }, "{soft} {hard} {wanted}");
        }
    }
}
