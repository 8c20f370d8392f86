//! A broker that refuses every user, and notes what it was told. librdkafka's mock cluster knows no users.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const API_VERSIONS: i16 = 18;
const SASL_HANDSHAKE: i16 = 17;
const SASL_AUTHENTICATE: i16 = 36;
const UNSUPPORTED_VERSION: i16 = 35;
const SASL_AUTHENTICATION_FAILED: i16 = 58;

pub(crate) struct Unwelcoming {
    pub(crate) address: SocketAddr,
    /// The passwords with which it was tried.
    pub(crate) tried: Arc<Mutex<Vec<String>>>,
}

impl Unwelcoming {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let broker = Self { address: listener.local_addr().unwrap(), tried: Arc::default() };
        let tried = Arc::clone(&broker.tried);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(answer(client, Arc::clone(&tried)));
            }
        });
        broker
    }
}

async fn answer(mut client: TcpStream, tried: Arc<Mutex<Vec<String>>>) -> io::Result<()> {
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
            SASL_HANDSHAKE => {
                body.extend(0_i16.to_be_bytes());
                body.extend(1_i32.to_be_bytes());
                put_text(&mut body, "PLAIN");
            }
            SASL_AUTHENTICATE => {
                let password = request.rsplit(|byte| *byte == 0).next().unwrap();
                tried.lock().unwrap().push(String::from_utf8_lossy(password).into_owned());
                body.extend(SASL_AUTHENTICATION_FAILED.to_be_bytes());
                put_text(&mut body, "Authentication failed: Invalid username or password");
                body.extend(0_i32.to_be_bytes());
            }
            other => panic!("a client without rights asked {other}"),
        }
        client.write_i32(i32::try_from(body.len()).unwrap()).await?;
        client.write_all(&body).await?;
    }
}

fn put_text(body: &mut Vec<u8>, text: &str) {
    body.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
    body.extend(text.as_bytes());
}
