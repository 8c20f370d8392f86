//! A process on the way to a member: it can count, cut and record connections, and change records in transit.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The frames of a hello in each direction; records follow.
const HELLO_FRAMES: usize = 2;
/// Before the content of a record: its length and its proof.
pub(crate) const RECORD_HEAD_BYTES: usize = 4 + 32;

/// What becomes of a record that a caller sends (`true`), or that a member answers.
pub(crate) type Way = fn(bool, Vec<u8>) -> Vec<u8>;

pub(crate) const PASSES: Way = |_, record| record;

pub(crate) struct Middle {
    /// Its address, in the place of the member's.
    pub(crate) at: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    count: Arc<AtomicUsize>,
    /// The frames and records that callers have sent.
    asked: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Middle {
    /// In front of the member at that address, which has a token.
    pub(crate) fn before(member: SocketAddr, way: Way) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let middle = Self { at: listener.local_addr().unwrap(), open: Arc::default(), count: Arc::default(), asked: Arc::default() };
        let (open, count, asked) = (Arc::clone(&middle.open), Arc::clone(&middle.count), Arc::clone(&middle.asked));
        std::thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::Relaxed);
                let member = TcpStream::connect(member).unwrap();
                open.lock().unwrap().extend([caller.try_clone().unwrap(), member.try_clone().unwrap()]);
                let (from_caller, to_member) = (caller.try_clone().unwrap(), member.try_clone().unwrap());
                let seen = Arc::clone(&asked);
                let asks = move |number, bytes: Vec<u8>| {
                    seen.lock().unwrap().push(bytes.clone());
                    if number < HELLO_FRAMES { bytes } else { way(true, bytes) }
                };
                std::thread::spawn(move || carry(from_caller, to_member, asks));
                let answers = move |number, bytes| if number < HELLO_FRAMES { bytes } else { way(false, bytes) };
                std::thread::spawn(move || carry(member, caller, answers));
            }
        });
        middle
    }

    /// How many connections there have been.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// What callers have sent.
    pub(crate) fn asked(&self) -> Vec<Vec<u8>> {
        self.asked.lock().unwrap().clone()
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            // The other side may have closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Carries a hello's frames and then records, until one side closes or breaks.
fn carry(mut from: TcpStream, mut to: TcpStream, each: impl Fn(usize, Vec<u8>) -> Vec<u8>) {
    for number in 0.. {
        let head = if number < HELLO_FRAMES { 4 } else { RECORD_HEAD_BYTES };
        let Some(bytes) = framed(&mut from, head) else { break };
        if to.write_all(&each(number, bytes)).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Reads what begins with a length: a head of so many bytes, and the content. `None` at the end of the connection.
pub(crate) fn framed(from: &mut TcpStream, head: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; head];
    from.read_exact(&mut bytes).ok()?;
    let length = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
    bytes.resize(head + length, 0);
    from.read_exact(&mut bytes[head..]).ok()?;
    Some(bytes)
}
