//! `--worker-health`: a worker that does not work has no share, and if all checks fail at once, half of the group keeps its share.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::common::{PATIENCE, eventually};
use crate::{Served, http, place};

/// In place of a status: the worker takes the connection and does not answer.
const HANGS: u16 = 0;

/// A worker that answers each check with the status that the test sets.
struct Worker {
    at: SocketAddr,
    status: Arc<AtomicU16>,
    /// How often it was checked.
    checks: Arc<AtomicUsize>,
}

impl Worker {
    fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, status, checks) = (listener.local_addr().unwrap(), Arc::new(AtomicU16::new(status)), Arc::new(AtomicUsize::new(0)));
        let (says, counts) = (Arc::clone(&status), Arc::clone(&checks));
        std::thread::spawn(move || {
            let mut unanswered = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = [0; 1024];
                let _ = stream.read(&mut head);
                let status = says.load(Ordering::SeqCst);
                counts.fetch_add(1, Ordering::SeqCst);
                if status == HANGS {
                    unanswered.push(stream);
                    continue;
                }
                let more = if status == 302 { "Location: http://127.0.0.1:1/\r\n" } else { "" };
                let _ = write!(stream, "HTTP/1.1 {status} X\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n");
            }
        });
        Self { at, status, checks }
    }

    fn says(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    fn url(&self) -> String {
        format!("http://{}/healthz", self.at)
    }
}

#[test]
fn a_worker_that_fails_loses_its_share_and_gets_it_back() {
    let place = place();
    let workers = [Worker::start(503), Worker::start(200), Worker::start(200)];
    let all = workers.each_ref().map(|worker| Served::start(&place, &["--worker-health", &worker.url()]));
    let owned = |served: &Served| served.ownership()["slots_owned"].as_u64().unwrap();
    let [one, two, three] = &all;
    eventually("the two that work share everything", PATIENCE, || (owned(two) + owned(three) == 256 && owned(one) == 0).then_some(()));
    assert_eq!(one.ownership()["worker"], "absent", "it was never seen");
    let why = http::get(one.at, "/readyz").refuses(503, "no worker");
    assert!(why["detail"].as_str().unwrap().contains("status 503"), "{why}");

    workers[0].says(204);
    eventually("it is seen and has a share", PATIENCE, || (owned(one) > 0 && one.ownership()["worker"].is_null()).then_some(()));
    eventually("it is ready", PATIENCE, || (http::get(one.at, "/readyz").status == 200).then_some(()));

    workers[1].says(302);
    eventually("its share is taken over", PATIENCE, || (owned(two) == 0 && owned(one) + owned(three) == 256).then_some(()));
    let seen = three.get("members").well("members");
    let of_two = seen["members"].as_array().unwrap().iter().find(|member| member["instance_id"] == two.id.as_str()).unwrap();
    assert_eq!((&of_two["worker"], &of_two["state"]), (&json!("failing"), &json!("draining")));
    assert_eq!((&two.ownership()["spared"], &two.ownership()["drained"]), (&json!(false), &json!(false)));

    // Something that all share fails.
    workers[0].says(500);
    workers[2].says(500);
    eventually("two fail and keep everything", PATIENCE, || {
        let spared = [one, two, three].map(|served| served.ownership()["spared"] == true);
        (spared == [true, false, true] && owned(one) + owned(three) == 256).then_some(())
    });
    let why = http::get(three.at, "/readyz").refuses(503, "its worker fails");
    assert!(why["detail"].as_str().unwrap().contains("fewer than half"), "{why}");

    for worker in &workers {
        worker.says(200);
    }
    eventually("all share again", PATIENCE, || {
        let shares = [one, two, three].map(owned);
        (shares.iter().sum::<u64>() == 256 && shares.iter().all(|share| *share > 0)).then_some(())
    });
}

/// Regression: `/readyz` and the hint said only that all members were drained or their workers did not work.
#[test]
fn where_the_only_worker_fails_the_reason_is_shown() {
    let place = place();
    let worker = Worker::start(503);
    let one = Served::start(&place, &["--worker-health", &worker.url()]);
    eventually("the check has failed", PATIENCE, || {
        one.ownership()["worker_failure"].as_str().is_some_and(|why| why.contains("status 503")).then_some(())
    });
    let ready = http::get(one.at, "/readyz").refuses(503, "no worker");
    for reason in [&one.ownership()["hint"], &ready["detail"]] {
        let reason = reason.as_str().unwrap();
        assert!(reason.contains("the worker has not been seen yet: ") && reason.contains("status 503"), "{reason}");
    }
}

#[test]
fn each_reason_why_a_worker_fails_is_logged_once() {
    let place = place();
    let worker = Worker::start(302);
    let mut served = Served::start(&place, &["--worker-health", &worker.url()]);
    let reasons =
        [(302, "status 302: redirects are not followed; give the final address"), (HANGS, "no answer within 1s"), (503, "status 503")];
    for (status, reason) in reasons {
        worker.says(status);
        let is_shown = || served.ownership()["worker_failure"].as_str().is_some_and(|why| why.contains(reason));
        eventually(reason, PATIENCE, || is_shown().then_some(()));
        let checks = || worker.checks.load(Ordering::SeqCst);
        let before = checks();
        eventually("it is checked twice more", PATIENCE, || (checks() > before + 1).then_some(()));
    }
    served.process.signal(Signal::SIGTERM);
    let log = served.process.ends("after SIGTERM").err;
    for (_, reason) in reasons {
        assert_eq!(log.matches(reason).count(), 1, "{reason}: {log}");
    }
}

#[test]
fn a_health_address_is_on_this_machine() {
    for bad in ["http://10.0.0.7:80/x", "https://127.0.0.1:1", "tcp://127.0.0.1", "127.0.0.1:1"] {
        let output = place().run(&["serve", "--policy", "workers", "--listen", "127.0.0.1:0", "--worker-health", bad]);
        output.fails(2, &["--worker-health", bad]);
    }
}
