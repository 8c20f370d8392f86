//! Names that Consul itself uses.

use std::time::Duration;

use crate::common::{group, open, registration, until};
use shardwise_discovery::Discovery;
use shardwise_testkit::Consul;

const TTL: Duration = Duration::from_secs(30);

/// Consul servers register a service and an instance of that name.
#[tokio::test]
async fn no_service_takes_the_place_of_consuls_own_service() {
    let consul = Consul::single().await.unwrap();
    let backend = open(&consul.address());
    let own = async || consul.api("GET", "/v1/health/service/consul?consistent", None).await.unwrap().as_array().unwrap().len();
    until("Consul shows itself", TTL, async || (own().await == 1).then_some(())).await;
    for (group_name, id) in [("g", "consul"), ("g", "Consul"), ("consul", "a"), ("CONSUL", "consul")] {
        let registration = registration(group_name, id, 1, TTL);
        backend.register(&registration).await.unwrap();
        let view = backend.members(&group(group_name)).await.unwrap().view;
        assert_eq!(view.members().iter().map(|member| member.instance_id.as_str()).collect::<Vec<_>>(), [id]);
        assert!(view.foreign().is_empty(), "Consul itself is nobody's neighbour");
        assert_eq!(own().await, 1, "{group_name} {id}");
        backend.deregister(&registration.record_id()).await.unwrap();
        assert_eq!(own().await, 1, "{group_name} {id} has left");
    }
}
