//! Times as text: RFC 3339 in bodies, and the `Date` of a head. UTC, without a library and without leap seconds, which
//! the system's clock does not have either.

/// `2026-02-17T10:00:00.000Z`
pub fn rfc3339(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second, milli) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// `90d`, `12h`, `5m` or `30s`, in milliseconds.
pub fn parse_duration(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit_ms = match unit {
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 24 * 3_600_000,
        _ => return None,
    };
    let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| plain)?.checked_mul(unit_ms)
}

/// The milliseconds after 1970 of a time such as `2026-02-17T10:00:00.5+01:00`; none if it is no time, or before 1970.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| -> Option<u64> {
        let digits = text.get(range)?;
        if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
    };
    let is = |at: usize, letters: &[u8]| text.as_bytes().get(at).is_some_and(|byte| letters.contains(byte));
    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt") && is(13, b":") && is(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let fraction = text[19..].strip_prefix('.').map_or("", |rest| {
        let end = rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        &rest[..end]
    });
    let after = &text[19 + if text[19..].starts_with('.') { 1 + fraction.len() } else { 0 }..];
    let millis: u64 = format!("{:0<3}", fraction.get(..3).unwrap_or(fraction)).parse().ok()?;
    let days = (365 * year.checked_sub(1970)?..=366 * (year - 1969))
        .find(|days| civil_from_days(*days) == (year, month, day))?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let local_ms = ((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + millis;
    let (sign, offset) = match after.as_bytes() {
        [b'Z' | b'z'] => return Some(local_ms),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] if [h1, h2, m1, m2].iter().all(|byte| byte.is_ascii_digit()) => {
            let two = |a: &u8, b: &u8| u64::from(a - b'0') * 10 + u64::from(b - b'0');
            (*sign, (two(h1, h2) * 60 + two(m1, m2)) * 60_000)
        }
        _ => return None,
    };
    if sign == b'+' { local_ms.checked_sub(offset) } else { Some(local_ms + offset) }
}

/// The header line that says when an answer was written.
pub fn date_line(unix_secs: u64) -> String {
    format!("Date: {}\r\n", http_date(unix_secs))
}

/// `Tue, 17 Feb 2026 10:00:00 GMT` (RFC 9110, 5.6.7).
fn http_date(unix_secs: u64) -> String {
    // 1970 began on a Thursday.
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, secs) = (unix_secs / 86_400, unix_secs % 86_400);
    let (year, month, day) = civil_from_days(days);
    let (name, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    format!("{name}, {day:02} {month} {year:04} {:02}:{:02}:{:02} GMT", secs / 3600, secs / 60 % 60, secs % 60)
}

/// Year, month and day of so many days after 1970-01-01, in eras of 400 years that begin on a 1st of March: leap days
/// then come last in their year, and the lengths of months follow one line (Howard Hinnant, `civil_from_days`).
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    const FROM_0000_03_01: u64 = 719_468;
    let days = days + FROM_0000_03_01;
    let (era, of_era) = (days / ERA, days % ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        for (text, ms) in [("1s", 1_000), ("5m", 300_000), ("12h", 43_200_000), ("90d", 7_776_000_000), ("0d", 0)] {
            assert_eq!(parse_duration(text), Some(ms), "{text}");
        }
        for wrong in
            ["", "d", "90", "+1d", "-1d", "1.5h", "1 d", "1w", "1D", "1é", "99999999999999999999s", "9999999999999999d"]
        {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_are_shown_in_utc() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(unix_ms), text);
        }
        rfc3339(u64::MAX);
    }

    #[test]
    fn times_are_read_back_in_every_spelling() {
        for unix_ms in [0, 951_782_399_999, 951_782_400_000, 1_709_164_800_001, 253_402_300_799_999] {
            assert_eq!(parse_rfc3339(&rfc3339(unix_ms)), Some(unix_ms));
        }
        let ten = Some(1_771_322_400_000);
        for text in [
            "2026-02-17T10:00:00Z",
            "2026-02-17t10:00:00z",
            "2026-02-17T11:30:00+01:30",
            "2026-02-17T09:00:00.000000-01:00",
        ] {
            assert_eq!(parse_rfc3339(text), ten, "{text}");
        }
        assert_eq!(parse_rfc3339("2026-02-17T10:00:00.5Z"), ten.map(|ms| ms + 500));
        for bad in [
            "",
            "now",
            "2026-02-30T10:00:00Z",
            "2026-02-17",
            "2026-02-17T10:00:00",
            "2026-02-17T24:00:00Z",
            "1969-01-01T00:00:00Z",
            "1970-01-01T00:00:00+01:00",
            "2026-02-17T10:00:00é",
            "2026-02-17T10:0é:00Z",
        ] {
            assert_eq!(parse_rfc3339(bad), None, "{bad}");
        }
    }

    #[test]
    fn days_follow_each_other_through_eight_hundred_years() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..800 * 365 {
            assert_eq!(civil_from_days(days), (year, month, day));
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            (year, month, day) = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, day) if day == last => (year, month + 1, 1),
                (_, day) => (year, month, day + 1),
            };
        }
    }

    #[test]
    fn a_head_says_its_date_the_way_http_does() {
        for (unix_ms, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777_999, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_778_000, "Sun, 06 Nov 1994 08:49:38 GMT"),
            (951_782_400_000, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_771_322_400_500, "Tue, 17 Feb 2026 10:00:00 GMT"),
            (1_771_322_400_000, "Tue, 17 Feb 2026 10:00:00 GMT"),
        ] {
            assert_eq!(date_line(unix_ms / 1000), format!("Date: {text}\r\n"));
        }
    }
}
