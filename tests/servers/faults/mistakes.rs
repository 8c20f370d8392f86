//! That the fault test can fail: with a known mistake put back into the library of all workers, it finds what that mistake does.

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use shardwise::core::mistakes::Mistake;

use super::fault_run::{FaultRun, Wrong};
use super::worker::mistake;
use super::{Fault, long};
use crate::meeting::Kind;

/// Set by `cargo xtask soak exclusive --mistake NAME`.
const WANTED: &str = "SHARDWISE_SOAK_MISTAKE";

on_all_at_once!(a_release_before_its_drain_is_found; soak: nats Nats, postgres Postgres);
on_all_at_once!(one_epoch_for_a_member_is_found; soak: nats Nats, postgres Postgres);
on_all_at_once!(the_mistake_of_a_soak_is_found);

/// Each test is over once something is found, or after so many.
const LEAVES_MAX: usize = 8;

/// Lets workers that make a mistake live through these until it shows `enough`.
fn wrong(
    kind: Option<Kind>,
    servers: usize,
    mistake: Mistake,
    faults: impl FnOnce(&mut StdRng) -> Vec<Fault>,
    enough: fn(&Wrong) -> bool,
) -> Wrong {
    let (backend, seed) = (kind.map_or("local", Kind::name), rand::random());
    let mut rng = StdRng::seed_from_u64(seed);
    let faults = faults(&mut rng);
    let mut run = FaultRun::start(kind, servers, rng, Some(mistake));
    for fault in faults {
        run.strike(fault);
        if enough(&run.wrong()) {
            break;
        }
    }
    let wrong = run.end_wrong();
    let Wrong { faults, overlaps, falls } = wrong;
    let mistake = mistake.name();
    crate::figures::note(&json!({
        "scene": "mistake", "backend": backend, "mistake": mistake, "seed": seed, "faults": faults, "overlaps": overlaps, "falls": falls
    }));
    wrong
}

/// The slots of one that leaves, and those of one that comes, go from hand to hand while work in them goes on.
fn a_release_before_its_drain_is_found(kind: Option<Kind>) {
    let wrong = wrong(kind, 1, Mistake::ReleaseBeforeDrain, |_| vec![Fault::Leave; LEAVES_MAX], |wrong| wrong.overlaps > 0);
    assert!(wrong.overlaps > 0, "slots went to others while work in them went on, and nothing shows it");
}

/// The first member has the lowest epoch, and gets slots from later ones.
fn one_epoch_for_a_member_is_found(kind: Option<Kind>) {
    let wrong = wrong(kind, 1, Mistake::EpochPerMember, |_| vec![Fault::Leave; LEAVES_MAX], |wrong| wrong.falls > 0);
    assert!(wrong.falls > 0, "slots went to others under lower epochs, and nothing shows it");
}

/// Nothing to do but in a soak. A deadline that counts from the answer is found on etcd alone: on `local` answers are not late, and on
/// Consul a lock outlives the deadline by what its session has still to live.
fn the_mistake_of_a_soak_is_found(kind: Option<Kind>) {
    let (Ok(name), Some(count)) = (std::env::var(WANTED), crate::figures::wanted()) else { return };
    let mistake = mistake(&name);
    if mistake == Mistake::DeadlineFromAnswer && kind != Some(Kind::Etcd) {
        return;
    }
    let faults = |rng: &mut StdRng| match mistake {
        Mistake::DeadlineFromAnswer => vec![Fault::Late; count],
        _ => long(kind, count, rng),
    };
    let wrong = wrong(kind, 3, mistake, faults, |_| false);
    let found = if mistake == Mistake::EpochPerMember { wrong.falls } else { wrong.overlaps };
    assert!(found > 0, "{name} is not found");
}
