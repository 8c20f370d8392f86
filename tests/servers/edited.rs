//! Exclusive ownership of the whole library when a claim is edited by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use shardwise::ShardingService;

use crate::exclusive::{Place, share};
use crate::meeting::{Kind, Server, nats_does, runtime, until};

const SLOTS: u32 = 16;
/// The one that is changed.
const SLOT: u32 = 3;
const TTL: Duration = Duration::from_secs(3);
/// On PostgreSQL an edit that raises no number of the group is noticed within a minute.
const WITHIN: Duration = Duration::from_secs(90);

// On `local` the file refuses it: `backends/local/tests/short/claim_edits.rs`.
on_servers!(a_claim_edited_by_hand_touches_no_other_and_is_held_again_under_a_higher_epoch:
    consul Consul, etcd Etcd; soak: nats Nats, postgres Postgres);

fn epochs(fleet: &[ShardingService]) -> BTreeMap<u32, u64> {
    fleet.iter().flat_map(|service| service.ownership().fences().map(|fence| (fence.slot, fence.epoch.get())).collect::<Vec<_>>()).collect()
}

/// Overwrites the claim with nonsense, or deletes it; in PostgreSQL it gets a holder that there never was.
async fn edit(server: &Server, deletes: bool) {
    match server {
        Server::Consul(consul) => {
            let path = format!("/v1/kv/shardwise/claims/workers/slot/{SLOT}");
            let (method, body) = if deletes { ("DELETE", None) } else { ("PUT", Some(json!("nonsense"))) };
            consul.api(method, &path, body.as_ref()).await.unwrap();
        }
        Server::Etcd(etcd) => {
            let key = BASE64_STANDARD.encode(format!("/shardwise/v1/claims/workers/slots/{SLOT}"));
            let value = BASE64_STANDARD.encode("nonsense");
            let (path, body) =
                if deletes { ("/v3/kv/deleterange", json!({ "key": key })) } else { ("/v3/kv/put", json!({ "key": key, "value": value })) };
            etcd.api(path, &body).await.unwrap();
        }
        // As `nats kv put` does, and `nats kv del` but for a header that the backend does not read.
        Server::Nats(nats) => {
            let subject = format!("$KV.shardwise.workers.c.slot.{SLOT}");
            nats_does(nats, &subject, if deletes { "" } else { "nonsense" }).await;
        }
        Server::Postgres(postgres) => {
            let sql = if deletes { "DELETE FROM shardwise.claim" } else { "UPDATE shardwise.claim SET holder = -1" };
            postgres.execute(&format!("{sql} WHERE slot = {SLOT}")).await.unwrap();
        }
        Server::Valkey(_) => panic!("there are no claims"),
    }
}

fn a_claim_edited_by_hand_touches_no_other_and_is_held_again_under_a_higher_epoch(kind: Kind) {
    let runtime = runtime("edited");
    let _inside = runtime.enter();
    let place = runtime.block_on(Place::start(Some(kind)));
    let Place::Server(_, server) = &place else { panic!("a server was started") };
    let mut fleet: Vec<_> = ["a", "b"].map(|id| place.service(id, SLOTS, TTL)).into();
    for service in &fleet {
        runtime.block_on(service.register_self()).unwrap();
    }
    until("two share", WITHIN, || share(&fleet.iter().collect::<Vec<_>>()));
    let before = epochs(&fleet);
    runtime.block_on(edit(server, false));
    if matches!(kind, Kind::Etcd | Kind::Nats) {
        // It is granted to no member while its key is there.
        until("nobody has it", WITHIN, || {
            let held = epochs(&fleet);
            if held.contains_key(&SLOT) { Err(format!("{held:?}")) } else { Ok(()) }
        });
        runtime.block_on(edit(server, true));
    }
    let mut after = BTreeMap::new();
    let mut again = |what: &str, below: &BTreeMap<u32, u64>| {
        until(what, WITHIN, || {
            share(&fleet.iter().collect::<Vec<_>>())?;
            after = epochs(&fleet);
            if after.get(&SLOT) > below.get(&SLOT) { Ok(()) } else { Err(format!("{after:?} after {below:?}")) }
        });
        let mut others = after.clone();
        others.insert(SLOT, before[&SLOT]);
        assert_eq!(others, before, "the others are held on");
        after.clone()
    };
    let second = again("it is held again, under a higher epoch", &before);
    if kind == Kind::Postgres {
        runtime.block_on(edit(server, true));
        again("it is held again after its row was deleted", &second);
    }
    // The group goes on: who comes gets a share.
    let third = place.service("c", SLOTS, TTL);
    runtime.block_on(third.register_self()).unwrap();
    fleet.push(third);
    until("all three share", WITHIN, || share(&fleet.iter().collect::<Vec<_>>()));
}
