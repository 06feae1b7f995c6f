//! Amounts as people write them: cores as `"0.5"` or `"500m"`, bytes as `"512M"` or `"1Gi"`. Reading is strict, and
//! what is shown reads back as the same amount.

use serde_json::Value;

const UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// Thousandths of a core, from `0.5`, `"0.5"` or `"500m"`.
pub fn cpu_milli(value: &Value) -> Option<u32> {
    let text = text_of(value)?;
    if let Some(milli) = text.strip_suffix('m') {
        return digits(milli)?.try_into().ok();
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, "0"));
    if fraction.is_empty() || fraction.len() > 3 {
        return None;
    }
    let thousandths = digits(fraction)? * [100, 10, 1][fraction.len() - 1];
    digits(whole)?.checked_mul(1000)?.checked_add(thousandths)?.try_into().ok()
}

/// Bytes, from a plain integer or one with a unit. `K`, `M`, `G`, `T` and `P` are powers of 1024 in either case, with or
/// without `i` and `B` after them: that is what docker makes of them, and what memory is counted in.
pub fn bytes(value: &Value) -> Option<u64> {
    let text = text_of(value)?;
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[number.len()..] {
        "" | "B" | "b" => 0,
        unit => {
            let (letter, rest) = unit.split_at(1);
            let (_, shift) = UNITS.iter().find(|(name, _)| letter.eq_ignore_ascii_case(&name.to_string()))?;
            if !matches!(rest, "" | "i" | "B" | "b" | "iB") {
                return None;
            }
            *shift
        }
    };
    digits(number)?.checked_mul(1 << shift)
}

/// A number as its shortest text, so that it is read like a string.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.clone()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Only digits: `parse` alone would take a sign.
fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// `0.5`, `2`.
pub fn show_cpu(milli: u32) -> String {
    match milli % 1000 {
        0 => format!("{}", milli / 1000),
        part => format!("{}.{part:03}", milli / 1000).trim_end_matches('0').to_string(),
    }
}

/// `512M`, `1G`: the largest unit that leaves no rest.
pub fn show_bytes(bytes: u64) -> String {
    match UNITS.iter().rev().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cores_are_read_exactly_or_not_at_all() {
        for (value, milli) in [
            (json!(0.5), 500),
            (json!(2), 2000),
            (json!(2.0), 2000),
            (json!(0.001), 1),
            (json!("0.5"), 500),
            (json!("1"), 1000),
            (json!("1.25"), 1250),
            (json!("00.125"), 125),
            (json!("500m"), 500),
            (json!("0"), 0),
        ] {
            assert_eq!(cpu_milli(&value), Some(milli), "{value}");
        }
        let strings = [
            "",
            ".",
            ".5",
            "1.",
            "-1",
            "+1",
            " 1",
            "1 ",
            "1e3",
            "NaN",
            "inf",
            "0x1",
            "1,5",
            "0.0001",
            "1.5m",
            "m",
            "1M",
            "4294968",
            "99999999999999999999",
            "4294967296m",
            "１",
        ];
        for value in strings.iter().map(|text| json!(text)).chain([json!(-1), json!(1e30), json!(1e-9), json!(true)]) {
            assert_eq!(cpu_milli(&value), None, "{value}");
        }
    }

    #[test]
    fn bytes_are_read_with_docker_s_units() {
        for (value, bytes_) in [
            (json!(1024), 1024),
            (json!("1024"), 1024),
            (json!("7b"), 7),
            (json!("1k"), 1 << 10),
            (json!("512M"), 512 << 20),
            (json!("512m"), 512 << 20),
            (json!("512MB"), 512 << 20),
            (json!("512MiB"), 512 << 20),
            (json!("1G"), 1 << 30),
            (json!("1Gi"), 1 << 30),
            (json!("2T"), 2 << 40),
        ] {
            assert_eq!(bytes(&value), Some(bytes_), "{value}");
        }
        let strings = [
            "",
            "M",
            "-1M",
            "+1M",
            "1 M",
            " 1M",
            "1M ",
            "1.5G",
            "1e3",
            "1X",
            "1MX",
            "1Mib",
            "1iB",
            "MiB",
            "NaN",
            "1é",
            "0x10",
            "99999999999999999999",
            "16384P",
            "18446744073709551615K",
        ];
        for value in strings.iter().map(|text| json!(text)).chain([json!(-1), json!(1.5), json!(1e30), json!(null)]) {
            assert_eq!(bytes(&value), None, "{value}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for (milli, text) in [(500, "0.5"), (10, "0.01"), (1, "0.001"), (1000, "1"), (1250, "1.25"), (10_000, "10")] {
            assert_eq!((show_cpu(milli).as_str(), cpu_milli(&json!(text))), (text, Some(milli)));
        }
        for (amount, text) in
            [(512 << 20, "512M"), (1 << 30, "1G"), (1536 << 20, "1536M"), (1000, "1000"), (1 << 50, "1P"), (0, "0")]
        {
            assert_eq!((show_bytes(amount).as_str(), bytes(&json!(text))), (text, Some(amount)));
        }
    }
}
