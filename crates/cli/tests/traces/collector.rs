//! A minimal receiver of OTLP over HTTP: it accepts and keeps everything.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use shardwise_testkit::CertIdentity;

use crate::common::{PATIENCE, eventually};

/// Kinds of spans.
pub(crate) const SERVER: i32 = 2;
pub(crate) const CLIENT: i32 = 3;
pub(crate) const PRODUCER: i32 = 4;
/// The status of a failed span.
pub(crate) const ERROR: i32 = 2;

/// A received span.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) kind: i32,
    pub(crate) status: i32,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    /// The traces of its links.
    pub(crate) links: Vec<String>,
    pub(crate) events: usize,
    pub(crate) says: BTreeMap<String, String>,
    /// The attributes of its resource.
    pub(crate) of: BTreeMap<String, String>,
}

impl Seen {
    pub(crate) fn says(&self, name: &str) -> &str {
        self.says.get(name).map_or("", String::as_str)
    }

    pub(crate) fn is_of(&self, instance: &str) -> bool {
        self.of.get("service.instance.id").is_some_and(|id| id == instance)
    }
}

#[derive(Default)]
struct Got {
    spans: Vec<Seen>,
    heads: String,
    bodies: Vec<u8>,
}

pub(crate) struct Collector {
    pub(crate) at: SocketAddr,
    got: Arc<Mutex<Got>>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::over(Some)
    }

    /// A collector with TLS and this certificate.
    pub(crate) fn with_tls(identity: &CertIdentity) -> Self {
        let chain = CertificateDer::pem_file_iter(identity.certificate()).unwrap().map(Result::unwrap).collect();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = PrivateKeyDer::from_pem_file(identity.key()).unwrap();
        let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
        Self::over(move |stream| Some(StreamOwned::new(ServerConnection::new(Arc::clone(&config)).ok()?, stream)))
    }

    fn over<S: Read + Write + Send + 'static>(speaking: impl Fn(TcpStream) -> Option<S> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, got) = (listener.local_addr().unwrap(), Arc::<Mutex<Got>>::default());
        let kept = Arc::clone(&got);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok).filter_map(speaking) {
                let got = Arc::clone(&kept);
                // An exporter may disconnect at any time.
                std::thread::spawn(move || serve(stream, &got));
            }
        });
        Self { at, got }
    }

    pub(crate) fn spans(&self) -> Vec<Seen> {
        self.got.lock().unwrap().spans.clone()
    }

    /// The first matching span, once it has arrived.
    pub(crate) fn gets(&self, what: &str, wanted: impl Fn(&Seen) -> bool) -> Seen {
        eventually(what, PATIENCE, || self.spans().into_iter().find(&wanted))
    }

    /// The heads of all requests.
    pub(crate) fn heads(&self) -> String {
        self.got.lock().unwrap().heads.clone()
    }

    /// Checks that no body contained any of these texts, in any field.
    pub(crate) fn never_sees(&self, texts: &[&str]) {
        let got = self.got.lock().unwrap();
        assert!(!got.spans.is_empty());
        for text in texts {
            let found = got.bodies.windows(text.len()).any(|bytes| bytes == text.as_bytes());
            assert!(!found, "{text} is in what was exported: {:#?}", got.spans);
        }
    }
}

/// Handles requests one after the other, each with a length.
fn serve(stream: impl Read + Write, got: &Mutex<Got>) -> Option<()> {
    let mut reading = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reading.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
        let mut body = vec![0; length];
        reading.read_exact(&mut body).ok()?;
        let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
        let mut got = got.lock().unwrap();
        for of in request.resource_spans {
            let resource = said(of.resource.unwrap_or_default().attributes);
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            got.spans.extend(spans.map(|span| seen(span, &resource)));
        }
        got.heads += &head;
        got.bodies.extend(body);
        drop(got);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        reading.get_mut().write_all(answer).and_then(|()| reading.get_mut().flush()).ok()?;
    }
}

fn seen(span: Span, of: &BTreeMap<String, String>) -> Seen {
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    };
    Seen {
        name: span.name,
        kind: span.kind,
        status: span.status.unwrap_or_default().code,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        links: span.links.iter().map(|link| hex(&link.trace_id)).collect(),
        events: span.events.len(),
        says: said(span.attributes),
        of: of.clone(),
    }
}

fn said(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Value| match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(is) => is.to_string(),
        other => format!("{other:?}"),
    };
    let pair = |said: KeyValue| (said.key, said.value.and_then(|any| any.value).map(text).unwrap_or_default());
    attributes.into_iter().map(pair).collect()
}
