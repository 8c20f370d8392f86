//! A broker that refuses every user, and notes what it has received. librdkafka's mock cluster knows no users.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::{digest, hmac, pbkdf2};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const API_VERSIONS: i16 = 18;
const SASL_HANDSHAKE: i16 = 17;
const SASL_AUTHENTICATE: i16 = 36;
const UNSUPPORTED_VERSION: i16 = 35;
const SASL_AUTHENTICATION_FAILED: i16 = 58;
const SALT: &[u8] = b"salt of a test";
const ITERATIONS: u32 = 4_096;
/// The passwords that it recognises.
pub(crate) const PASSWORDS: [&str; 2] = ["hush-old", "hush-new"];

pub(crate) struct Unwelcoming {
    pub(crate) address: SocketAddr,
    /// The passwords with which it was tried.
    pub(crate) tried: Arc<Mutex<Vec<String>>>,
}

impl Unwelcoming {
    pub(crate) async fn start() -> Self {
        Self::started(false).await
    }

    /// Ends each connection when the client wants to log in, as a broker does that goes down.
    pub(crate) async fn that_hangs_up() -> Self {
        Self::started(true).await
    }

    async fn started(hangs_up: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let broker = Self { address: listener.local_addr().unwrap(), tried: Arc::default() };
        let tried = Arc::clone(&broker.tried);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(answer(client, Arc::clone(&tried), hangs_up));
            }
        });
        broker
    }
}

async fn answer(mut client: TcpStream, tried: Arc<Mutex<Vec<String>>>, hangs_up: bool) -> io::Result<()> {
    let mut challenge: Option<Challenge> = None;
    loop {
        let mut request = vec![0; usize::try_from(client.read_i32().await?).unwrap()];
        client.read_exact(&mut request).await?;
        let i16_at = |at: usize| i16::from_be_bytes(request[at..at + 2].try_into().unwrap());
        let (api, version) = (i16_at(0), i16_at(2));
        // The number of the request.
        let mut body = request[4..8].to_vec();
        match api {
            API_VERSIONS => {
                let code = if version == 0 { 0 } else { UNSUPPORTED_VERSION };
                body.extend(code.to_be_bytes());
                let known = [(0, 9), (3, 9), (SASL_HANDSHAKE, 1), (API_VERSIONS, 0), (SASL_AUTHENTICATE, 0)];
                body.extend(i32::try_from(known.len()).unwrap().to_be_bytes());
                for (api, newest) in known {
                    body.extend([api, 0, newest].into_iter().flat_map(i16::to_be_bytes));
                }
            }
            SASL_HANDSHAKE if hangs_up => return Ok(()),
            SASL_HANDSHAKE => {
                body.extend(0_i16.to_be_bytes());
                body.extend(1_i32.to_be_bytes());
                put_text(&mut body, "SCRAM-SHA-256");
            }
            SASL_AUTHENTICATE => {
                // Behind the name of the client, and the length.
                let message = 10 + usize::try_from(i16_at(8)).unwrap() + 4;
                let message = String::from_utf8(request[message..].to_vec()).unwrap();
                if let Some(challenge) = challenge.take() {
                    let known = PASSWORDS.into_iter().find(|password| challenge.is_proven(password, &message));
                    tried.lock().unwrap().push(known.unwrap_or("another one").to_owned());
                    body.extend(SASL_AUTHENTICATION_FAILED.to_be_bytes());
                    put_text(&mut body, "Authentication failed: Invalid username or password");
                    body.extend(0_i32.to_be_bytes());
                } else {
                    let begun = challenge.insert(Challenge::new(&message));
                    body.extend(0_i16.to_be_bytes());
                    // No message.
                    body.extend((-1_i16).to_be_bytes());
                    body.extend(i32::try_from(begun.server_first.len()).unwrap().to_be_bytes());
                    body.extend(begun.server_first.as_bytes());
                }
            }
            other => panic!("a client without rights asked {other}"),
        }
        client.write_i32(i32::try_from(body.len()).unwrap()).await?;
        client.write_all(&body).await?;
    }
}

/// The beginning of SCRAM-SHA-256 (RFC 5802).
struct Challenge {
    client_first: String,
    server_first: String,
}

impl Challenge {
    fn new(message: &str) -> Self {
        let client_first = message.strip_prefix("n,,").unwrap().to_owned();
        let (_, nonce) = client_first.split_once(",r=").unwrap();
        let server_first = format!("r={nonce}server,s={},i={ITERATIONS}", BASE64_STANDARD.encode(SALT));
        Self { client_first, server_first }
    }

    /// Whether the client's last message proves this password.
    fn is_proven(&self, password: &str, last: &str) -> bool {
        let (without_proof, proof) = last.rsplit_once(",p=").unwrap();
        let mut salted = [0; digest::SHA256_OUTPUT_LEN];
        let iterations = NonZeroU32::new(ITERATIONS).unwrap();
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, SALT, password.as_bytes(), &mut salted);
        let signed = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text);
        let client_key = signed(&salted, b"Client Key");
        let stored_key = digest::digest(&digest::SHA256, client_key.as_ref());
        let exchanged = format!("{},{},{without_proof}", self.client_first, self.server_first);
        let signature = signed(stored_key.as_ref(), exchanged.as_bytes());
        let expected: Vec<_> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(key, signature)| key ^ signature).collect();
        BASE64_STANDARD.decode(proof).unwrap() == expected
    }
}

fn put_text(body: &mut Vec<u8>, text: &str) {
    body.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
    body.extend(text.as_bytes());
}
