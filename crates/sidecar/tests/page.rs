//! The page of a large group: how soon it can be used, and that nothing is missing.

#![expect(clippy::unwrap_used, reason = "tests report by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use shardwise::core::Member;
use shardwise::discovery::{Clock, Discovery, MemoryBackend, Registration};
use shardwise::{InstanceId, Settings, ShardingFactory, Weight};
use shardwise_sidecar::{Error, Options, Sidecar};
use shardwise_testkit::{Browser, Look};
use tokio::sync::oneshot;

const MEMBERS: usize = 200;
/// Longer than the test: nobody renews what is registered here.
const TTL: Duration = Duration::from_mins(5);
const PATIENCE: Duration = Duration::from_secs(40);

const SETTINGS: &str = "[default.resilience.sharding]\npolicies.workers.group_name = \"workers\"\ndiscovery.backend = \"memory\"\ndiscovery.ttl = \"5m\"\n\
                        instance.id = \"worker-000\"";

/// All members but the one whose sidecar it is.
async fn others(backend: &MemoryBackend, factory: &ShardingFactory) {
    let policy = factory.create("workers").unwrap().policy().clone();
    for number in 1..MEMBERS {
        let mut member = Member::named(InstanceId::new(format!("worker-{number:03}")).unwrap());
        member.incarnation = shardwise::discovery::random_incarnation();
        member.fingerprints = policy.fingerprints();
        member.weight = Weight::new(1 + number as u64 % 3).unwrap();
        member.zone = Some(format!("zone-{}", number % 3));
        backend.register(&Registration { group: policy.group.clone(), member, ttl: TTL, claims: false }).await.unwrap();
    }
}

#[test]
fn two_hundred_members_are_shown_soon() {
    let backend = MemoryBackend::new(Clock::system());
    let shared: Arc<dyn Discovery> = Arc::new(backend.clone());
    let factory =
        ShardingFactory::builder().settings(Settings::from_toml_str(SETTINGS).unwrap()).backend("memory", shared).build().unwrap();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(others(&backend, &factory));
    let sidecar = Sidecar::new(factory, &["workers".into()], Options::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let at = sidecar.address();
    let ((ready, is_ready), (stop, stopped)) = (mpsc::channel(), oneshot::channel::<()>());
    let run = move || sidecar.run(|| ready.send(()).map_err(|_| Error::Options("nobody waits".into())), async { drop(stopped.await) });
    let end = std::thread::spawn(run);
    is_ready.recv_timeout(PATIENCE).unwrap();

    let browser = Browser::start().unwrap();
    let tab = browser.open(&format!("http://{at}/"), Look::DESKTOP).unwrap();
    tab.until("all members are on the ring", &format!("document.querySelectorAll('#ring .arc').length === {MEMBERS}")).unwrap();
    let usable = tab.eval("performance.getEntriesByName('ready')[0].startTime").unwrap();
    println!("{MEMBERS} members and 16,384 slots: usable {usable} ms after the page was opened");
    let slots = tab.eval("[...document.querySelectorAll('#ring .arc')].reduce((sum, arc) => sum + Number(arc.dataset.slots), 0)").unwrap();
    assert_eq!(slots, 16_384);
    assert_eq!(tab.eval("document.querySelectorAll('#members tbody tr').length").unwrap(), MEMBERS);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/screenshots");
    tab.screenshot(&folder.join("large-desktop-light.png")).unwrap();
    tab.eval("document.getElementById('filter').value = 'worker-19'; document.getElementById('filter').dispatchEvent(new Event('input'))")
        .unwrap();
    assert_eq!(tab.eval("document.querySelectorAll('#members tbody tr').length").unwrap(), 10);
    assert_eq!(tab.complaints(), Vec::<String>::new());

    drop(stop);
    end.join().unwrap().unwrap();
}
