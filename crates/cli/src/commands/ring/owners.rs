//! `shardwise ring owners`: reads keys and prints their owners.

use std::io::{self, BufRead, BufWriter, Read, Write};

use clap::Args;
use shardwise::InstanceId;
use shardwise::core::Escaped;

use super::{Placement, RingMembers, place, usage};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format};

const KEY_BYTES_MAX: u64 = 1 << 24;

#[derive(Debug, Args)]
pub(crate) struct Owners {
    #[command(flatten)]
    members: RingMembers,
    #[command(flatten)]
    placement: Placement,
    /// Read keys that end with NUL instead of a line feed
    #[arg(short = '0')]
    nul: bool,
}

impl Owners {
    pub(super) fn run(&self, common: &Common) -> Result<Code> {
        let owners = place(self.members.read()?, self.placement.params()?)?;
        let (end, called) = if self.nul { (0, "NUL, because of -0") } else { (b'\n', "a line feed, or with -0 with NUL") };
        let mut out = BufWriter::new(io::stdout().lock());
        output::waits_for_lines();
        let mut input = io::stdin().lock();
        let mut key = Vec::new();
        loop {
            key.clear();
            // One byte more for the terminator.
            let read = input.by_ref().take(KEY_BYTES_MAX + 1).read_until(end, &mut key);
            if read.map_err(|error| CliFailure::io("read stdin", &error))? == 0 {
                break;
            }
            if key.last() == Some(&end) {
                key.pop();
            } else if key.len() as u64 > KEY_BYTES_MAX {
                return Err(usage(format_args!("a key has more than {KEY_BYTES_MAX} bytes; keys end with {called}")));
            }
            let owner = owners.owner(&key[..]).map(InstanceId::as_str);
            write_line(&mut out, &key, owner, common.format(), end)?;
        }
        out.flush().map_err(|error| output::stdout_failed(&error))?;
        Ok(Code::Ok)
    }
}

fn write_line(out: &mut impl Write, key: &[u8], owner: Option<&str>, format: Format, end: u8) -> Result<()> {
    let written = match format {
        Format::Human => {
            out.write_all(key).and_then(|()| write!(out, "\t{}", Escaped(owner.unwrap_or_default()))).and_then(|()| out.write_all(&[end]))
        }
        Format::Json => {
            let key = std::str::from_utf8(key).map_err(|_| usage("a key is not UTF-8; use --output human, which passes bytes through"))?;
            writeln!(out, "{}", serde_json::json!({"key": key, "owner": owner}))
        }
    };
    written.map_err(|error| output::stdout_failed(&error))
}
