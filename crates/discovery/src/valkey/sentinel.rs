//! Where the primary is, as Sentinels say. They are asked before each connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use redis::{AsyncConnectionConfig, RedisError};
use tokio::time::timeout;

use super::dial::certificate_refusal;
use super::{DialFailure, Login, ValkeyAddress, dial};
use crate::one_line;
use crate::tls::{ConnectFailure, TlsFiles};

/// How long one Sentinel may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// How many Sentinels are asked at the same time.
const ASKED_AT_ONCE: usize = 16;

/// A primary that Sentinels name.
#[derive(Debug, Clone)]
pub struct SentinelTarget {
    /// Who is asked.
    pub sentinels: Vec<ValkeyAddress>,
    /// They and the servers speak TLS.
    pub tls: bool,
    /// The name under which they watch the primary.
    pub master_name: String,
    /// Who asks the Sentinels; a Sentinel has one database.
    pub login: Login,
}

/// Why a Sentinel names no primary.
#[derive(Debug, Clone)]
pub enum SentinelFailure {
    /// It is silent for that long.
    Silent(Duration),
    /// There is no connection to it.
    Dial(DialFailure),
    /// It refuses the question, or the connection broke.
    Refused(RedisError),
    /// It watches no primary of that name.
    UnknownMaster,
    /// It names no address that can be read, but this.
    Unreadable(String),
}

impl SentinelTarget {
    /// The Sentinels and the name, for people.
    pub fn places(&self) -> String {
        let places: Vec<_> = self.sentinels.iter().map(ToString::to_string).collect();
        format!("{} by {}", self.master_name, places.join(", "))
    }

    /// Asks all Sentinels and takes the answer of most: one that is cut off from the others still names a former primary, and that server's
    /// role is still `master` if it is cut off too. If they are divided, the one whose turn it is decides; `turn` counts the questions, so
    /// the next connection tries the other answer. All of them may name a former primary for a while: the caller checks the server's role.
    ///
    /// # Errors
    /// Why each of them names none.
    pub async fn locate(&self, turn: &AtomicUsize, files: &TlsFiles) -> Result<ValkeyAddress, Vec<(ValkeyAddress, SentinelFailure)>> {
        let count = self.sentinels.len();
        let begin = turn.fetch_add(1, Ordering::Relaxed) % count.max(1);
        let order: Vec<(usize, &ValkeyAddress)> = self.sentinels.iter().cycle().skip(begin).take(count).enumerate().collect();
        let (mut named, mut failures) = (BTreeMap::new(), BTreeMap::new());
        for group in order.chunks(ASKED_AT_ONCE) {
            let questions = group.iter().map(|&(place, sentinel)| async move {
                let answer = timeout(ASK_LIMIT, self.ask(sentinel, files)).await;
                (place, sentinel, answer.unwrap_or(Err(SentinelFailure::Silent(ASK_LIMIT))))
            });
            let mut answers: FuturesUnordered<_> = questions.collect();
            while let Some((place, sentinel, answer)) = answers.next().await {
                match answer {
                    Ok(address) => drop(named.insert(place, address)),
                    Err(failure) => drop(failures.insert(place, (sentinel.clone(), failure))),
                }
                // No need to wait for a silent one that cannot change the outcome.
                let missing = count - named.len() - failures.len();
                if let Some((address, lead)) = most_named(&named)
                    && lead > missing
                {
                    return Ok(address.clone());
                }
            }
        }
        most_named(&named).map(|(address, _)| address.clone()).ok_or_else(|| failures.into_values().collect())
    }

    async fn ask(&self, sentinel: &ValkeyAddress, files: &TlsFiles) -> Result<ValkeyAddress, SentinelFailure> {
        // The whole question has a limit.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let dialled = dial(sentinel, files, &self.login.connection_info().set_skip_set_lib_name(), config, ASK_LIMIT).await;
        let (mut redis, _driver) = dialled.map_err(SentinelFailure::Dial)?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master_name);
        let answer: Option<Vec<String>> = match question.query_async(&mut redis).await {
            Ok(answer) => answer,
            // Without a login this is the first that was sent.
            Err(error) => {
                return Err(match certificate_refusal(&error, sentinel, files).await {
                    Some(why) => SentinelFailure::Dial(ConnectFailure::ClientCertificate(why).into()),
                    None => SentinelFailure::Refused(error),
                });
            }
        };
        let answer = answer.ok_or(SentinelFailure::UnknownMaster)?;
        let address = match answer.as_slice() {
            [host, port] => port.parse().ok().map(|port| ValkeyAddress { tls: self.tls, host: host.clone(), port }),
            _ => None,
        };
        address.ok_or_else(|| SentinelFailure::Unreadable(one_line(&answer.join(" "))))
    }
}

/// The address that most Sentinels name, and by how many answers it leads. Keys are places in the order of asking: among addresses with as
/// many answers the earliest is taken.
fn most_named(named: &BTreeMap<usize, ValkeyAddress>) -> Option<(&ValkeyAddress, usize)> {
    let votes = |address: &ValkeyAddress| named.values().filter(|other| *other == address).count();
    let mut most: Option<(&ValkeyAddress, usize)> = None;
    for address in named.values() {
        let count = votes(address);
        if most.is_none_or(|(_, so_far)| count > so_far) {
            most = Some((address, count));
        }
    }
    let (address, count) = most?;
    let next = named.values().filter(|other| *other != address).map(votes).max().unwrap_or(0);
    Some((address, count - next))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const FORMER: u16 = 1;
    const PRESENT: u16 = 2;

    fn server(port: u16) -> ValkeyAddress {
        ValkeyAddress { tls: false, host: "h".into(), port }
    }

    #[test]
    fn the_answer_of_most_is_taken_and_the_earliest_if_they_are_divided() {
        let chosen = |answers: &[(usize, u16)]| {
            let named = answers.iter().map(|&(place, port)| (place, server(port))).collect();
            most_named(&named).map(|(address, lead)| (address.port, lead))
        };
        #[expect(clippy::type_complexity, reason = "a table that is read once")]
        let cases: [(&[(usize, u16)], Option<(u16, usize)>); 7] = [
            (&[], None),
            (&[(2, PRESENT)], Some((PRESENT, 1))),
            (&[(0, FORMER), (1, PRESENT), (2, PRESENT)], Some((PRESENT, 1))),
            (&[(0, PRESENT), (1, FORMER), (2, PRESENT), (3, PRESENT)], Some((PRESENT, 2))),
            (&[(0, FORMER), (2, PRESENT)], Some((FORMER, 0))),
            (&[(1, PRESENT), (2, FORMER)], Some((PRESENT, 0))),
            (&[(0, 3), (1, 4), (2, PRESENT), (3, PRESENT)], Some((PRESENT, 1))),
        ];
        for (answers, expected) in cases {
            assert_eq!(chosen(answers), expected, "{answers:?}");
        }
    }

    /// Listens as a Sentinel that names the server with that port at every question.
    async fn sentinel(port: u16) -> ValkeyAddress {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut question = [0; 1024];
                if client.read(&mut question).await.is_ok_and(|bytes| bytes > 0) {
                    let _ = client.write_all(format!("*2\r\n$1\r\nh\r\n$1\r\n{port}\r\n").as_bytes()).await;
                    // The client hangs up when it has the answer.
                    let _ = client.read(&mut question).await;
                }
            }
        });
        ValkeyAddress { tls: false, host: at.ip().to_string(), port: at.port() }
    }

    fn target(sentinels: Vec<ValkeyAddress>) -> SentinelTarget {
        SentinelTarget { sentinels, tls: false, master_name: "main".into(), login: Login::default() }
    }

    /// A first version asked the one that answered last: the sink stayed with a former primary for as long as that one was cut off.
    #[tokio::test]
    async fn a_sentinel_that_names_a_former_primary_is_outvoted_and_alone_decides_only_in_its_turn() {
        let (files, turn) = (TlsFiles::default(), AtomicUsize::new(0));
        let (stale, one, other) = (sentinel(FORMER).await, sentinel(PRESENT).await, sentinel(PRESENT).await);
        let three = target(vec![stale.clone(), one.clone(), other]);
        for _ in 0..4 {
            assert_eq!(three.locate(&turn, &files).await.unwrap(), server(PRESENT));
        }
        let (divided, turn) = (target(vec![stale, one]), AtomicUsize::new(0));
        for expected in [FORMER, PRESENT, FORMER, PRESENT] {
            assert_eq!(divided.locate(&turn, &files).await.unwrap(), server(expected));
        }
    }

    /// Asked one after the other they would take twenty seconds, which is longer than a connection may.
    #[tokio::test]
    async fn silent_sentinels_do_not_hide_one_that_answers() {
        let (files, turn) = (TlsFiles::default(), AtomicUsize::new(0));
        // Connections are taken by the system, and nothing is answered.
        let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let at = silent.local_addr().unwrap();
        let mut sentinels = vec![ValkeyAddress { tls: false, host: at.ip().to_string(), port: at.port() }; 20];
        let failures = timeout(4 * ASK_LIMIT, target(sentinels.clone()).locate(&turn, &files)).await.unwrap().unwrap_err();
        assert!(failures.len() == 20 && failures.iter().all(|(_, failure)| matches!(failure, SentinelFailure::Silent(_))), "{failures:?}");
        sentinels.push(sentinel(PRESENT).await);
        let located = timeout(4 * ASK_LIMIT, target(sentinels).locate(&turn, &files)).await.unwrap();
        assert_eq!(located.unwrap(), server(PRESENT));
    }
}
