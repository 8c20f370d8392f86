//! Texts as messages quote them.

use shardwise_discovery::settings::without_user;

/// The most characters of a text that a message quotes.
const SHOWN_CHARS_MAX: usize = 80;

pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A text for messages: in quotes, on one line, shortened, and without the user and password of a URL.
pub fn shown(text: &str) -> String {
    format!("{:?}", shortened(&without_user(text)))
}
