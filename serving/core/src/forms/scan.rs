//! Walks through the JSON text around tensors; the tensors' own text is found here and read elsewhere.

use memchr::{memchr2, memchr3, memrchr};

/// A place in a text.
#[derive(Clone, Copy)]
pub(crate) struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// The next character that is no space.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.text.get(self.at)? {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                other => return Some(other),
            }
        }
    }

    /// Takes a character; `None` where another one comes.
    pub(crate) fn take(&mut self, wanted: u8) -> Option<()> {
        let found = self.peek()?;
        self.at += 1;
        (found == wanted).then_some(())
    }

    /// Nothing but spaces comes.
    pub(crate) fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }

    /// Takes a string; one with escapes or control characters is not usual.
    pub(crate) fn string(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        let rest = &self.text[self.at..];
        let size = memchr2(b'"', b'\\', rest)?;
        let found = &rest[..size];
        if matches!(rest[size], b'\\') || found.iter().any(|&byte| byte < b' ') {
            return None;
        }
        self.at += size + 1;
        std::str::from_utf8(found).ok()
    }

    /// Takes the members of an object: `member` takes the value of each key.
    pub(crate) fn object(&mut self, mut member: impl FnMut(&mut Self, &'a str) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if let b'}' = self.peek()? {
            return self.take(b'}');
        }
        loop {
            let key = self.string()?;
            self.take(b':')?;
            member(self, key)?;
            if self.last(b'}')? {
                return Some(());
            }
        }
    }

    /// Takes the items of a list.
    pub(crate) fn list(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(b'[')?;
        if let b']' = self.peek()? {
            return self.take(b']');
        }
        loop {
            item(self)?;
            if self.last(b']')? {
                return Some(());
            }
        }
    }

    /// Takes what follows an item: a comma, or the end.
    fn last(&mut self, close: u8) -> Option<bool> {
        let found = self.peek()?;
        self.at += 1;
        match found {
            b',' => Some(false),
            other => (other == close).then_some(true),
        }
    }

    /// What `take` takes, as text.
    pub(crate) fn span(&mut self, take: impl FnOnce(&mut Self) -> Option<()>) -> Option<&'a [u8]> {
        let begin = self.at;
        take(self)?;
        Some(&self.text[begin..self.at])
    }

    /// Takes the text of a tensor: nested lists or a single value. Its reader checks that nothing but
    /// numbers stands in the lists.
    pub(crate) fn tensor(&mut self) -> Option<&'a [u8]> {
        let begin = match self.peek()? {
            b'[' => self.at,
            b'"' | b'{' => return None,
            _ => {
                let begin = self.at;
                let rest = &self.text[begin..];
                self.at += memchr3(b',', b']', b'}', rest).unwrap_or(rest.len());
                return Some(&self.text[begin..self.at]);
            }
        };
        // Behind it comes the name of another member, or the end of its object. What is between is for its reader.
        let rest = &self.text[begin..];
        let size = memrchr(b']', &rest[..memchr2(b'"', b'}', rest)?])? + 1;
        self.at += size;
        Some(&rest[..size])
    }

    /// Takes a whole number that is not negative.
    pub(crate) fn size(&mut self) -> Option<usize> {
        self.peek()?;
        let rest = &self.text[self.at..];
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = &rest[..count];
        // No number begins with a zero but zero.
        if matches!(digits, [b'0', _, ..]) {
            return None;
        }
        self.at += count;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Takes a boolean.
    pub(crate) fn boolean(&mut self) -> Option<bool> {
        self.peek()?;
        let (value, size) = match &self.text[self.at..] {
            [b't', b'r', b'u', b'e', ..] => (true, 4),
            [b'f', b'a', b'l', b's', b'e', ..] => (false, 5),
            _ => return None,
        };
        self.at += size;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_end_where_their_lists_do() {
        for (text, tensor) in [
            ("[1]}", Some("[1]")),
            (" [[1],[2]] , \"b\": [3]", Some("[[1],[2]]")),
            ("[1]}]}", Some("[1]")),
            ("1.5}", Some("1.5")),
            ("true ,", Some("true ")),
            // Its reader finds out.
            ("[[1]}", Some("[[1]")),
            ("[[1],\"a\"]}", Some("[[1]")),
            ("[1]", None),
            ("\"a\"", None),
            ("{}", None),
            ("", None),
        ] {
            assert_eq!(Scan::new(text.as_bytes()).tensor(), tensor.map(str::as_bytes), "{text}");
        }
    }

    #[test]
    fn sizes_and_strings_are_plain() {
        let size = |text: &str| Scan::new(text.as_bytes()).size();
        assert_eq!((size(" 12,"), size("0]"), size("01"), size("-1"), size("")), (Some(12), Some(0), None, None, None));
        assert_eq!(size("99999999999999999999999"), None);
        let string = |text: &'static str| Scan::new(text.as_bytes()).string();
        assert_eq!(
            (string(" \"ä\""), string("\"a\\n\""), string("\"a"), string("\"\n\"")),
            (Some("ä"), None, None, None)
        );
    }
}
