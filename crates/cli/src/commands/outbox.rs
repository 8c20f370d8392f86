//! `shardwise outbox`.

use clap::Subcommand;

use crate::args::Common;
use crate::exit::{Code, Result};

#[derive(Debug, Subcommand)]
pub(crate) enum Outbox {}

impl Outbox {
    pub(crate) async fn run(&self, _common: &Common) -> Result<Code> {
        match *self {}
    }
}
