//! The fields of a head that nearly every request is asked for: they are found once, when the head has come, and not looked for
//! by each who asks. Owns their names.

/// In the order of the table that `http_in` keeps of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    Accept,
    Authorization,
    ContentType,
    Origin,
    McpSessionId,
    McpProtocolVersion,
}

impl Common {
    pub const COUNT: usize = 6;

    fn name(self) -> &'static [u8] {
        match self {
            Common::Accept => b"accept",
            Common::Authorization => b"authorization",
            Common::ContentType => b"content-type",
            Common::Origin => b"origin",
            Common::McpSessionId => b"mcp-session-id",
            Common::McpProtocolVersion => b"mcp-protocol-version",
        }
    }

    pub fn of(name: &[u8]) -> Option<Common> {
        // By length first: most fields are none of these.
        let common = match name.len() {
            6 if name[0].eq_ignore_ascii_case(&b'a') => Common::Accept,
            6 => Common::Origin,
            12 => Common::ContentType,
            13 => Common::Authorization,
            14 => Common::McpSessionId,
            20 => Common::McpProtocolVersion,
            _ => return None,
        };
        name.eq_ignore_ascii_case(common.name()).then_some(common)
    }
}

/// Whether `value`, of a Content-Type, names this media type, with whatever parameters.
pub fn is_media(value: &[u8], media: &str) -> bool {
    let is_it = |essence: &[u8]| essence.eq_ignore_ascii_case(media.as_bytes());
    // Nearly everybody writes it as we do.
    value == media.as_bytes()
        || value.split(|byte| *byte == b';').next().is_some_and(|essence| is_it(essence.trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_field_is_known_however_it_is_spelt_and_no_other_is() {
        let all = [
            Common::Accept,
            Common::Authorization,
            Common::ContentType,
            Common::Origin,
            Common::McpSessionId,
            Common::McpProtocolVersion,
        ];
        assert_eq!(all.len(), Common::COUNT);
        for (at, field) in all.into_iter().enumerate() {
            assert_eq!(field as usize, at);
            assert_eq!(Common::of(field.name()), Some(field));
            assert_eq!(Common::of(&field.name().to_ascii_uppercase()), Some(field));
            for at in 0..field.name().len() {
                let mut other = field.name().to_vec();
                other[at] = b'~';
                assert_eq!(Common::of(&other), None);
            }
        }
        for other in ["", "host", "cookie", "content-length", "accept-encoding"] {
            assert_eq!(Common::of(other.as_bytes()), None, "{other}");
        }
    }
}
