//! Filters a list of keys piece by piece, in its own format. Buffers only the key that is still incomplete.

use memchr::{memchr, memchr2};

pub(crate) const KEY_BYTES_MAX: usize = 64 << 10;
/// The most bytes that a key may take as JSON: each written as `\u0000`.
const TOKEN_BYTES_MAX: usize = 6 * KEY_BYTES_MAX;

/// Why a list is refused, as a message.
pub(crate) type ListError = String;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListFormat {
    /// One key per line; an empty line is the key of 0 bytes.
    Text,
    /// A JSON array of strings.
    Json,
}

/// The position of the next byte of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonPlace {
    Begin,
    FirstOrEnd,
    Key,
    /// Between the quotes of a key.
    Inside,
    /// Inside a key, after a backslash.
    Escaped,
    CommaOrEnd,
    Behind,
}

#[derive(Debug)]
pub(crate) struct KeyList {
    format: ListFormat,
    place: JsonPlace,
    /// The incomplete key as it is written, and whether it has escapes of JSON.
    begun: Vec<u8>,
    has_escapes: bool,
    /// How many keys were complete.
    number: u64,
    has_written: bool,
}

impl KeyList {
    pub(crate) const fn new(format: ListFormat) -> Self {
        Self { format, place: JsonPlace::Begin, begun: Vec::new(), has_escapes: false, number: 0, has_written: false }
    }

    /// The number of buffered bytes: those of the incomplete key.
    pub(crate) const fn begun(&self) -> usize {
        self.begun.len()
    }

    pub(crate) fn feed(&mut self, chunk: &[u8], mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        let mut rest = chunk;
        while let Some((first, behind)) = rest.split_first() {
            rest = match (self.format, self.place) {
                (ListFormat::Text, _) => self.line(rest, mine, out)?,
                (ListFormat::Json, JsonPlace::Inside | JsonPlace::Escaped) => self.inside(rest, mine, out)?,
                (ListFormat::Json, _) => {
                    self.outside(*first)?;
                    behind
                }
            };
        }
        Ok(())
    }

    /// The list has ended.
    pub(crate) fn finish(&mut self, mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        match self.format {
            ListFormat::Text if self.begun.is_empty() => {}
            ListFormat::Text => self.part(&[], true, mine, out)?,
            ListFormat::Json if self.place != JsonPlace::Behind => {
                return Err(format!("after {} keys: the JSON list has no end", self.number));
            }
            ListFormat::Json => out.extend_from_slice(if self.has_written { b"]" } else { b"[]" }),
        }
        Ok(())
    }

    /// Consumes the part that belongs to the line and returns the rest.
    fn line<'a>(&mut self, rest: &'a [u8], mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<&'a [u8], ListError> {
        let (taken, behind, is_end) = match memchr(b'\n', rest) {
            None => (rest, &rest[rest.len()..], false),
            Some(at) => (&rest[..at], &rest[at + 1..], true),
        };
        self.part(taken, is_end, mine, out)?;
        Ok(behind)
    }

    fn outside(&mut self, byte: u8) -> Result<(), ListError> {
        self.place = match (self.place, byte) {
            (place, b' ' | b'\n' | b'\r' | b'\t') => place,
            (JsonPlace::Begin, b'[') => JsonPlace::FirstOrEnd,
            (JsonPlace::FirstOrEnd | JsonPlace::CommaOrEnd, b']') => JsonPlace::Behind,
            (JsonPlace::FirstOrEnd | JsonPlace::Key, b'"') => JsonPlace::Inside,
            (JsonPlace::CommaOrEnd, b',') => JsonPlace::Key,
            _ => return Err(format!("after {} keys: this is no JSON list of strings, such as [\"a\",\"b\"]", self.number)),
        };
        Ok(())
    }

    /// Consumes the part that belongs to the key and returns the rest.
    fn inside<'a>(&mut self, rest: &'a [u8], mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<&'a [u8], ListError> {
        let (taken, behind, place) = if self.place == JsonPlace::Escaped {
            (&rest[..1], &rest[1..], JsonPlace::Inside)
        } else {
            match memchr2(b'"', b'\\', rest) {
                None => (rest, &rest[rest.len()..], JsonPlace::Inside),
                Some(at) if rest[at] == b'"' => (&rest[..at], &rest[at + 1..], JsonPlace::CommaOrEnd),
                Some(at) => (&rest[..=at], &rest[at + 1..], JsonPlace::Escaped),
            }
        };
        (self.place, self.has_escapes) = (place, self.has_escapes || place == JsonPlace::Escaped);
        self.part(taken, place == JsonPlace::CommaOrEnd, mine, out)?;
        Ok(behind)
    }

    /// Takes a part of a key as it is written, which may be the last one.
    fn part(&mut self, part: &[u8], is_end: bool, mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        let most = if self.format == ListFormat::Text { KEY_BYTES_MAX } else { TOKEN_BYTES_MAX };
        if self.begun.len() + part.len() > most {
            return Err(self.too_long(self.number + 1));
        }
        if !is_end {
            self.begun.extend_from_slice(part);
            return Ok(());
        }
        self.number += 1;
        if self.begun.is_empty() {
            return self.key(part, mine, out);
        }
        let mut begun = std::mem::take(&mut self.begun);
        begun.extend_from_slice(part);
        self.key(&begun, mine, out)?;
        begun.clear();
        self.begun = begun;
        Ok(())
    }

    /// Writes a complete key again, if it is mine.
    fn key(&mut self, token: &[u8], mine: &impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) -> Result<(), ListError> {
        if self.format == ListFormat::Text {
            if std::str::from_utf8(token).is_err() {
                return Err(format!("line {}: the key is not UTF-8", self.number));
            }
            if mine(token) {
                out.extend_from_slice(token);
                out.push(b'\n');
            }
            return Ok(());
        }
        let number = self.number;
        let bad = || format!("key {number}: not a JSON string in UTF-8");
        let unescaped;
        let key = if std::mem::take(&mut self.has_escapes) {
            let quoted = [b"\"", token, b"\""].concat();
            unescaped = serde_json::from_slice::<String>(&quoted).map_err(|_| bad())?;
            unescaped.as_bytes()
        } else if std::str::from_utf8(token).is_err() || token.iter().any(|byte| *byte < 0x20) {
            return Err(bad());
        } else {
            token
        };
        if key.len() > KEY_BYTES_MAX {
            return Err(self.too_long(number));
        }
        if mine(key) {
            out.extend_from_slice(if std::mem::replace(&mut self.has_written, true) { b",\"" } else { b"[\"" });
            out.extend_from_slice(token);
            out.push(b'"');
        }
        Ok(())
    }

    fn too_long(&self, number: u64) -> ListError {
        let what = if self.format == ListFormat::Text { "line" } else { "key" };
        format!("{what} {number}: a key has at most {KEY_BYTES_MAX} bytes")
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
        filter(KeyList::new(ListFormat::Json), bytes, piece, |_: &[u8]| true)
    }

    fn text(bytes: &[u8], piece: usize) -> Result<Vec<u8>, ListError> {
        filter(KeyList::new(ListFormat::Text), bytes, piece, |_: &[u8]| true)
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
            let out = filter(KeyList::new(ListFormat::Json), &list, piece, mine).unwrap();
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
