//! Real servers, certificates and a bad network for tests.
//!
//! Nothing here is published, and nothing is a mock.

mod error;
pub mod servers;

pub use error::{Error, Result};
