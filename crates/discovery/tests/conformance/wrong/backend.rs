//! The memory backend with one mistake.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use shardwise_core::{ClaimName, ClaimStore, Epoch, GroupName, InstanceId, MemberState, Resource, View};
use shardwise_discovery::{
    AcquireOutcome, Capabilities, Claims, ClaimsEvent, ClaimsStream, Clock, Discovery, Error, ErrorKind, Grant, MemoryBackend, Note, Notes,
    RecordId, Registration, Result, ViewSnapshot, WatchEvent, WatchStream, WriteOutcome,
};

use super::Mistake;

/// How long a call that is slow by mistake goes on behind its caller's back.
const SLOW: Duration = Duration::from_millis(40);

#[derive(Clone)]
pub(crate) struct Wrong {
    pub(crate) inner: MemoryBackend,
    pub(crate) mistake: Mistake,
    pub(crate) clock: Clock,
    /// How many calls there were that count.
    pub(crate) calls: Arc<AtomicU64>,
    /// What was registered last.
    pub(crate) last: Arc<std::sync::Mutex<Option<Registration>>>,
}

impl Wrong {
    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    fn count(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::SeqCst)
    }

    fn last(&self) -> Option<Registration> {
        self.last.lock().unwrap().clone()
    }

    /// The record that has the id, whatever its life.
    async fn whoever(&self, record_id: &RecordId) -> RecordId {
        let view = self.inner.members(&record_id.group).await.map(|snapshot| snapshot.view).unwrap_or_default();
        let there = view.member(&record_id.instance_id).map_or(record_id.incarnation, |member| member.incarnation);
        RecordId { incarnation: there, ..record_id.clone() }
    }

    /// The group that is used instead.
    fn group(&self, group: &GroupName) -> GroupName {
        let mistaken = self.makes(Mistake::GroupsIgnoreCase);
        if mistaken { GroupName::new(group.as_str().to_lowercase()).unwrap() } else { group.clone() }
    }

    fn grant(&self, grant: Grant) -> Grant {
        if self.makes(Mistake::GrantsCountFromTheAnswer) {
            return Grant { started: self.clock.now().plus(Duration::from_millis(1)), ..grant };
        }
        grant
    }
}

#[async_trait]
impl Discovery for Wrong {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        let mut registration = Registration { group: self.group(&registration.group), ..registration.clone() };
        *self.last.lock().unwrap() = Some(registration.clone());
        // Watches see each change by itself, as those of a server may.
        tokio::task::yield_now().await;
        match self.mistake {
            Mistake::MembersNeverExpire => registration.ttl *= 1_000,
            Mistake::NamesAreFileNames if registration.member.instance_id.as_str().contains('/') => {
                return Err(Error::new(ErrorKind::Misconfigured, "register", "a name must not contain a slash"));
            }
            Mistake::TheNewestLifeWins => {
                let there = self.whoever(&registration.record_id()).await;
                self.inner.deregister(&there).await?;
            }
            Mistake::AwayKeepsItsId => {
                let view = self.inner.members(&registration.group).await?.view;
                if view.member(&registration.member.instance_id).is_some_and(|member| member.state == MemberState::Away) {
                    let kind = ErrorKind::InUse { address: None, stamp: 0 };
                    return Err(Error::new(kind, "register", "the member is away"));
                }
            }
            _ => {}
        }
        let answer = self.inner.register(&registration).await.map(|grant| self.grant(grant));
        match answer {
            Err(error) if self.makes(Mistake::TheStampStandsStill) => match error.kind() {
                ErrorKind::InUse { address, .. } => {
                    Err(Error::new(ErrorKind::InUse { address: address.clone(), stamp: 7 }, "register", error.context()))
                }
                _ => Err(error),
            },
            other => other,
        }
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        let record_id = RecordId { group: self.group(&record_id.group), ..record_id.clone() };
        match self.mistake {
            Mistake::RenewalsDoNothing => return Ok(Grant { started: self.clock.now(), ttl }),
            Mistake::AnyLifeRenews => return self.inner.renew(&self.whoever(&record_id).await, ttl).await,
            Mistake::RenewalsAreReported => {
                if let Some(mut last) = self.last() {
                    last.member.metadata.insert("renewed".into(), self.count().to_string());
                    self.inner.update(&last).await?;
                }
            }
            _ => {}
        }
        let answer = self.inner.renew(&record_id, ttl).await.map(|grant| self.grant(grant));
        match (answer, self.last()) {
            (Err(error), Some(last)) if self.makes(Mistake::RenewingHeals) && *error.kind() == ErrorKind::Lost => {
                self.inner.register(&last).await
            }
            (Err(error), _) if self.makes(Mistake::ErrorsAreCodes) => Err(Error::new(error.kind().clone(), "call", "error 17")),
            (answer, _) => answer,
        }
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        let registration = Registration { group: self.group(&registration.group), ..registration.clone() };
        match self.mistake {
            Mistake::UpdatesRenew => {
                self.inner.renew(&registration.record_id(), registration.ttl).await?;
            }
            Mistake::UpdatesAddARecord => {
                let mut another = registration.clone();
                another.member.instance_id = InstanceId::new(format!("{} again", another.member.instance_id)).unwrap();
                self.inner.register(&another).await?;
            }
            Mistake::DrainingIsGone if registration.member.state == MemberState::Draining => {
                return self.inner.deregister(&registration.record_id()).await;
            }
            Mistake::LateUpdatesCount => {
                let (inner, slowness) = (self.inner.clone(), if self.count().is_multiple_of(2) { SLOW } else { Duration::ZERO });
                let late = tokio::spawn(async move {
                    tokio::time::sleep(slowness).await;
                    inner.update(&registration).await
                });
                return late.await.unwrap();
            }
            _ => {}
        }
        self.inner.update(&registration).await
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        let record_id = RecordId { group: self.group(&record_id.group), ..record_id.clone() };
        if self.makes(Mistake::AnyLifeDeregisters) {
            return self.inner.deregister(&self.whoever(&record_id).await).await;
        }
        self.inner.deregister(&record_id).await
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        let registration = Registration { group: self.group(&registration.group), ..registration.clone() };
        match self.mistake {
            Mistake::RejoinGraceIsCutShort => self.inner.step_away(&registration, rejoin_grace / 2).await,
            Mistake::RejoinGraceNeverEnds => self.inner.step_away(&registration, rejoin_grace * 1_000).await,
            Mistake::TheDeadStepAway => match self.inner.step_away(&registration, rejoin_grace).await {
                Err(_) => self
                    .inner
                    .register(&Registration { member: registration.away_member(), ttl: rejoin_grace, ..registration })
                    .await
                    .map(drop),
                done => done,
            },
            Mistake::SteppingAwayTakesTwoSteps => {
                self.inner.deregister(&registration.record_id()).await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
                let away = Registration { member: registration.away_member(), ttl: rejoin_grace, ..registration };
                self.inner.register(&away).await.map(drop)
            }
            _ => self.inner.step_away(&registration, rejoin_grace).await,
        }
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        let snapshot = self.inner.members(&self.group(group)).await?;
        if self.makes(Mistake::EmptinessIsAnError) && snapshot.view.members().is_empty() {
            return Err(Error::new(ErrorKind::Unavailable, "members", "there is nobody"));
        }
        if self.makes(Mistake::RecordsAreCutShort) {
            let members = snapshot.view.members().iter().cloned().map(|mut member| {
                member.metadata.clear();
                member
            });
            return Ok(ViewSnapshot { view: Arc::new(View::new(snapshot.view.revision(), members.collect())), ..snapshot });
        }
        Ok(snapshot)
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        let watch = self.inner.watch(&self.group(group), prove_every);
        let (mistake, mut seen, mut former) = (self.mistake, 0u64, Arc::<View>::default());
        let mut mistaken = move |event: Result<WatchEvent>| -> Option<Result<WatchEvent>> {
            let Ok(WatchEvent::View(snapshot)) = event else {
                let is_proof = matches!(event, Ok(WatchEvent::Proven(_)));
                return (!is_proof || mistake != Mistake::SilenceIsSilence).then_some(event);
            };
            seen += 1;
            let shown = match mistake {
                Mistake::TheFirstViewIsEmpty if seen == 1 => Some(Arc::default()),
                Mistake::ChangesAreLost if seen > 1 => None,
                // Every third view is the one before the last.
                Mistake::ViewsGoBack if seen % 3 == 0 => Some(Arc::clone(&former)),
                _ => Some(Arc::clone(&snapshot.view)),
            };
            if seen % 3 == 1 {
                former = Arc::clone(&snapshot.view);
            }
            shown.map(|view| Ok(WatchEvent::View(ViewSnapshot { view, proven: snapshot.proven })))
        };
        watch.filter_map(move |event| std::future::ready(mistaken(event))).boxed()
    }

    fn as_claims(&self) -> Option<&dyn Claims> {
        Some(self)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        Some(self)
    }
}

#[async_trait]
impl Claims for Wrong {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        let floor = if self.makes(Mistake::FloorsAreForgotten) { 0 } else { floor };
        self.inner.claim_store(group, floor).await
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        if self.makes(Mistake::TheDeadClaim) {
            let granted = Epoch::new(self.count() + 1).map(AcquireOutcome::Granted);
            if let (Err(_), Ok(granted)) = (self.inner.acquire(record_id, store, wanted).await, granted) {
                return Ok(wanted.iter().map(|resource| (resource.clone(), granted)).collect());
            }
        }
        let mut answers = self.inner.acquire(record_id, store, wanted).await?;
        let is_held = answers.iter().any(|(_, acquired)| *acquired == AcquireOutcome::Held);
        for (_, acquired) in &mut answers {
            match (self.mistake, *acquired) {
                (Mistake::HeldIsGrantedAgain, AcquireOutcome::Held) | (Mistake::EpochsAreAllOne, AcquireOutcome::Granted(_)) => {
                    *acquired = AcquireOutcome::Granted(Epoch::new(1).unwrap());
                }
                (Mistake::OneThatIsHeldKeepsAll, _) if is_held => *acquired = AcquireOutcome::Held,
                _ => {}
            }
        }
        Ok(answers)
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        match self.mistake {
            Mistake::ReleasesDoNothing => Ok(()),
            Mistake::AnybodyReleases => {
                let view = self.inner.members(&record_id.group).await?.view;
                for member in view.members() {
                    let (instance_id, incarnation) = (member.instance_id.clone(), member.incarnation);
                    self.inner.release(&RecordId { instance_id, incarnation, ..record_id.clone() }, held).await?;
                }
                Ok(())
            }
            _ => self.inner.release(record_id, held).await,
        }
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        let (mistake, watch) = (self.mistake, self.inner.watch_claims(group, prove_every));
        let is_kept = move |event: &Result<ClaimsEvent>| match event {
            Ok(ClaimsEvent::Proven(_)) => mistake != Mistake::ClaimsAreSilent,
            Ok(ClaimsEvent::Changed { .. }) => mistake != Mistake::ChangesOfClaimsAreLost,
            _ => true,
        };
        watch.filter(move |event| std::future::ready(is_kept(event))).boxed()
    }
}

#[async_trait]
impl Notes for Wrong {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let note = self.inner.note(group, name).await?;
        Ok(note.filter(|_| !self.makes(Mistake::NotesAreNotRead)))
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        if self.makes(Mistake::LongNotesAreCutShort) && text.len() > shardwise_discovery::NOTE_BYTES_MAX {
            return self.inner.write_note(group, name, expected, &text[..shardwise_discovery::NOTE_BYTES_MAX]).await;
        }
        if self.makes(Mistake::NotesAreOverwritten) {
            let present = self.inner.note(group, name).await?.map_or(0, |note| note.version);
            return self.inner.write_note(group, name, present, text).await;
        }
        if self.makes(Mistake::TheSameTextIsNoWrite)
            && let Some(there) = self.inner.note(group, name).await?
            && there.text == text
        {
            return Ok(WriteOutcome::Written(there.version));
        }
        if self.makes(Mistake::NotesGoWithTheirMembers) && self.inner.members(group).await?.view.members().is_empty() {
            return Ok(WriteOutcome::Written(expected + 1));
        }
        let name = if self.makes(Mistake::NotesIgnoreCase) { ClaimName::new(name.as_str().to_lowercase()).unwrap() } else { name.clone() };
        self.inner.write_note(group, &name, expected, text).await
    }
}
