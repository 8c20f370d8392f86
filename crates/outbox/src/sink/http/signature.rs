//! Signatures as in Standard Webhooks: HMAC-SHA256 over id, time and body.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use crate::{Error, ErrorKind, Result};

/// The prefix of a secret in Base64.
const PREFIX: &str = "whsec_";
const BYTES_MIN: usize = 16;

/// `Debug` shows the algorithm only.
#[derive(Debug, Clone)]
pub(super) struct Signer(hmac::Key);

impl Signer {
    /// A plain secret, or `whsec_` and its bytes in Base64.
    pub(super) fn new(secret: &str) -> Result<Self> {
        let wrong = |what: &str| Error::new(ErrorKind::Settings, format!("the secret that webhooks are signed with {what}"));
        let bytes = match secret.strip_prefix(PREFIX) {
            Some(base64) => STANDARD.decode(base64).map_err(|_| wrong("begins with whsec_ and is not in Base64"))?,
            None => secret.as_bytes().to_vec(),
        };
        if bytes.len() < BYTES_MIN {
            return Err(wrong(&format!("has {} bytes: take at least {BYTES_MIN} random ones", bytes.len())));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    pub(super) fn sign(&self, id: &str, unix_secs: u64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{unix_secs}.").as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification.
    #[test]
    fn signatures_are_those_of_standard_webhooks() {
        let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_poor_secret_is_refused() {
        for (secret, expected) in [("short", "has 5 bytes"), ("whsec_c2hvcnQ=", "has 5 bytes"), ("whsec_!", "is not in Base64")] {
            let error = Signer::new(secret).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
