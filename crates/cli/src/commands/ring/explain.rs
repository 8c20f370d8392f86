//! `shardwise ring explain`: why a key has its owner.

use clap::Args;
use serde_json::{Value, json};
use shardwise::SlotOwners;
use shardwise::core::{Explanation, Stop};

use super::{Members, Placement};
use crate::args::Common;
use crate::exit::{Code, Result};
use crate::output::{self, Format, count, table};

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The key, as text
    key: String,
    #[command(flatten)]
    members: Members,
    #[command(flatten)]
    placement: Placement,
}

impl Explain {
    pub(super) fn run(&self, common: &Common) -> Result<Code> {
        let params = self.placement.params()?;
        let explained = SlotOwners::place(self.members.read()?, params).explain(self.key.as_str());
        match common.format() {
            Format::Json => output::json_line(&self.as_json(&explained))?,
            Format::Human => output::text(&in_words(&explained, params.slots))?,
        }
        Ok(Code::Ok)
    }

    /// Places on the circle as text: they are 64-bit numbers, and JSON's readers keep 53.
    fn as_json(&self, explained: &Explanation) -> Value {
        let stop = |stop: &Stop| {
            json!({
                "id": stop.instance_id, "point": stop.point, "place": format!("{:016x}", stop.place),
                "slots": stop.slots, "capacity": stop.capacity,
            })
        };
        json!({
            "key": self.key,
            "hash": format!("{:016x}", explained.hash),
            "slot": explained.slot,
            "start": format!("{:016x}", explained.start),
            "passed": explained.passed.iter().map(stop).collect::<Vec<_>>(),
            "owner": explained.owner.as_ref().map(stop),
            "next": explained.next,
        })
    }
}

fn in_words(explained: &Explanation, slots: u32) -> String {
    let Explanation { hash, slot, start, passed, owner, next } = explained;
    let head = format!("hash   {hash:016x}\nslot   {slot} of {slots}, from {start:016x}\nowner  ");
    let Some(owner) = owner else {
        return head + "nobody: there are no members\n";
    };
    let next = next.as_ref().map_or("nobody: there is no other member", |id| id.as_str());
    let row = |stop: &Stop, verdict| vec![stop.instance_id.to_string(), stop.point.to_string(), format!("{:016x}", stop.place), verdict];
    let full = |stop: &Stop| row(stop, format!("passed over: full with {}", count(u64::from(stop.capacity), "slot")));
    let takes = row(owner, format!("takes it: had {} of at most {}", owner.slots, owner.capacity));
    let way: Vec<_> = passed.iter().map(full).chain([takes]).collect();
    format!("{head}{}\nnext   {next}\n\n{}", owner.instance_id, table(&["clockwise", "point", "at", ""], &way))
}
