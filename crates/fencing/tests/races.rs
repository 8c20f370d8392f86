//! To be written in a moment.
