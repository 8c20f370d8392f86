//! How PostgreSQL is reached (feature `postgres`), for the backend and for the outbox: its address, and why a connection fails. TLS is
//! rustls with ring.

use std::fs::{self, File};
use std::io;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use rustls::pki_types::pem;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

/// The parameters that name a file, or hold what would be in it.
const FILES: [&str; 3] = ["sslrootcert", "sslcert", "sslkey"];

/// The options of an address such as `postgres://user@host:5432/database?sslmode=verify-full`. Missing parts come from the variables
/// `PGHOST`, `PGUSER`, `PGPASSWORD` and so on, and from `~/.pgpass`. `parameters` are those that are allowed behind the `?`. Statements are
/// not logged.
///
/// # Errors
/// What is wrong with the address, as the words that follow its name: also a file that cannot be read. It repeats nothing of the address
/// but a parameter's name.
pub fn connect_options(url: &str, parameters: &[&str]) -> Result<PgConnectOptions, String> {
    // The parser's message is dropped: it may repeat a password.
    let known = ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme));
    if !known {
        return Err("must begin with postgres://, as in postgres://user@host:5432/database".into());
    }
    let query = url.split_once('?').map_or("", |(_, query)| query);
    for name in query.split('&').filter_map(|pair| pair.split('=').next()).filter(|name| !name.is_empty()) {
        let name = name.replace("%5B", "[").replace("%5D", "]");
        if !parameters.contains(&name.as_str()) {
            return Err(format!("has the parameter {name}, which is not known; known are {}", parameters.join(", ")));
        }
    }
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| "cannot be read: write postgres://user@host:5432/database, special characters as %XX".to_owned())?;
    let query = query.split('#').next().unwrap_or_default();
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')).filter(|(name, _)| FILES.contains(name)) {
        try_file(value).map_err(|error| format!("names a file in {name} that cannot be read: {error}"))?;
    }
    Ok(options.disable_statement_logging())
}

/// Whether a file can be read that a parameter names. The connection reads it each time; its failure would look like a server's that is
/// away.
fn try_file(value: &str) -> io::Result<()> {
    let spaced = value.replace('+', " ");
    let path = percent_decode_str(&spaced).decode_utf8_lossy();
    let trimmed = path.trim();
    // sqlx takes this for the certificate or the key itself.
    if trimmed.starts_with("-----BEGIN") && trimmed.ends_with("-----") {
        return Ok(());
    }
    // A pipe is not opened: that could wait for ever.
    if !fs::metadata(&*path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    File::open(&*path).map(drop)
}

/// Host, port and database, for messages.
pub fn place(options: &PgConnectOptions) -> String {
    let host = options.get_socket().map_or_else(|| options.get_host().to_owned(), |socket| socket.display().to_string());
    format!("{host}:{}/{}", options.get_port(), options.get_database().unwrap_or_else(|| options.get_username()))
}

/// Why a connection fails, where the server has not said so itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectFault {
    /// Nothing listens there, or the connection broke; why, in the words of the system.
    Unreachable(String),
    /// TLS fails, and does so again; why.
    Tls(String),
    /// A file that the address names cannot be used. Nothing of it is repeated: it may be a private key.
    Files,
}

/// Why the connection fails, if the error says that it does.
pub fn connect_fault(error: &sqlx::Error) -> Option<ConnectFault> {
    match error {
        // A rejection by rustls arrives as a connection error.
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => Some(ConnectFault::Tls(error.to_string())),
        sqlx::Error::Io(error) => Some(ConnectFault::Unreachable(error.to_string())),
        // A PEM parser's message quotes the line that it failed at.
        sqlx::Error::Tls(error) if error.is::<pem::Error>() => Some(ConnectFault::Files),
        sqlx::Error::Tls(error) => Some(ConnectFault::Tls(error.to_string())),
        // The address was read before, so this concerns the files that it names; the message may quote them.
        sqlx::Error::Configuration(_) => Some(ConnectFault::Files),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMETERS: [&str; 2] = ["sslmode", "options[search_path]"];

    #[test]
    fn an_address_has_a_place() {
        for (url, expected) in [
            ("postgres://me:secret@db.example:6432/app?sslmode=verify-full", "db.example:6432/app"),
            ("postgresql://me@host:1/a?options%5Bsearch_path%5D=x", "host:1/a"),
        ] {
            assert_eq!(connect_options(url, &PARAMETERS).map(|options| place(&options)).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_cannot_be_read_is_reported_without_repeating_it() {
        for (url, expected) in [
            ("mysql://me:secret@host/app", "must begin with postgres://"),
            ("postgres://me:secret@host:port/app", "cannot be read"),
            ("postgres://me:secret@host/app?sslmode=secret", "cannot be read"),
            ("postgres://me:secret@host/app?sslmod=disable", "has the parameter sslmod, which is not known; known are sslmode,"),
        ] {
            let said = connect_options(url, &PARAMETERS).unwrap_err();
            assert!(said.contains(expected) && !said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_by_its_parameter_alone() {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let escaped = here.replace('/', "%2F");
        let (folder, key) = (env!("CARGO_MANIFEST_DIR"), "-----BEGIN+PRIVATE+KEY-----%0Ahush%0A-----END+PRIVATE+KEY-----");
        let checked = |parameter: &str| connect_options(&format!("postgres://me@h/a?{parameter}"), &FILES).map(drop);
        for good in [format!("sslrootcert={here}"), format!("sslrootcert={escaped}&sslcert={here}#x"), format!("sslkey={key}")] {
            assert_eq!(checked(&good), Ok(()), "{good}");
        }
        for (wrong, name) in [
            ("sslrootcert=/nowhere/hush.pem".to_owned(), "sslrootcert"),
            (format!("sslcert={folder}"), "sslcert"),
            (format!("sslcert={here}&sslkey={key}hush"), "sslkey"),
        ] {
            let said = checked(&wrong).unwrap_err();
            assert!(said.starts_with(&format!("names a file in {name} that cannot be read: ")) && !said.contains("hush"), "{said}");
        }
    }

    #[test]
    fn faults_of_files_quote_nothing() {
        let error = sqlx::Error::Configuration("-----BEGIN hush".into());
        assert_eq!(connect_fault(&error), Some(ConnectFault::Files));
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "refused");
        assert_eq!(connect_fault(&sqlx::Error::Io(refused)), Some(ConnectFault::Unreachable("refused".into())));
        assert_eq!(connect_fault(&sqlx::Error::PoolTimedOut), None);
    }
}
