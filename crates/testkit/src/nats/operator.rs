//! An operator of NATS: a server that knows its users by JWTs, and their credentials files.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

use super::NatsOptions;
use crate::error::{Error, Result};

/// The keys of an operator and of one account with `JetStream`.
pub struct NatsOperator {
    operator: KeyPair,
    system: KeyPair,
    account: KeyPair,
}

/// A user of the account, with the JWT that makes it one.
pub struct NatsUser {
    jwt: String,
    key: KeyPair,
}

impl NatsOperator {
    /// With new keys.
    pub fn new() -> Self {
        Self { operator: KeyPair::new_operator(), system: KeyPair::new_account(), account: KeyPair::new_account() }
    }

    /// A server of this operator. Of the tests' servers only the newest was tried.
    pub fn server(&self, options: NatsOptions) -> Result<NatsOptions> {
        let mut preload = String::new();
        for (key, storage) in [(&self.system, 0), (&self.account, -1)] {
            let account = jwt(&self.operator, key, &account_claims(storage), None)?;
            // Writing to a text does not fail.
            let _ = writeln!(preload, "{}: {account}", key.public_key());
        }
        let operator = jwt(&self.operator, &self.operator, &json!({ "type": "operator", "version": 2 }), None)?;
        Ok(options
            .with_setting(format!("operator: {operator}"))
            .with_setting(format!("system_account: {}", self.system.public_key()))
            .with_setting("resolver: MEMORY")
            .with_setting(format!("resolver_preload: {{\n{preload}}}")))
    }

    /// A new user that may do everything, for that long or for ever. A server counts in whole seconds.
    pub fn user(&self, lasting: Option<Duration>) -> Result<NatsUser> {
        let key = KeyPair::new_user();
        let rights = json!({ "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2 });
        Ok(NatsUser { jwt: jwt(&self.account, &key, &rights, lasting)?, key })
    }
}

impl Default for NatsOperator {
    fn default() -> Self {
        Self::new()
    }
}

impl NatsUser {
    /// Writes the credentials file.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.write_with_key_of(self, path)
    }

    /// Writes a credentials file whose key is another user's, which no server accepts.
    pub fn write_with_key_of(&self, other: &Self, path: &Path) -> Result<()> {
        let seed = other.key.seed().map_err(|error| failed(&error))?;
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n",
            self.jwt
        );
        std::fs::write(path, text).map_err(Error::io(path.display()))
    }
}

fn failed(error: &nkeys::error::Error) -> Error {
    Error::new(format!("a key of NATS: {error}"))
}

/// A JWT of `issuer` about the key `subject`.
fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: &Value, lasting: Option<Duration>) -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (issuer_key, subject_key) = (issuer.public_key(), subject.public_key());
    let mut claims = json!({ "jti": subject_key, "iat": now, "iss": issuer_key, "name": "tests", "sub": subject_key, "nats": nats });
    if let Some(lasting) = lasting {
        claims["exp"] = (now + lasting.as_secs()).into();
    }
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&json!({ "typ": "JWT", "alg": "ed25519-nkey" })), part(&claims));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes()).map_err(|error| failed(&error))?);
    Ok(format!("{signed}.{signature}"))
}

fn account_claims(storage: i64) -> Value {
    json!({
        "limits": {
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
            "mem_storage": storage, "disk_storage": storage, "streams": storage, "consumer": storage,
        },
        "type": "account", "version": 2,
    })
}
