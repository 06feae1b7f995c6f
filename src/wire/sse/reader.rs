//! Server-sent events from the bytes of an upstream, as they come (the parser of the HTML standard). Holds the event under
//! way and the line that has not ended, together no more than the bound it was given; touches each byte a constant number
//! of times, and gives the same events however the reads are split.
//!
//! Data stays bytes: whoever reads a message out of it decides about its encoding.

use crate::limits::EVENT_ID_MAX;
use memchr::memchr2;

const BOM: &[u8] = b"\xef\xbb\xbf";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The last id that was told, by this event or one before it; empty: there is none to resume from.
    pub id: String,
    /// `message` where the server says nothing else.
    pub name: String,
    pub data: Vec<u8>,
}

/// An event, or what is skipped between two, is longer than the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub max: usize,
}

pub struct Reader {
    max: usize,
    /// The start of a line whose end has not come.
    line: Vec<u8>,
    /// The last byte was a CR that ended a line: an LF behind it belongs to it.
    after_cr: bool,
    /// How much of a byte order mark has been seen at the very start; none: the start is over.
    bom: Option<usize>,
    name: String,
    /// Of the event under way; each line of it ends with an LF.
    data: Vec<u8>,
    id: String,
    retry_ms: Option<u64>,
    failed: bool,
}

impl Reader {
    pub fn new(max: usize) -> Reader {
        Reader {
            max,
            line: Vec::new(),
            after_cr: false,
            bom: Some(0),
            name: String::new(),
            data: Vec::new(),
            id: String::new(),
            retry_ms: None,
            failed: false,
        }
    }

    /// Where to resume from, also when the event that told it had no data.
    pub fn last_event_id(&self) -> &str {
        &self.id
    }

    /// How long to wait before connecting again, as the server last asked.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// The memory it takes.
    pub fn held(&self) -> usize {
        self.line.capacity() + self.data.capacity()
    }

    /// Takes bytes from the front of `bytes` up to the end of the next event; nothing: all of them are taken, and no event
    /// has ended. An event that the end of the stream cuts off is none.
    pub fn read(&mut self, bytes: &mut &[u8]) -> Result<Option<Event>, TooLarge> {
        if self.failed {
            return self.too_large();
        }
        self.skip_bom(bytes);
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                *bytes = &bytes[1..];
                continue;
            }
            let Some(at) = memchr2(b'\n', b'\r', bytes) else {
                if self.line.len() + self.data.len() + bytes.len() > self.max {
                    return self.too_large();
                }
                self.line.extend_from_slice(bytes);
                *bytes = &[];
                break;
            };
            let (end, behind) = bytes.split_at(at);
            self.after_cr = behind[0] == b'\r';
            *bytes = &behind[1..];
            if self.line.len() + self.data.len() + end.len() > self.max {
                return self.too_large();
            }
            let event = if self.line.is_empty() {
                self.take_line(end)
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(end);
                let event = self.take_line(&line);
                line.clear();
                // A buffer for lines of the usual size is kept; that of a large one is not.
                self.line = if line.capacity() <= EVENT_ID_MAX { line } else { Vec::new() };
                event
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    fn too_large(&mut self) -> Result<Option<Event>, TooLarge> {
        (self.line, self.data, self.failed) = (Vec::new(), Vec::new(), true);
        Err(TooLarge { max: self.max })
    }

    /// A mark that is not whole was the start of the first line.
    fn skip_bom(&mut self, bytes: &mut &[u8]) {
        while let Some(seen) = self.bom
            && let Some(first) = bytes.first()
        {
            if *first == BOM[seen] {
                *bytes = &bytes[1..];
                self.bom = (seen + 1 < BOM.len()).then_some(seen + 1);
            } else {
                self.line.extend_from_slice(&BOM[..seen]);
                self.bom = None;
            }
        }
    }

    /// One line without its end; the event that it ends.
    fn take_line(&mut self, line: &[u8]) -> Option<Event> {
        if line.is_empty() {
            let (name, mut data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
            // The last line of the data ends with an LF that is not part of it. No line at all: no event.
            data.pop()?;
            let name = if name.is_empty() { "message".to_string() } else { name };
            return Some(Event { id: self.id.clone(), name, data });
        }
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" if value.len() <= EVENT_ID_MAX => self.name = String::from_utf8_lossy(value).into_owned(),
            b"id" if value.len() <= EVENT_ID_MAX && !value.contains(&0) => {
                self.id = String::from_utf8_lossy(value).into_owned();
            }
            b"retry" => {
                let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
                self.retry_ms = digits.and_then(|text| text.parse().ok()).or(self.retry_ms);
            }
            // Comments, and fields that nobody knows.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mutation::Mutator;
    use crate::wire::sse;

    #[derive(Debug, PartialEq)]
    struct Seen {
        events: Vec<Event>,
        id: String,
        retry_ms: Option<u64>,
        failed: bool,
    }

    fn read<'b>(max: usize, pieces: impl Iterator<Item = &'b [u8]>) -> Seen {
        let (mut reader, mut events) = (Reader::new(max), Vec::new());
        let mut failed = false;
        for mut piece in pieces {
            loop {
                match reader.read(&mut piece) {
                    Ok(Some(event)) => events.push(event),
                    Ok(None) => break assert!(piece.is_empty()),
                    Err(TooLarge { .. }) => break failed = true,
                }
            }
            assert!(reader.held() <= 4 * max + 4096);
        }
        Seen { events, id: reader.id, retry_ms: reader.retry_ms, failed }
    }

    fn at_once(text: &str) -> Seen {
        read(1 << 20, std::iter::once(text.as_bytes()))
    }

    fn event(id: &str, name: &str, data: &str) -> Event {
        Event { id: id.to_string(), name: name.to_string(), data: data.as_bytes().to_vec() }
    }

    #[test]
    fn events_have_their_fields_whatever_ends_their_lines() {
        for end in ["\n", "\r", "\r\n"] {
            let text = [
                "\u{feff}: hello",
                "",
                "event: endpoint",
                "data: /messages?x=1",
                "",
                "id: 7",
                "data:{",
                "data:  }",
                "ignored",
                "foo: bar",
                "",
                "retry: 1500",
                "retry: 1x",
                "id",
                "data",
                "",
                "data: cut off",
            ];
            let seen = at_once(&text.join(end));
            let expected =
                [event("", "endpoint", "/messages?x=1"), event("7", "message", "{\n }"), event("", "message", "")];
            assert_eq!(seen.events, expected, "{end:?}");
            assert_eq!((seen.retry_ms, seen.failed), (Some(1500), false));
        }
    }

    #[test]
    fn an_id_is_known_without_an_event_and_stays_until_the_next_one() {
        let seen = at_once("id: 1\n\ndata: a\n\ndata: b\n\nid: bad\0id\ndata: c\n\nevent: x\n\n");
        assert_eq!(seen.events, [event("1", "message", "a"), event("1", "message", "b"), event("1", "message", "c")]);
        let long = at_once(&format!("id: 1\nid: {}\n\n", "x".repeat(EVENT_ID_MAX + 1)));
        assert_eq!(long.id, "1");
    }

    #[test]
    fn only_a_whole_mark_at_the_very_start_is_skipped() {
        let seen = read(100, [b"\xef\xbb".as_slice(), b"\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"].into_iter());
        assert_eq!(seen.events, [event("", "message", "a")]);
        let half = read(100, [b"\xef".as_slice(), b"\xbbdata: a\n\ndata: b\n\n"].into_iter());
        assert_eq!(half.events, [event("", "message", "b")]);
    }

    #[test]
    fn what_we_write_we_read_back() {
        for data in ["", "a", "{\"a\":\n1}", " x ", "\n\n", ":"] {
            let mut out = Vec::new();
            sse::prime(&mut out, "0-1", 1000);
            sse::comment(&mut out, "quiet");
            sse::event(&mut out, Some("message"), Some("0-2"), data.as_bytes());
            let seen = read(1000, std::iter::once(&out[..]));
            assert_eq!(seen.events, [event("0-1", "message", ""), event("0-2", "message", data)]);
            assert_eq!(seen.retry_ms, Some(1000));
        }
    }

    #[test]
    fn any_split_gives_the_same() {
        let seeds: [&[u8]; 4] = [
            b"\xef\xbb\xbfid: 1\r\nevent: a\r\ndata: one\r\ndata: two\r\n\r\n",
            b": ping\n\nretry: 5\ndata: \xff\xfe\n\n",
            b"data\rid: 3\r\r\n\ndata:x\n\n",
            b"event:e\nid\ndata: 0123456789012345678901234567890123456789\n\n",
        ];
        for seed in 0..2000 {
            let mut mutator = Mutator::new(seed);
            let bytes = mutator.mutate(&seeds);
            let whole = read(40, std::iter::once(&bytes[..]));
            assert_eq!(read(40, bytes.chunks(1)), whole, "seed {seed}: {bytes:?}");
            let cut = mutator.below(bytes.len() + 1);
            let halves = [&bytes[..cut], &bytes[cut..]].into_iter().filter(|half| !half.is_empty());
            assert_eq!(read(40, halves), whole, "seed {seed} cut at {cut}: {bytes:?}");
        }
    }

    #[test]
    fn an_endless_event_is_refused_at_the_bound_and_holds_no_more_than_that() {
        const MAX: usize = 1 << 20;
        let line = vec![b'x'; 60_000];
        for (start, each) in
            [(&b"data: "[..], &line[..]), (b": ", &line), (b"", b"data: 0123456789\n"), (b"", b"data\n")]
        {
            let (mut reader, mut fed) = (Reader::new(MAX), 0);
            let mut bytes = start;
            assert_eq!(reader.read(&mut bytes), Ok(None));
            while reader.read(&mut &each[..]).is_ok() {
                assert!(reader.held() <= 4 * MAX);
                fed += each.len();
                assert!(fed < 100 << 20, "it is refused before 100 MB");
            }
            assert_eq!(reader.read(&mut &b"\n\ndata: a\n\n"[..]), Err(TooLarge { max: MAX }), "and stays so");
            assert!(reader.held() == 0);
        }
    }
}
