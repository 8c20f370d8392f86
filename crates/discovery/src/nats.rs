//! Who a client of NATS is (feature `nats`), for the backend and for the outbox. In a credentials file are a user's JWT, and the key that
//! proves that the JWT is the user's.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_nats::{Auth, AuthError, ConnectOptions};
use nkeys::KeyPair;

/// How many characters of base32 a seed has.
const SEED_CHARS: usize = 58;

/// A user's JWT and key.
pub struct UserCredentials {
    jwt: String,
    key: KeyPair,
}

impl UserCredentials {
    /// Reads a `.creds` file, as `nsc` writes it.
    ///
    /// # Errors
    /// What is wrong, as the words that follow the file's name. It repeats nothing of the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        Self::parse(&std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?)
    }

    /// Reads the text of such a file.
    ///
    /// # Errors
    /// As [`UserCredentials::read`].
    pub fn parse(text: &str) -> Result<Self, String> {
        let jwt = block(text, "NATS USER JWT").ok_or("has no line behind BEGIN NATS USER JWT")?;
        let seed = block(text, "USER NKEY SEED").ok_or("has no line behind BEGIN USER NKEY SEED")?;
        let is_base32 = |byte: u8| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte);
        let key = if seed.len() == SEED_CHARS && seed.bytes().all(is_base32) { KeyPair::from_seed(seed).ok() } else { None };
        // The cause is dropped: it may repeat a part of the seed.
        let key = key.ok_or("has a damaged line behind BEGIN USER NKEY SEED")?;
        Ok(Self { jwt: jwt.to_owned(), key })
    }

    /// The JWT, which the server checks.
    pub fn jwt(&self) -> &str {
        &self.jwt
    }

    /// Signs what the server has sent.
    ///
    /// # Errors
    /// The file has a public key alone.
    pub fn sign(&self, nonce: &[u8]) -> Result<Vec<u8>, String> {
        self.key.sign(nonce).map_err(|_| "the key of the credentials file cannot sign".to_owned())
    }
}

/// Shows nothing of it.
impl fmt::Debug for UserCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserCredentials").finish_non_exhaustive()
    }
}

/// Options that send these credentials, for one connection: once it is `established`, the client does not reconnect.
pub fn connect_once(auth: Auth, credentials: Option<UserCredentials>, established: Arc<AtomicBool>) -> ConnectOptions {
    ConnectOptions::with_auth_callback(move |nonce| {
        let answer = if established.load(Ordering::Relaxed) {
            Err(AuthError::new("the connection has ended, and another one is made"))
        } else {
            signed(&auth, credentials.as_ref(), &nonce)
        };
        async move { answer }
    })
}

/// With the JWT, and the signature under what the server has sent.
fn signed(auth: &Auth, credentials: Option<&UserCredentials>, nonce: &[u8]) -> Result<Auth, AuthError> {
    let mut auth = auth.clone();
    if let Some(credentials) = credentials {
        auth.jwt = Some(credentials.jwt().to_owned());
        auth.signature = Some(credentials.sign(nonce).map_err(AuthError::new)?);
    }
    Ok(auth)
}

/// The line behind the one that begins this block.
fn block<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.starts_with("-----BEGIN") && line.contains(name))?;
    lines.find(|line| !line.is_empty()).filter(|line| !line.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(jwt: &str, seed: &str) -> String {
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n************* IMPORTANT *************\n\n\
             -----BEGIN USER NKEY SEED-----\r\n{seed}\r\n------END USER NKEY SEED------\n"
        )
    }

    #[test]
    fn the_jwt_is_read_and_the_key_signs() {
        let user = KeyPair::new_user();
        let credentials = UserCredentials::parse(&file("a.b.c", &user.seed().unwrap())).unwrap();
        assert_eq!(credentials.jwt(), "a.b.c");
        user.verify(b"nonce", &credentials.sign(b"nonce").unwrap()).unwrap();
    }

    #[test]
    fn what_is_wrong_is_said_without_what_the_file_has() {
        let seed = KeyPair::new_user().seed().unwrap();
        for (text, expected) in [
            (String::new(), "BEGIN NATS USER JWT"),
            (file("a.b.c", ""), "BEGIN USER NKEY SEED"),
            (file("a.b.c", &seed[1..]), "damaged"),
            (file("a.b.c", "hush"), "damaged"),
            (file("a.b.c", "AA"), "damaged"),
        ] {
            let why = UserCredentials::parse(&text).unwrap_err();
            assert!(why.contains(expected) && !why.contains("hush") && !why.contains(&seed[1..]), "{why}");
        }
        assert!(UserCredentials::read(Path::new("nowhere.creds")).unwrap_err().starts_with("cannot be read: "));
        let credentials = UserCredentials::parse(&file("a.b.c", &seed)).unwrap();
        assert_eq!(format!("{credentials:?}"), "UserCredentials { .. }");
    }
}
