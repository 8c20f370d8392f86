//! An error with its causes.

use std::error::Error;
use std::fmt;

/// Writes an error's `Display` text on one line, followed by each cause that says more than the text. As the `Debug` of an error
/// type it reads well when `main` returns the error.
///
/// # Errors
///
/// Those of the formatter.
pub fn write_with_causes(f: &mut fmt::Formatter<'_>, error: &dyn Error) -> fmt::Result {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        // A cause that only puts the name of an operation before the text says no more.
        if !text.contains(&said) && !said.ends_with(&format!(": {text}")) {
            text = format!("{text}; cause: {said}");
        }
        next = cause.source();
    }
    f.write_str(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    impl fmt::Debug for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_with_causes(f, self)
        }
    }

    #[test]
    fn each_cause_is_written_once() {
        let layer = |text, source: Option<Layer>| Layer { text, source: source.map(Box::new) };
        let root = layer("no such file", None);
        let middle = layer("cannot read a.toml: no such file", Some(root));
        assert_eq!(format!("{middle:?}"), "cannot read a.toml: no such file");
        assert_eq!(format!("{:?}", layer("not started", Some(middle))), "not started; cause: cannot read a.toml: no such file");
        assert_eq!(format!("{:?}", layer("no right to read", Some(layer("watch: no right to read", None)))), "no right to read");
    }
}
