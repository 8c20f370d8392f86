//! Filters a list of keys piece by piece, in its own format. Buffers only the key that is still incomplete.

use memchr::{memchr, memchr2};

pub(crate) const KEY_BYTES_MAX: usize = 64 << 10;
/// The most bytes that a key may take as JSON: each written as `\u0000`.
const TOKEN_BYTES_MAX: usize = 6 * KEY_BYTES_MAX;

/// Why a list is refused, as a message.
pub(crate) type ListError = String;

/// A list in one of the supported formats.
#[derive(Debug)]
pub(crate) enum KeyList {
    /// One key per line; an empty line is the key of 0 bytes.
    Text(TextLines),
    /// A JSON array of strings.
    Json(JsonArray),
}

impl KeyList {
    /// The number of buffered bytes: those of the incomplete key.
    pub(crate) const fn begun(&self) -> usize {
        match self {
            Self::Text(lines) => lines.begun.len(),
            Self::Json(array) => array.begun.len(),
        }
    }

    pub(crate) fn feed(&mut self, chunk: &[u8], mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        match self {
            Self::Text(lines) => lines.feed(chunk, mine, out),
            Self::Json(array) => array.feed(chunk, mine, out),
        }
    }

    /// The list has ended.
    pub(crate) fn finish(&mut self, mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        match self {
            Self::Text(lines) => lines.finish(mine, out),
            Self::Json(array) => array.finish(out),
        }
    }
}

/// See [`KeyList::Text`].
#[derive(Debug, Default)]
pub(crate) struct TextLines {
    begun: Vec<u8>,
    number: u64,
}

impl TextLines {
    fn feed(&mut self, chunk: &[u8], mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        let mut rest = chunk;
        while let Some(end) = memchr(b'\n', rest) {
            if self.begun.is_empty() {
                self.key(&rest[..end], mine, out)?;
            } else {
                let mut begun = std::mem::take(&mut self.begun);
                begun.extend_from_slice(&rest[..end]);
                self.key(&begun, mine, out)?;
                begun.clear();
                self.begun = begun;
            }
            rest = &rest[end + 1..];
        }
        if self.begun.len() + rest.len() > KEY_BYTES_MAX {
            return Err(too_long(self.number + 1, "line"));
        }
        self.begun.extend_from_slice(rest);
        Ok(())
    }

    fn finish(&mut self, mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        let begun = std::mem::take(&mut self.begun);
        if begun.is_empty() { Ok(()) } else { self.key(&begun, mine, out) }
    }

    fn key(&mut self, key: &[u8], mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        self.number += 1;
        if key.len() > KEY_BYTES_MAX {
            return Err(too_long(self.number, "line"));
        }
        if std::str::from_utf8(key).is_err() {
            return Err(format!("line {}: the key is not UTF-8", self.number));
        }
        if mine(key) {
            out.extend_from_slice(key);
            out.push(b'\n');
        }
        Ok(())
    }
}

fn too_long(number: u64, what: &str) -> ListError {
    format!("{what} {number}: a key has at most {KEY_BYTES_MAX} bytes")
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ExpectedToken {
    #[default]
    Begin,
    FirstOrEnd,
    Key,
    CommaOrEnd,
    Nothing,
}

/// The position of the next byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum StringState {
    #[default]
    Outside,
    /// Between the quotes of a key.
    Inside,
    /// Inside a key, after a backslash.
    Escaped,
}

/// See [`KeyList::Json`].
#[derive(Debug, Default)]
pub(crate) struct JsonArray {
    next: ExpectedToken,
    place: StringState,
    has_escapes: bool,
    begun: Vec<u8>,
    number: u64,
    has_written: bool,
}

impl JsonArray {
    fn feed(&mut self, chunk: &[u8], mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        let mut rest = chunk;
        while let Some((first, behind)) = rest.split_first() {
            rest = if self.place == StringState::Outside {
                self.outside(*first)?;
                behind
            } else {
                self.inside(rest, mine, out)?
            };
        }
        Ok(())
    }

    fn outside(&mut self, byte: u8) -> Result<(), ListError> {
        self.next = match (self.next, byte) {
            (_, b' ' | b'\n' | b'\r' | b'\t') => return Ok(()),
            (ExpectedToken::Begin, b'[') => ExpectedToken::FirstOrEnd,
            (ExpectedToken::FirstOrEnd | ExpectedToken::CommaOrEnd, b']') => ExpectedToken::Nothing,
            (ExpectedToken::FirstOrEnd | ExpectedToken::Key, b'"') => {
                self.place = StringState::Inside;
                ExpectedToken::CommaOrEnd
            }
            (ExpectedToken::CommaOrEnd, b',') => ExpectedToken::Key,
            _ => return Err(format!("after {} keys: this is no JSON list of strings, such as [\"a\",\"b\"]", self.number)),
        };
        Ok(())
    }

    /// Consumes the part that belongs to the key and returns the rest.
    fn inside<'a>(&mut self, rest: &'a [u8], mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<&'a [u8], ListError> {
        let (taken, behind, is_end) = if self.place == StringState::Escaped {
            self.place = StringState::Inside;
            (&rest[..1], &rest[1..], false)
        } else {
            match memchr2(b'"', b'\\', rest) {
                None => (rest, &rest[rest.len()..], false),
                Some(at) if rest[at] == b'"' => (&rest[..at], &rest[at + 1..], true),
                Some(at) => {
                    (self.place, self.has_escapes) = (StringState::Escaped, true);
                    (&rest[..=at], &rest[at + 1..], false)
                }
            }
        };
        if self.begun.len() + taken.len() > TOKEN_BYTES_MAX {
            return Err(too_long(self.number + 1, "key"));
        }
        if !is_end {
            self.begun.extend_from_slice(taken);
            return Ok(behind);
        }
        self.place = StringState::Outside;
        if self.begun.is_empty() {
            self.key(taken, mine, out)?;
        } else {
            let mut begun = std::mem::take(&mut self.begun);
            begun.extend_from_slice(taken);
            self.key(&begun, mine, out)?;
            begun.clear();
            self.begun = begun;
        }
        self.has_escapes = false;
        Ok(behind)
    }

    /// Processes a complete key as written between its quotes.
    fn key(&mut self, token: &[u8], mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        self.number += 1;
        let bad = || format!("key {}: not a JSON string in UTF-8", self.number);
        let unescaped;
        let key = if self.has_escapes {
            let quoted = [b"\"", token, b"\""].concat();
            unescaped = serde_json::from_slice::<String>(&quoted).map_err(|_| bad())?;
            unescaped.as_bytes()
        } else if std::str::from_utf8(token).is_err() || token.iter().any(|byte| *byte < 0x20) {
            return Err(bad());
        } else {
            token
        };
        if key.len() > KEY_BYTES_MAX {
            return Err(too_long(self.number, "key"));
        }
        if mine(key) {
            out.extend_from_slice(if std::mem::replace(&mut self.has_written, true) { b",\"" } else { b"[\"" });
            out.extend_from_slice(token);
            out.push(b'"');
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), ListError> {
        if self.next != ExpectedToken::Nothing || self.place != StringState::Outside {
            return Err(format!("after {} keys: the JSON list has no end", self.number));
        }
        out.extend_from_slice(if self.has_written { b"]" } else { b"[]" });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(mut list: KeyList, bytes: &[u8], piece: usize, mine: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, ListError> {
        let mut out = Vec::new();
        for chunk in bytes.chunks(piece) {
            list.feed(chunk, &mine, &mut out)?;
        }
        list.finish(&mine, &mut out)?;
        Ok(out)
    }

    fn json(bytes: &[u8], piece: usize) -> Result<Vec<u8>, ListError> {
        filter(KeyList::Json(JsonArray::default()), bytes, piece, |_: &[u8]| true)
    }

    fn text(bytes: &[u8], piece: usize) -> Result<Vec<u8>, ListError> {
        filter(KeyList::Text(TextLines::default()), bytes, piece, |_: &[u8]| true)
    }

    #[test]
    fn however_a_list_is_cut_the_same_keys_come_out() {
        let keys = ["", "a", "tenant-7", "größe 🦀", "quote\" back\\slash \n tab\t nul\u{0}", "/\u{7f}", "x\u{e000}"];
        let list = serde_json::to_vec(&keys).unwrap();
        for piece in 1..list.len() {
            let seen = std::cell::RefCell::new(Vec::new());
            let mine = |key: &[u8]| {
                seen.borrow_mut().push(String::from_utf8(key.to_vec()).unwrap());
                key.len().is_multiple_of(2)
            };
            let out = filter(KeyList::Json(JsonArray::default()), &list, piece, mine).unwrap();
            assert_eq!(seen.borrow().as_slice(), keys, "in pieces of {piece}");
            let kept: Vec<_> = keys.into_iter().filter(|key| key.len() % 2 == 0).collect();
            assert_eq!(serde_json::from_slice::<Vec<String>>(&out).unwrap(), kept);
        }
        let lines = "a\n\nb\nlast";
        for piece in 1..lines.len() {
            assert_eq!(text(lines.as_bytes(), piece).unwrap(), b"a\n\nb\nlast\n", "in pieces of {piece}");
        }
        assert_eq!((text(b"", 1).unwrap(), text(b"\n", 1).unwrap()), (b"".to_vec(), b"\n".to_vec()));
    }

    #[test]
    fn what_is_no_list_of_texts_is_refused_as_the_json_parser_does() {
        let cases = [
            "",
            " ",
            "[",
            "]",
            "{}",
            "[1]",
            "[null]",
            "[\"a\"",
            "[\"a\",]",
            "[,\"a\"]",
            "[\"a\"\"b\"]",
            "[\"a\"] x",
            "[\"a\"][",
            "[[\"a\"]]",
            "\"a\"",
            "[\"\\x\"]",
            "[\"\\ud800\"]",
            "[\"\u{1}\"]",
            "[\"a]",
            "[\"\\\"]",
            "[\"\\u12\"]",
            " [ ] ",
            "[ \"a\" , \"b\"\n]",
            "[\"\\ud83e\\udd80\"]",
            "[\"\"]",
        ];
        for case in cases {
            for piece in 1..=case.len().max(1) {
                let wanted = serde_json::from_str::<Vec<String>>(case).ok();
                let got = json(case.as_bytes(), piece).ok().map(|out| serde_json::from_slice::<Vec<String>>(&out).unwrap());
                assert_eq!(got, wanted, "{case:?} in pieces of {piece}");
            }
        }
        for bad in [&b"[\"\xff\"]"[..], b"[\"a\xc3\"]"] {
            assert!(json(bad, 3).is_err());
        }
        assert!(text(b"a\n\xff\n", 2).unwrap_err().contains("line 2"));
    }

    #[test]
    fn a_key_has_64_kib_and_not_a_byte_more() {
        let longest = "x".repeat(KEY_BYTES_MAX);
        let (fits, more) = (format!("[\"{longest}\"]"), format!("[\"{longest}x\"]"));
        for piece in [1_000, 100_000, 1_000_000] {
            assert_eq!(json(fits.as_bytes(), piece).unwrap(), fits.as_bytes());
            assert!(json(more.as_bytes(), piece).unwrap_err().contains("65536"));
            assert_eq!(text(longest.as_bytes(), piece).unwrap().len(), KEY_BYTES_MAX + 1);
            assert!(text(format!("a\n{longest}x").as_bytes(), piece).unwrap_err().contains("line 2"));
        }
        let escaped = format!("[\"{}\"]", "\\u0041".repeat(KEY_BYTES_MAX));
        assert!(json(escaped.as_bytes(), 999).is_ok());
        assert!(json(escaped.replacen("\\u0041", "\\u0041A", 1).as_bytes(), 999).is_err());
        let endless = format!("[\"{}", "x".repeat(TOKEN_BYTES_MAX + 1));
        assert!(json(endless.as_bytes(), 4_096).is_err(), "it is not kept until its end comes");
    }
}
