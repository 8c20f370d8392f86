//! Keys of stores.

use std::fmt::Write as _;

/// A name as a part of a backend's key: with `%` and hexadecimal digits instead of what could not be typed and instead of these characters.
pub fn percent_encoded(name: &str, special: &[char]) -> String {
    let mut text = String::with_capacity(name.len());
    for character in name.chars() {
        if matches!(character, '%' | '\0'..=' ' | '\x7f') || special.contains(&character) {
            // Writing into a String cannot fail.
            let _ = write!(text, "%{:02X}", u32::from(character));
        } else {
            text.push(character);
        }
    }
    text
}
