//! How many files and connections the system lets this process have open at a time.

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// What a sidecar has open at most beside its clients' connections: those for probes (8), requests on their way to members and to the worker beside (128), kept
/// connections (64), and the backend, the outbox and files (56).
const OWN: rlim_t = 256;

/// What to do about the limits.
#[derive(Debug, PartialEq, Eq)]
struct DescriptorPlan {
    /// The soft limit that is needed, where that is another one.
    raise_to: Option<rlim_t>,
    /// How many connections there is room for.
    connections: usize,
}

/// Raises the soft limit of this process as far as `wanted` connections need and the hard one allows. Answers how many there is room for, and says so in the log where
/// those are fewer.
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
    // Where there is hardly any room, most of it is for what a sidecar is there for.
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
