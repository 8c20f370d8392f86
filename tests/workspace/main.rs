//! What holds for the whole workspace. It is not part of the published package, which has neither the other crates nor the documents.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests; what cannot be read should stop them")]

mod comments;
mod dependencies;
mod import_cycles;
mod imports;
mod layering;
mod metrics_page;
mod names;
mod tables;
