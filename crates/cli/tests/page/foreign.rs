//! A page of another origin in a real browser: no request that it causes reaches a handler of a sidecar on this machine.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};

use shardwise_testkit::{Browser, PageView};

use crate::common::{PATIENCE, Place, eventually};
use crate::{Worker, http};

/// A page at a separate port, and so of a separate origin; it is served until the test ends.
fn elsewhere() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let _ = lines.by_ref().find(String::is_empty);
            let page = "<!doctype html><title>elsewhere</title><body></body>";
            let length = page.len();
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{page}");
        }
    });
    at
}

/// The number of requests to routes under `/v1/` that were refused with 403, and the number of all others.
fn answered(worker: &Worker) -> (u64, u64) {
    let metrics = String::from_utf8(http::get(worker.at, "/metrics").body).unwrap();
    let (mut refused, mut other) = (0, 0);
    for line in metrics.lines().filter(|line| line.starts_with("shardwise_sidecar_requests_total{route=\"/v1/")) {
        let count: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        *(if line.contains("status=\"403\"") { &mut refused } else { &mut other }) += count;
    }
    (refused, other)
}

#[test]
fn a_page_of_another_origin_reaches_no_handler() {
    let place = Place::of_workers("5s", "slots = 256");
    let worker = Worker::start(&place, 1, &[]);
    let (browser, page) = (Browser::start().unwrap(), elsewhere());
    let routes = ["members", "ownership", "owner/x", "any/status", "instances/worker-1/status", "any/a-handler"];
    let mut asked = 0;
    // The same address with another port is another origin of the same site; a host name for it is another site.
    for host in ["127.0.0.1", "localhost"] {
        let tab = browser.open(&format!("http://{host}:{}/", page.port()), PageView::DESKTOP).unwrap();
        for route in routes {
            let url = format!("{}v1/policies/workers/{route}", worker.url());
            let ways = format!(
                "(async () => {{
                    const url = '{url}';
                    const element = (name, set) => new Promise((done) => {{
                        const made = document.createElement(name);
                        made.onload = made.onerror = () => done(true);
                        set(made);
                        document.body.append(made);
                    }});
                    await fetch(url, {{ mode: 'no-cors' }}).catch(() => 0);
                    await fetch(url).catch(() => 0);
                    await fetch(url, {{ method: 'POST', mode: 'no-cors', body: '{{}}' }}).catch(() => 0);
                    await element('img', (img) => {{ img.src = url; }});
                    await element('script', (script) => {{ script.src = url; }});
                    await element('iframe', (frame) => {{ frame.src = url; }});
                    return true;
                }})()"
            );
            assert_eq!(tab.eval(&ways).unwrap(), true);
            asked += 6;
        }
        // Navigation by the page.
        let away = format!("location.href = '{}v1/policies/workers/any/status'; true", worker.url());
        tab.eval(&away).unwrap();
        asked += 1;
        eventually("the visitor was sent there", PATIENCE, || (answered(&worker).0 >= asked).then_some(()));
    }
    let (refused, other) = answered(&worker);
    assert!(refused >= asked && other == 0, "{refused} of {asked} requests were refused, {other} were not");

    // The address bar belongs to the operator, but it must not reach a handler: links of other programs open there too.
    let tab = browser.open(&format!("{}v1/policies/workers/ownership", worker.url()), PageView::DESKTOP).unwrap();
    tab.until("the operator sees it", "document.body.innerText.includes('worker-1')").unwrap();
    tab.go(&format!("{}v1/policies/workers/any/status", worker.url())).unwrap();
    tab.until("it is refused", "document.body.innerText.includes('a browser may send this only from')").unwrap();
}
