//! How changes of a group are printed: in place on a terminal, as JSON lines elsewhere.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};

use super::WatchLine;
use crate::exit::Result;
use crate::output::{self, Format, count};
use crate::status_line;

pub(super) enum ChangePrinter {
    Json,
    /// A status line, and above it a line for each member that joined or left.
    Terminal {
        members: Option<BTreeSet<String>>,
    },
}

impl ChangePrinter {
    pub(super) fn of(format: Format) -> Self {
        let is_terminal = format == Format::Human && io::stdout().is_terminal() && status_line::is_possible();
        if is_terminal { Self::Terminal { members: None } } else { Self::Json }
    }

    pub(super) fn print(&mut self, line: &WatchLine<'_>) -> Result<()> {
        let Self::Terminal { members: before } = self else { return output::json_line(line) };
        let members: BTreeSet<String> = line.members.iter().map(|id| (*id).to_owned()).collect();
        let before = before.replace(members.clone()).unwrap_or_else(|| members.clone());
        let came = members.difference(&before).map(|id| format!("+{id}"));
        let has_vanished = |id: &str| line.vanished.iter().any(|gone| gone.as_str() == id);
        let went = before.difference(&members).map(|id| if has_vanished(id) { format!("-{id} (vanished)") } else { format!("-{id}") });
        let ids: Vec<_> = came.chain(went).collect();
        if !ids.is_empty() {
            let at = line.at.get(..19).unwrap_or(&line.at);
            output::text(&format!("{at}Z  {}\n", ids.join("  ")))?;
        }
        status_line::draw(&[in_words(line)]);
        Ok(())
    }
}

fn in_words(line: &WatchLine<'_>) -> String {
    let who = line.instance_id.map_or_else(|| line.policy.to_owned(), |id| format!("{id} in {}", line.policy));
    let share = match (line.slots_owned, line.slots, line.items_owned) {
        (_, _, Some(items)) => format!(", {} mine", count(items as u64, "key")),
        (Some(owned), Some(slots), _) => format!(", {owned} of {slots} slots"),
        _ => String::new(),
    };
    let frozen = if line.stands_still { ", waiting for missing members (confirm-loss)" } else { "" };
    format!("{who}: {}{share}{frozen}, {}", line.state, line.members_in_words)
}
