//! Text for people: aligned columns, key and value, durations. Never colours, and never lets a string that came from a
//! server act on the terminal: control characters are shown, not sent.

use std::io::{self, Write};

/// Shown where there is nothing, so that columns can still be counted.
pub const NOTHING: &str = "-";
const GAP: usize = 2;
/// A cell is never cut shorter than this, however narrow the terminal.
const CUT_MIN: usize = 10;

pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(header: &[&str]) -> Table {
        Table { rows: vec![header.iter().map(|title| title.to_uppercase()).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.rows[0].len());
        let shown = |cell: &String| if cell.is_empty() { NOTHING.to_string() } else { one_line(cell) };
        self.rows.push(cells.iter().map(shown).collect());
    }

    /// With a terminal's `width` the last column is cut to fit it; without one nothing is.
    pub fn write(&self, out: &mut impl Write, width: Option<usize>) -> io::Result<()> {
        let columns = self.rows[0].len();
        let widest = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(widest).collect();
        let before_last: usize = widths.iter().take(columns - 1).map(|width| width + GAP).sum();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths).take(columns - 1) {
                line += &format!("{cell:width$}{:GAP$}", "");
            }
            let last = &row[columns - 1];
            line += &match width {
                Some(width) => cut(last, width.saturating_sub(before_last).max(CUT_MIN)),
                None => last.clone(),
            };
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// `key:  value` lines, the values aligned. Values of several lines are indented below their key.
pub fn write_pairs(out: &mut impl Write, pairs: &[(&str, String)]) -> io::Result<()> {
    let width = pairs.iter().map(|(key, _)| key.len() + 1).max().unwrap_or(0);
    for (key, value) in pairs {
        let mut lines = value.lines();
        let key = format!("{key}:");
        writeln!(out, "{key:width$}{:GAP$}{}", "", one_line(lines.next().unwrap_or(NOTHING)))?;
        for line in lines {
            writeln!(out, "{:width$}{:GAP$}{}", "", "", one_line(line))?;
        }
    }
    Ok(())
}

/// The text in one line: white space becomes a space, control characters their visible stand-ins.
pub fn one_line(text: &str) -> String {
    visible(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The text with every control character but tabs made visible.
pub fn visible(text: &str) -> String {
    let stand_in = |c: char| match c {
        '\t' => c,
        '\0'..='\x1f' => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
        '\x7f'..='\u{9f}' => '\u{fffd}',
        // These reorder what follows on the line.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c => c,
    };
    text.chars().map(stand_in).collect()
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    let kept: String = text.chars().take(width - 1).collect();
    format!("{}…", kept.trim_end())
}

/// `512M`, `1.5G`: a size as people say it.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        None => format!("{bytes}B"),
        Some((name, unit)) if bytes.is_multiple_of(*unit) => format!("{}{name}", bytes / unit),
        Some((name, unit)) => format!("{:.1}{name}", bytes as f64 / *unit as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(table: &Table, width: Option<usize>) -> String {
        let mut out = Vec::new();
        table.write(&mut out, width).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_space() {
        let mut table = Table::new(&["name", "status", "image"]);
        table.row(vec!["a".into(), "ready".into(), String::new()]);
        table.row(vec!["longer-name".into(), String::new(), "x:1".into()]);
        assert_eq!(
            shown(&table, None),
            "NAME         STATUS  IMAGE\na            ready   -\nlonger-name  -       x:1\n"
        );
    }

    #[test]
    fn letters_of_more_than_one_byte_count_as_one_column() {
        let mut table = Table::new(&["n", "d"]);
        table.row(vec!["äöü".into(), "x".into()]);
        assert_eq!(shown(&table, None), "N    D\näöü  x\n");
    }

    #[test]
    fn the_last_column_is_cut_on_a_terminal_and_whole_in_a_pipe() {
        let mut table = Table::new(&["name", "description"]);
        table.row(vec!["echo".into(), "gives back whatever it was given".into()]);
        assert!(shown(&table, None).contains("whatever it was given"));
        assert_eq!(shown(&table, Some(24)), "NAME  DESCRIPTION\necho  gives back whatev…\n");
        assert_eq!(shown(&table, Some(3)), "NAME  DESCRIPTI…\necho  gives bac…\n");
    }

    #[test]
    fn what_a_server_says_cannot_act_on_the_terminal() {
        assert_eq!(one_line("a\x1b[2J\nb\u{9b}31m\u{202e}x"), "a␛[2J b\u{fffd}31m\u{fffd}x");
        assert_eq!(visible("tab\tstays\x07"), "tab\tstays␇");
    }

    #[test]
    fn pairs_are_aligned_and_long_values_indented() {
        let mut out = Vec::new();
        write_pairs(&mut out, &[("name", "x".into()), ("last error", "one\ntwo".into()), ("image", String::new())])
            .unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "name:        x\nlast error:  one\n             two\nimage:       -\n");
    }

    #[test]
    fn sizes_are_said_as_people_say_them() {
        assert_eq!(size(0), "0B");
        assert_eq!(size(512 << 20), "512M");
        assert_eq!(size(3 << 29), "1.5G");
        assert_eq!(size(1000), "1000B");
    }
}
