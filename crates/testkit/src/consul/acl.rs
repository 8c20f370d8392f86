//! Tokens with exactly the rights that a test is about.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::{Consul, MANAGEMENT};
use crate::error::{Error, Result};

/// A token with a separate policy.
#[derive(Clone, Debug)]
pub struct ConsulToken {
    /// What a client sends.
    pub secret: String,
    accessor: String,
}

impl Consul {
    /// The token that may do everything. Only where access control is on.
    pub fn management_token(&self) -> &'static str {
        MANAGEMENT
    }

    /// A token with the rights of these rules, in Consul's language, such as `service_prefix "" { policy = "read" }`.
    pub async fn token(&self, rules: &str) -> Result<ConsulToken> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let name = format!("test-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.api("PUT", "/v1/acl/policy", Some(&json!({ "Name": name, "Rules": rules }))).await?;
        let body = json!({ "Description": name, "Policies": [{ "Name": name }] });
        let token = self.api("PUT", "/v1/acl/token", Some(&body)).await?;
        Ok(ConsulToken { secret: text(&token, "SecretID")?, accessor: text(&token, "AccessorID")? })
    }

    /// Deletes the token.
    pub async fn revoke_token(&self, token: &ConsulToken) -> Result<()> {
        self.api("DELETE", &format!("/v1/acl/token/{}", token.accessor), None).await.map(drop)
    }
}

fn text(value: &Value, field: &str) -> Result<String> {
    value[field].as_str().map(str::to_owned).ok_or_else(|| Error::new(format!("Consul's answer has no {field}: {value}")))
}
