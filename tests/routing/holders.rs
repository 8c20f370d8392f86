//! Requests to the holder of a name.

use shardwise::requests::{Held, NoRoute};
use shardwise::{ClaimName, ErrorKind, Run, Tenure};

use super::*;

fn boss(service: &ShardingService) -> Run {
    let work = |tenure: Tenure| async move {
        tenure.cancel().cancelled().await;
        Ok::<(), String>(())
    };
    service.singleton("boss").unwrap().run(work)
}

fn says_its_name(service: &ShardingService) {
    let id = service.instance_id().to_string();
    let handler = move |held: Held| {
        let id = id.clone();
        async move { format!("{id} holds {} under {}", held.name, held.epoch) }
    };
    service.on_held("who", handler).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_reaches_the_holder_and_the_next_one() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    (0..2).for_each(|member| says_its_name(fleet.service(member)));
    let mut runs: Vec<_> = (0..2).map(|member| Some(boss(fleet.service(member)))).collect();
    let name = ClaimName::new("singleton/boss").unwrap();
    let to = To::Holder(&name);
    let first = fleet.service(0).ask(&to, post("who"), LONG).await.unwrap();
    let epoch = fleet.service(0).route(&to).unwrap().epoch().unwrap();
    assert_eq!(text(&first), format!("{} holds singleton/boss under {epoch}", first.by));
    let holder = (0..2).find(|member| *fleet.service(*member).instance_id() == first.by).unwrap();
    runs[holder].take().unwrap().stop().await;
    // The former holder may answer until it has given the claim back.
    let holds = || fleet.service(0).route(&to).map(|route| route.member().clone());
    eventually("the other member holds the name", || holds().is_ok_and(|id| id != first.by)).await;
    for from in 0..2 {
        let next = fleet.service(from).ask(&to, post("who"), LONG).await.unwrap();
        assert_ne!(next.by, first.by);
    }
    let nobody = ClaimName::new("singleton/nobody").unwrap();
    assert_eq!(fleet.service(0).route(&To::Holder(&nobody)).unwrap_err(), NoRoute::Unserved);
    let late = fleet.service(0).ask(&To::Holder(&nobody), post("who"), Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(&late, AskError::TooLate { why, .. } if why.contains("no member serves it now")), "{late}");
}

#[tokio::test(start_paused = true)]
async fn under_eventual_ownership_no_name_is_held() {
    let fleet = fleet(1, OwnershipMode::Eventual).await;
    let refused = fleet.service(0).on_held("who", |_| async { "x" }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Settings);
    let name = ClaimName::new("singleton/boss").unwrap();
    assert_eq!(fleet.service(0).route(&To::Holder(&name)).unwrap_err(), NoRoute::Unserved);
}
