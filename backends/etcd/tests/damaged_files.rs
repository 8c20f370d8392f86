//! Files of TLS that are damaged: an error names the setting and the file, and repeats nothing of what is in it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use shardwise_backend_etcd::{EtcdBackend, EtcdConfig};
use shardwise_discovery::{Clock, ErrorKind};
use shardwise_testkit::Authority;

/// What opening says of this pair, in one line, and with the decimals in it read as characters: rustls writes bytes so.
fn said_of(cert: &Path, key: &Path) -> (String, String) {
    let config = EtcdConfig {
        endpoints: vec!["https://localhost:2379".into()],
        cert_file: Some(cert.into()),
        key_file: Some(key.into()),
        ..EtcdConfig::default()
    };
    let error = EtcdBackend::open(&config, Clock::system()).unwrap_err();
    let said = error.to_string();
    assert!(*error.kind() == ErrorKind::Misconfigured && !said.contains('\n'), "{said}");
    let numbers = said.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u8>().ok());
    let decoded = numbers.map(char::from).collect();
    (said, decoded)
}

#[test]
fn a_private_key_that_lost_its_line_breaks_is_not_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let identity = Authority::new().unwrap().client("worker").unwrap();
    let whole = std::fs::read_to_string(identity.key()).unwrap();
    let secret = &whole.lines().nth(1).unwrap()[..40];
    let damaged = directory.path().join("damaged.pem");
    for text in [whole.replace('\n', " "), whole.replace('\n', ""), whole.replacen("END", "FIN", 1), format!("-----BEGIN {whole}")] {
        std::fs::write(&damaged, &text).unwrap();
        // In the key's file, and given by mistake as the certificate's file.
        for (cert, key, setting) in [(identity.certificate(), damaged.clone(), "key_file"), (damaged.clone(), identity.key(), "cert_file")]
        {
            let (said, decoded) = said_of(&cert, &key);
            assert!(said.contains(&format!("discovery.etcd.{setting} is {damaged:?}")), "{said}");
            assert!(!said.contains(secret) && !decoded.contains(secret), "the private key stands in the error: {said}");
        }
    }
}
