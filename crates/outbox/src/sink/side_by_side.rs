//! Sends aggregates concurrently and the events of each one after the other: for destinations that may accept a later event and lose an
//! earlier one when both are in flight.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use super::{Acceptance, Refusal};
use crate::Delivery;

/// No event of a batch is begun later than this after the batch; the rest is sent in a later batch. Otherwise a batch with many events of
/// one aggregate would time out as a whole if single answers are slow.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);

/// Sends a batch; `send` sends one event and waits until the destination has it. When `broken` resolves, no more answers arrive: every
/// event without an answer is refused for that reason.
pub(super) async fn deliver<'a, F: Future<Output = Result<(), Refusal>>>(
    batch: &'a [Delivery],
    send: impl Fn(&'a Delivery) -> F,
    broken: impl Future<Output = Refusal>,
) -> Acceptance {
    let mut aggregates: BTreeMap<_, Vec<&Delivery>> = BTreeMap::new();
    for event in batch {
        aggregates.entry(event.aggregate).or_default().push(event);
    }
    let done: BTreeMap<_, _> = aggregates.keys().map(|aggregate| (*aggregate, AtomicUsize::new(0))).collect();
    let (send, until) = (&send, Instant::now() + BEGIN_WITHIN);
    let chains = aggregates
        .iter()
        .zip(done.values())
        .map(|((aggregate, events), done)| async move { (*aggregate, one_after_the_other(events, send, until, done).await) });
    let mut chains: FuturesUnordered<_> = chains.collect();
    let (mut refusals, mut no_answer) = (BTreeMap::new(), None);
    tokio::pin!(broken);
    loop {
        tokio::select! {
            ended = chains.next() => match ended {
                Some((aggregate, refusal)) => drop(refusals.insert(aggregate, refusal)),
                None => break,
            },
            refusal = &mut broken => {
                no_answer = Some(refusal);
                break;
            }
        }
    }
    drop(chains);
    let apart = aggregates.iter().zip(done.values()).filter_map(|((aggregate, events), done)| {
        let done = done.load(Ordering::Relaxed);
        (done < events.len()).then(|| (*aggregate, (done, refusals.remove(aggregate).unwrap_or_else(|| no_answer.clone()))))
    });
    Acceptance::all_but(batch, apart.collect())
}

async fn one_after_the_other<'a, F: Future<Output = Result<(), Refusal>>>(
    events: &[&'a Delivery],
    send: &impl Fn(&'a Delivery) -> F,
    until: Instant,
    done: &AtomicUsize,
) -> Option<Refusal> {
    for event in events {
        if let Err(refusal) = send(event).await {
            return Some(refusal);
        }
        done.fetch_add(1, Ordering::Relaxed);
        if Instant::now() >= until {
            break;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exercise::deliveries;

    async fn slow(event: &Delivery) -> Result<(), Refusal> {
        tokio::time::sleep(Duration::from_secs(4)).await;
        if event.aggregate == 2 { Err(Refusal::retryable("busy")) } else { Ok(()) }
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_into_the_time_is_left_without_a_reason_and_no_part_waits_for_others() {
        let second = deliveries("b", 1, 2).into_iter().map(|event| Delivery { aggregate: 2, ..event });
        let batch: Vec<_> = deliveries("a", 1, 5).into_iter().chain(second).collect();
        let answer = deliver(&batch, slow, std::future::pending()).await;
        let apart = BTreeMap::from([(1, (3, None)), (2, (0, Some(Refusal::retryable("busy"))))]);
        assert_eq!(answer, Acceptance::all_but(&batch, apart));
        let broken = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Refusal::retryable("gone")
        };
        let answer = deliver(&batch[..5], slow, broken).await;
        assert_eq!(answer.apart, BTreeMap::from([(1, (1, Some(Refusal::retryable("gone"))))]));
    }
}
