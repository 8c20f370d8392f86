//! Users with exactly the rights that a test is about.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::Etcd;
use crate::error::{Error, Result};
use crate::http;

/// The user with all rights, where authentication is enabled.
const ROOT: (&str, &str) = ("root", "password of root");

/// A user's access to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAccess {
    /// Get and watch.
    Read,
    /// Put and delete.
    Write,
    /// Both.
    ReadWrite,
}

impl KeyAccess {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::ReadWrite => "READWRITE",
        }
    }
}

impl Etcd {
    /// Name and password of the user who may do everything. Only where there are users.
    pub fn root(&self) -> (&'static str, &'static str) {
        ROOT
    }

    /// A user who may do this with the keys that begin with these texts, and nothing else.
    pub async fn add_user(&self, name: &str, password: &str, rights: &[(KeyAccess, &str)]) -> Result<()> {
        self.api("/v3/auth/user/add", &json!({ "name": name, "password": password })).await?;
        self.add_role(name, rights).await
    }

    /// Takes all rights from a user of [`Etcd::add_user`] and gives these instead.
    pub async fn change_user(&self, name: &str, rights: &[(KeyAccess, &str)]) -> Result<()> {
        self.api("/v3/auth/role/delete", &json!({ "role": name })).await?;
        self.add_role(name, rights).await
    }

    async fn add_role(&self, name: &str, rights: &[(KeyAccess, &str)]) -> Result<()> {
        self.api("/v3/auth/role/add", &json!({ "name": name })).await?;
        for (access, prefix) in rights {
            let (key, end) = range(prefix);
            let (key, end) = (BASE64_STANDARD.encode(key), BASE64_STANDARD.encode(end));
            let permission = json!({ "permType": access.name(), "key": key, "range_end": end });
            self.api("/v3/auth/role/grant", &json!({ "name": name, "perm": permission })).await?;
        }
        self.api("/v3/auth/user/grant", &json!({ "user": name, "role": name })).await.map(drop)
    }

    /// Creates the root user and enables authentication: from then on every call needs a name and a password.
    pub(super) async fn enable_auth(&self) -> Result<()> {
        let (name, password) = ROOT;
        let steps = [
            ("/v3/auth/user/add", json!({ "name": name, "password": password })),
            ("/v3/auth/role/add", json!({ "name": name })),
            ("/v3/auth/user/grant", json!({ "user": name, "role": name })),
            ("/v3/auth/enable", json!({})),
        ];
        for (path, body) in steps {
            self.send(path, &body, None).await?;
        }
        Ok(())
    }

    /// A call of the API in JSON with all rights, such as `("/v3/kv/range", &json!({ "key": base64 }))`. An answer whose status is not 200
    /// is an error.
    pub async fn api(&self, path: &str, body: &Value) -> Result<Value> {
        if self.options.auth { self.api_as(ROOT, path, body).await } else { self.send(path, body, None).await }
    }

    /// [`Etcd::api`], as that user with that password.
    pub async fn api_as(&self, user: (&str, &str), path: &str, body: &Value) -> Result<Value> {
        let (name, password) = user;
        let answer = self.send("/v3/auth/authenticate", &json!({ "name": name, "password": password }), None).await?;
        let token = answer["token"].as_str().ok_or_else(|| Error::new(format!("etcd gave no token: {answer}")))?;
        self.send(path, body, Some(("Authorization", token))).await
    }

    async fn send(&self, path: &str, body: &Value, header: Option<(&str, &str)>) -> Result<Value> {
        http::request(self.ports.plain.address(), "POST", path, header, Some(body)).await?.success("POST", path)
    }
}

/// The keys that begin with the prefix: the first, and the first behind them.
fn range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        // No byte of UTF-8 is 255, so adding one always works.
        Some(last) => *last += 1,
        // All keys, as etcd writes it.
        None => return (vec![0], vec![0]),
    }
    (prefix.as_bytes().to_vec(), end)
}
