//! `shardwise daemons`: the number of a set's daemons, and who holds each.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde_json::{Value, json};
use shardwise::core::Resource;
use shardwise::{Holding, Observer};

use super::held;
use crate::commands::group::PolicyArg;
use crate::commands::{IS_IT_THERE, waiting, waits_for};
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::output::{self, count, table};

/// The most sets in one message.
const SETS_SHOWN_MAX: usize = 20;

#[derive(Debug, Args)]
#[command(after_help = "\
Daemons are numbered workers, each alive on one member (`sharding.daemons(SET)`, `daemons` of a sidecar's clients). Members offer a set; its \
number is in the backend; no daemon runs until it is set. Members read a new number within a TTL. With a smaller one the highest daemons end.
Without COUNT it prints the number and who holds each daemon. Those above the number are about to end.
Exit code 1: without COUNT, the number is not set.

  shardwise daemons ingest
  shardwise daemons ingest 3
  shardwise daemons \"\" 3")]
pub(crate) struct DaemonsArgs {
    /// Show or change this set of daemons; "" is the set without a name
    set: String,
    /// Set their number, from 0 to 1024
    count: Option<u32>,
    #[command(flatten)]
    group: PolicyArg,
}

impl DaemonsArgs {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        match self.count {
            Some(number) => self.change(number, common).await,
            None => self.show(common).await,
        }
    }

    async fn change(&self, number: u32, common: &Common) -> Result<Code> {
        let (factory, policy) = self.group.open(common)?;
        let before = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.set_daemon_count(&policy, &self.set, number)).await?;
        let before = before.is_set().then(|| before.get());
        let changed = before != Some(number);
        let json = json!({"policy": policy, "set": self.set, "count": number, "before": before, "changed": changed});
        common.print(&json, || {
            let (name, number) = (self.name(), count(number.into(), "daemon"));
            match before {
                _ if !changed => format!("{name}: {number}, as before\n"),
                Some(before) => format!("{name}: {number} instead of {before}; members read it within a TTL\n"),
                None => format!("{name}: {number}; members that offer this set read it within a TTL\n"),
            }
        })?;
        if before.is_none()
            && let Ok(observer) = factory.observe(&policy).await
        {
            self.note_other_sets(&observer.holders().unwrap_or_default());
        }
        Ok(Code::Ok)
    }

    async fn show(&self, common: &Common) -> Result<Code> {
        let (factory, policy, observer) = self.group.observe(common).await?;
        let wanted = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.daemon_count(&policy, &self.set)).await?;
        let holdings = observer.holders()?;
        output::release_log();
        let held: BTreeMap<u32, &Holding> = holdings.iter().filter_map(|holding| Some((self.number(holding)?, holding))).collect();
        // Those above the wanted number are about to end.
        let numbers: BTreeSet<u32> = (0..wanted.get()).chain(held.keys().copied()).collect();
        let daemons: Vec<_> = numbers.into_iter().map(|number| (number, held.get(&number).copied())).collect();
        let json = json!({
            "policy": policy, "set": self.set, "count": wanted.is_set().then(|| wanted.get()),
            "daemons": daemons.iter().map(|(number, holding)| as_json(*number, *holding, &observer)).collect::<Vec<_>>(),
        });
        common.print(&json, || {
            let rows: Vec<_> = daemons.iter().map(|(number, holding)| row(*number, *holding)).collect();
            let listed = if rows.is_empty() { String::new() } else { table(&["daemon", "holder", "epoch"], &rows) + "\n" };
            let (name, set) = (self.name(), &self.set);
            if !wanted.is_set() {
                let how = format!("shardwise daemons {set:?} COUNT --policy {policy}");
                return format!("{listed}{name}: the number is not set, so none runs; to set it: {how}\n");
            }
            let of_these = held.keys().filter(|number| **number < wanted.get()).count();
            format!("{listed}{name}: {}, {of_these} held\n", count(wanted.get().into(), "daemon"))
        })?;
        if wanted.get() > 0 && held.is_empty() {
            output::note(format_args!("shardwise: no member holds any of them: check that a member offers the daemons {:?}", self.set));
        }
        self.note_other_sets(&holdings);
        Ok(if wanted.is_set() { Code::Ok } else { Code::No })
    }

    /// Notes on stderr which sets have daemons that are held, if this one has none: its name may be misspelled. Which sets are offered
    /// cannot be seen.
    fn note_other_sets(&self, holdings: &[Holding]) {
        let sets: BTreeSet<&str> = holdings.iter().filter_map(set_of).collect();
        if sets.is_empty() || sets.contains(self.set.as_str()) {
            return;
        }
        let shown: Vec<_> = sets.iter().take(SETS_SHOWN_MAX).map(|set| format!("{set:?}")).collect();
        let more = sets.len().saturating_sub(shown.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        output::note(format_args!(
            "shardwise: no member holds a daemon of the set {:?}; sets with daemons that are held: {}{more}",
            self.set,
            shown.join(", ")
        ));
    }

    /// What the names of its daemons begin with.
    fn name(&self) -> String {
        if self.set.is_empty() { "daemon".to_owned() } else { format!("daemon/{}", self.set) }
    }

    /// The number of a daemon of this set.
    fn number(&self, holding: &Holding) -> Option<u32> {
        let Resource::Name(name) = &holding.resource else { return None };
        name.as_str().strip_prefix(&self.name())?.strip_prefix('/')?.parse().ok()
    }
}

/// The set of a daemon.
fn set_of(holding: &Holding) -> Option<&str> {
    let Resource::Name(name) = &holding.resource else { return None };
    let (set, number) = name.as_str().strip_prefix("daemon/").map(|rest| rest.rsplit_once('/').unwrap_or(("", rest)))?;
    number.parse::<u32>().ok().map(|_| set)
}

fn as_json(number: u32, holding: Option<&Holding>, observer: &Observer) -> Value {
    let mut fields = held::fields(holding, observer.now());
    fields.insert("number".to_owned(), json!(number));
    Value::Object(fields)
}

fn row(number: u32, holding: Option<&Holding>) -> Vec<String> {
    let [holder, epoch] = held::cells(holding);
    vec![number.to_string(), holder, epoch]
}
