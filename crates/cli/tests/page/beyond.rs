//! The page from another machine: over TLS, at an address beyond loopback.

use std::net::{IpAddr, UdpSocket};

use shardwise_testkit::{Authority, Browser, PageView};

use crate::acting::{TOKEN, drain, sign_in};
use crate::common::Place;
use crate::{Worker, pictures};

/// The address by which other machines reach this one. Nothing is sent to find it.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let address = socket.connect("203.0.113.1:9").and_then(|()| socket.local_addr()).map(|address| address.ip());
    address.unwrap_or_else(|error| panic!("this machine has no address beyond loopback, which this test is about: {error}"))
}

#[test]
fn beyond_this_machine_the_page_comes_over_tls_and_acts_with_the_token() {
    let (place, own) = (Place::of_workers("5s", "slots = 256"), own_address());
    assert!(!own.is_loopback(), "{own}");
    place.write("token", format!("{TOKEN}\n"));
    let authority = Authority::new().unwrap();
    let server = authority.server_named(&own.to_string()).unwrap();
    let [chain, key] = [server.certificate(), server.key()].map(|path| path.display().to_string());
    let near = Worker::start(&place, 1, &[]);
    let tls = ["--token-file", "token", "--tls-cert", &chain, "--tls-key", &key];
    let far = Worker::start_at(&place, 2, &format!("{own}:0"), &tls);
    near.sees(2);

    let browser = Browser::start().unwrap();
    let refused = browser.open(&far.url(), PageView::DESKTOP).unwrap_err().to_string();
    assert!(far.url().starts_with("https://") && refused.contains("ERR_CERT"), "nobody has told the browser of this authority: {refused}");
    // A new tab, because the browser's warning is not part of the page.
    let tab = browser.tab(PageView::DESKTOP).unwrap();
    tab.believe_certificates().unwrap();
    tab.go(&far.url()).unwrap();
    sign_in(&tab, TOKEN);
    tab.until("the workers are listed", "document.querySelectorAll('#members tbody tr').length === 2").unwrap();
    tab.until("both are on the ring", "document.querySelectorAll('#ring .arc').length === 2").unwrap();
    tab.until("the other one was asked", "document.getElementById('agree-said').innerText.startsWith('Yes: 2 workers')").unwrap();
    pictures(&tab, "beyond");
    drain(&tab, &near);
    assert_eq!(tab.eval("window.isSecureContext && location.protocol === 'https:'").unwrap(), true);
    let strangers: Vec<_> = tab.fetched().into_iter().filter(|url| !url.starts_with(&far.url())).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}
