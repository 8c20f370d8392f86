//! The channel between members, spoken by hand (`docs/reference/protocol.md`, section 9): a second implementation of its start and its
//! records, for ends that keep to the protocol and for ends that do not.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use serde_json::{Value, json};
use shardwise::requests::channel::proof::{Nonce, Proof, ProofKind, ProofSession, Recipient};
use shardwise::{GroupName, Incarnation, InstanceId, ShardingService};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything takes on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// The version of the hello.
pub(crate) const VERSION: u32 = 3;
/// The most bytes of a frame of the hello.
const FRAME_BYTES_MAX: usize = 16 * 1024;
/// The most bytes of a record's content, and those before it: a length and a proof.
const RECORD_BYTES_MAX: usize = 16 * 1024;
const LENGTH_BYTES: usize = 4;
const HEAD_BYTES: usize = LENGTH_BYTES + 32;

/// The end of a connection that a test plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Caller,
    Recipient,
}

impl Side {
    /// The kind of what it sends, and of what it hears.
    const fn kinds(self) -> [ProofKind; 2] {
        match self {
            Self::Caller => [ProofKind::Question, ProofKind::Answer],
            Self::Recipient => [ProofKind::Answer, ProofKind::Question],
        }
    }
}

/// The member that a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Whom {
    pub(crate) group: GroupName,
    pub(crate) instance_id: InstanceId,
    pub(crate) incarnation: Incarnation,
}

impl Whom {
    pub(crate) fn of(service: &ShardingService) -> Self {
        Self { group: service.group_name().clone(), instance_id: service.instance_id().clone(), incarnation: service.incarnation() }
    }

    /// The member that a hello names.
    pub(crate) fn named(hello: &Value) -> Self {
        Self {
            group: GroupName::new(text(&hello["group"])).expect("a group"),
            instance_id: InstanceId::new(text(&hello["instance_id"])).expect("an id"),
            incarnation: Incarnation::from_hex(text(&hello["incarnation"])).expect("an incarnation"),
        }
    }

    pub(crate) fn hello(&self) -> Value {
        json!({
            "shardwise": VERSION,
            "group": self.group.as_str(),
            "instance_id": self.instance_id.as_str(),
            "incarnation": self.incarnation.to_string(),
            "nonce": Nonce::random().to_string(),
        })
    }

    /// The key of a connection to it.
    pub(crate) fn session(&self, token: &str, callers_nonce: &Value, recipients_nonce: &Value) -> ProofSession {
        let recipient = Recipient { group: &self.group, instance_id: &self.instance_id, incarnation: self.incarnation };
        let [callers, own]: [Nonce; 2] = [callers_nonce, recipients_nonce].map(|nonce| text(nonce).parse().expect("a nonce"));
        ProofSession::new(token.as_bytes(), &recipient, &callers, &own)
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// A frame of the hello.
pub(crate) fn frame(value: &Value) -> Vec<u8> {
    let text = value.to_string();
    [&u32::try_from(text.len()).expect("a short one").to_be_bytes()[..], text.as_bytes()].concat()
}

/// Reads a frame of the hello.
pub(crate) async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> Result<Value> {
    let reading = async {
        let length = stream.read_u32().await? as usize;
        if length > FRAME_BYTES_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).await?;
        serde_json::from_slice(&bytes).map_err(Error::from)
    };
    timeout(LONG, reading).await.map_err(|_| Error::from(ErrorKind::TimedOut))?
}

/// What the other end still sends until it closes the connection.
///
/// # Panics
///
/// If it does not close it.
pub(crate) async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A connection that is closed before all was read is reset.
    let _ = timeout(LONG, stream.read_to_end(&mut bytes)).await.expect("the other end closes the connection");
    bytes
}

/// A connection to that host and port.
pub(crate) async fn connect(address: &str) -> TcpStream {
    timeout(LONG, TcpStream::connect(address)).await.expect("in time").unwrap_or_else(|error| panic!("{address}: {error}"))
}

/// A caller's connection once the recipient has answered its hello.
pub(crate) struct Challenged<S> {
    pub(crate) stream: S,
    pub(crate) hello: Value,
    pub(crate) challenge: Value,
    /// The key, if the recipient has proven that it is that member and knows the token.
    pub(crate) session: Option<ProofSession>,
    binding: Vec<u8>,
}

/// Says hello as a caller; `binding` is empty without TLS. The error has what the recipient says instead of a challenge.
pub(crate) async fn challenged<S>(mut stream: S, whom: &Whom, token: Option<&str>, binding: &[u8]) -> Result<Challenged<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let hello = whom.hello();
    stream.write_all(&frame(&hello)).await?;
    let answer = receive(&mut stream).await?;
    let challenge = answer["challenge"].clone();
    if !challenge.is_object() {
        return Err(Error::other(answer.to_string()));
    }
    let session = token.zip(challenge["proof"].as_str()).and_then(|(token, proof)| {
        let session = whom.session(token, &hello["nonce"], &challenge["nonce"]);
        let proof: Proof = proof.parse().expect("a proof");
        session.proves(&proof, ProofKind::Welcome, 0, &[binding]).then_some(session)
    });
    Ok(Challenged { stream, hello, challenge, session, binding: binding.to_vec() })
}

impl<S: AsyncRead + AsyncWrite + Unpin> Challenged<S> {
    /// The caller's proof.
    pub(crate) fn confirmation(&self) -> Value {
        let proof = |session: &ProofSession| session.proof(ProofKind::Confirmation, 0, &[&self.binding]).to_string();
        json!({ "proof": self.session.as_ref().map(proof) })
    }

    /// Shows the proof. The error has what the recipient says instead of "ok".
    pub(crate) async fn confirmed(mut self) -> Result<Opened<S>> {
        self.stream.write_all(&frame(&self.confirmation())).await?;
        let answer = receive(&mut self.stream).await?;
        if answer != "ok" {
            return Err(Error::other(answer.to_string()));
        }
        Ok(Opened { stream: self.stream, session: self.session.filter(|_| self.binding.is_empty()) })
    }
}

/// A connection whose both ends have proven themselves.
pub(crate) struct Opened<S> {
    pub(crate) stream: S,
    /// The key of its records; `None` if it has none.
    pub(crate) session: Option<ProofSession>,
}

/// A connection to that member without TLS, ready for HTTP/2.
pub(crate) async fn open(address: &str, whom: &Whom, token: Option<&str>) -> Result<Opened<TcpStream>> {
    challenged(connect(address).await, whom, token, &[]).await?.confirmed().await
}

/// The recipient's side without TLS: it proves to be whichever member the caller wants, as one that knows the token can.
pub(crate) async fn taken<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, token: Option<&str>) -> Result<Opened<S>> {
    let hello = receive(&mut stream).await?;
    let nonce = json!(Nonce::random().to_string());
    let session = token.map(|token| Whom::named(&hello).session(token, &hello["nonce"], &nonce));
    let proof = session.as_ref().map(|session| session.proof(ProofKind::Welcome, 0, &[&[]]).to_string());
    stream.write_all(&frame(&json!({"challenge": {"nonce": nonce, "proof": proof}}))).await?;
    receive(&mut stream).await?;
    stream.write_all(&frame(&json!("ok"))).await?;
    Ok(Opened { stream, session })
}

/// One record.
pub(crate) fn record(session: &ProofSession, kind: ProofKind, number: u64, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("a short one").to_be_bytes();
    [&length[..], session.proof(kind, number, &[content]).bytes(), content].concat()
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Opened<S> {
    /// The bytes that the records carry: what is written goes out in records, and records that arrive are checked. It ends when the other
    /// end closes the connection or sends a record without its proof, and dropping it closes the connection.
    pub(crate) fn plain(self, side: Side) -> DuplexStream {
        let (plain, inner) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            let ((mut hears, mut says), (mut taking, mut giving)) = (tokio::io::split(self.stream), tokio::io::split(inner));
            let ([own, other], session) = (side.kinds(), self.session.as_ref());
            // Whichever ends first ends both.
            let _ = tokio::select! {
                ended = send_all(&mut taking, &mut says, session.map(|session| (session, own))) => ended,
                ended = hear_all(&mut hears, &mut giving, session.map(|session| (session, other))) => ended,
            };
            let _ = says.shutdown().await;
        });
        plain
    }
}

/// A key, and the kind of the records that it is for.
type Seal<'a> = Option<(&'a ProofSession, ProofKind)>;

async fn send_all(taking: &mut (impl AsyncRead + Unpin), says: &mut (impl AsyncWrite + Unpin), seal: Seal<'_>) -> Result<()> {
    let mut bytes = vec![0; RECORD_BYTES_MAX];
    for number in 0.. {
        let taken = taking.read(&mut bytes).await?;
        if taken == 0 {
            break;
        }
        match seal {
            Some((session, kind)) => says.write_all(&record(session, kind, number, &bytes[..taken])).await?,
            None => says.write_all(&bytes[..taken]).await?,
        }
        says.flush().await?;
    }
    Ok(())
}

async fn hear_all(hears: &mut (impl AsyncRead + Unpin), giving: &mut (impl AsyncWrite + Unpin), seal: Seal<'_>) -> Result<()> {
    let Some((session, kind)) = seal else { return tokio::io::copy(hears, giving).await.map(drop) };
    for number in 0.. {
        giving.write_all(&heard(hears, session, kind, number).await?).await?;
    }
    Ok(())
}

/// Reads one record and checks its proof.
pub(crate) async fn heard(hears: &mut (impl AsyncRead + Unpin), session: &ProofSession, kind: ProofKind, number: u64) -> Result<Vec<u8>> {
    let mut head = [0; HEAD_BYTES];
    hears.read_exact(&mut head).await?;
    let (length, proof) = head.split_first_chunk::<LENGTH_BYTES>().expect("a head");
    let mut content = vec![0; u32::from_be_bytes(*length) as usize];
    hears.read_exact(&mut content).await?;
    let proof = Proof::from_bytes(proof.try_into().expect("32 bytes"));
    if session.proves(&proof, kind, number, &[&content]) { Ok(content) } else { Err(ErrorKind::PermissionDenied.into()) }
}
