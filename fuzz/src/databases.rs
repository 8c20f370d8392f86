//! Addresses of databases, as the settings of an outbox have them.

use shardwise_outbox::postgres::PostgresConfig;

pub(crate) const DATABASES: &[&[u8]] = &[
    b"postgres://user@host:5432/database?sslmode=verify-full",
    b"postgresql://user:pass%20word@[::1]:5432/a%2Fb?options[search_path]=s&application_name=x",
    b"postgres:///x?host=/run/postgresql",
    b"postgres://h:99999/",
    b"mysql://h/",
    b"postgres://h/x?sslmode=never&x",
    b"postgres://lpostgresql://ers\t/t:hus\thr#r&[&xar@hos",
];

/// Error messages contain no password, and accepted values show none.
pub(crate) fn databases(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let with_password = text.replacen("://", "://root:zqzq@", 1);
    // A URL loses its tabs and undoes escapes, so the text may not have the password's rare letter in any spelling.
    let has_no_q = !["q", "Q", "%51", "%71"].iter().any(|q| text.contains(q));
    for (url, secret) in [(text, false), (&with_password, has_no_q)] {
        let shown = match PostgresConfig::from_url(url) {
            Ok(config) => format!("{config:?} {}", config.place()),
            Err(error) => error.to_string(),
        };
        assert!(!secret || !shown.contains("zqzq"), "{shown}");
    }
}
