//! Reads whole files named by the user, with a size limit.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::exit::{CliFailure, Result};

/// The content of a file of at most `limit` bytes. Larger files, including endless ones, are refused before they use memory.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| CliFailure::io(format_args!("read {}", path.display()), &error);
    let too_large = || CliFailure::usage(format!("{} has more than {limit} bytes: is it the right file?", path.display()));
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit { Err(too_large()) } else { Ok(bytes) }
}
