//! The calls of members.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{GroupName, InstanceId, Member};
use shardwise_discovery::{CallNumber, Grant, Record, RecordId, Registration, ViewSnapshot};

use crate::client::CallTurn;
use crate::error::{Failure, PgResult};
use crate::mirror::GroupMirror;
use crate::shared::{Shared, expect_changes, lost};
use crate::sql::members::{self, Changed, HolderRow, Registered};
use crate::sql::reads::{self, GroupChanges};

/// The most bytes one record may have as JSON.
pub const RECORD_BYTES_MAX: usize = 65_536;
/// The shortest TTL; shorter requests get this one.
pub const TTL_MIN: Duration = Duration::from_secs(1);

impl Shared {
    pub(crate) async fn register(self: &Arc<Self>, registration: &Registration) -> PgResult<Grant> {
        let (record, record_id) = (encode(&registration.member)?, registration.record_id());
        let ttl = registration.ttl.max(TTL_MIN);
        let (client, started) = (&self.client, self.client.clock.now());
        let sql = members::register(&client.schema, &record_id, &record, ttl, CallNumber::next());
        let answers = client.run_write(CallTurn::MayWait, sql).await?;
        match Registered::read(&answers).map_err(Failure::of_row)? {
            Registered::Written => {
                client.writes.answer(started);
                expect_changes(&self.groups.joined(self, &record_id));
                Ok(Grant { started, ttl })
            }
            Registered::Taken(holder) if holder.incarnation == record_id.incarnation.to_string() => {
                Err(Failure::Superseded { instance_id: record_id.instance_id })
            }
            Registered::Taken(holder) => {
                self.groups.refused(self, &record_id, holder.life);
                Err(in_use(&record_id.instance_id, &holder))
            }
            Registered::Refused => Err(Failure::TooManyMembers),
        }
    }

    pub(crate) async fn renew(self: &Arc<Self>, record_id: &RecordId, ttl: Duration) -> PgResult<Grant> {
        let (client, started, ttl) = (&self.client, self.client.clock.now(), ttl.max(TTL_MIN));
        let answers = client.run_write(CallTurn::Quick, members::renew(&client.schema, record_id, ttl)).await?;
        if answers.last().is_empty() {
            self.left(record_id);
            return Err(lost(record_id));
        }
        client.writes.answer(started);
        if self.groups.of_member(record_id).is_none() {
            expect_changes(&self.groups.joined(self, record_id));
        }
        Ok(Grant { started, ttl })
    }

    pub(crate) async fn update(&self, registration: &Registration) -> PgResult<()> {
        let (record, record_id) = (encode(&registration.member)?, registration.record_id());
        let changed = self.change(&record_id, members::update(&self.client.schema, &record_id, &record, CallNumber::next())).await?;
        written(&record_id, changed)
    }

    pub(crate) async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> PgResult<()> {
        let (record, record_id) = (encode(&registration.away_member())?, registration.record_id());
        let sql = members::step_away(&self.client.schema, &record_id, &record, rejoin_grace, CallNumber::next());
        let changed = self.change(&record_id, sql).await?;
        if matches!(changed, Changed::Written | Changed::Away) {
            self.left(&record_id);
            return Ok(());
        }
        written(&record_id, changed)
    }

    pub(crate) async fn deregister(&self, record_id: &RecordId) -> PgResult<()> {
        self.write(&record_id.group, members::deregister(&self.client.schema, record_id, CallNumber::next())).await?;
        self.left(record_id);
        Ok(())
    }

    pub(crate) async fn members(&self, group: &GroupName) -> PgResult<ViewSnapshot> {
        let (client, proven, before) = (&self.client, self.client.clock.now(), self.client.history.now());
        let mut mirror = GroupMirror::default();
        let known = mirror.known();
        let answers = client.run(CallTurn::Quick, reads::changes(&client.schema, group, known)).await?;
        let changes = GroupChanges::read(&answers, known)?;
        let (era, revision) = (client.history.arrive(before, &changes.head.position)?, changes.head.revision.unsigned_abs());
        // With nothing known, nothing can be missing.
        mirror.take(known, changes);
        Ok(ViewSnapshot { view: mirror.view(client.history.show(era, revision)?), proven })
    }

    /// A member of this process has left or lost its record.
    fn left(&self, record_id: &RecordId) {
        self.expect_changes(&record_id.group);
        self.groups.left(record_id);
    }

    async fn change(&self, record_id: &RecordId, sql: String) -> PgResult<Changed> {
        Changed::read(&self.write(&record_id.group, sql).await?).map_err(Failure::of_row)
    }
}

fn encode(member: &Member) -> PgResult<String> {
    Record::encode_within(RECORD_BYTES_MAX, member).map_err(Failure::Unwritable)
}

fn written(record_id: &RecordId, changed: Changed) -> PgResult<()> {
    match changed {
        Changed::Written => Ok(()),
        Changed::Superseded => Err(Failure::Superseded { instance_id: record_id.instance_id.clone() }),
        Changed::Lost | Changed::Away => Err(lost(record_id)),
    }
}

/// Beats of one group never repeat for an id, so they tell apart two looks at one holder, and two holders.
fn in_use(instance_id: &InstanceId, holder: &HolderRow) -> Failure {
    // Even a record that this version cannot read keeps others from the id.
    let member = Record::decode(instance_id.clone(), holder.life.unsigned_abs(), &holder.record).ok();
    Failure::InUse { instance_id: instance_id.clone(), address: member.and_then(|member| member.address), stamp: holder.beat }
}
