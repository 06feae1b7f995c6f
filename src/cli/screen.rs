//! Where a subcommand's answer goes: stdout, for a person on a terminal, for a pipe, or as JSON for a machine. Only
//! this module asks which.

use super::json::pretty;
use super::table::{Table, visible, write_pairs};
use std::io::{self, IsTerminal, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tables and sentences.
    Human,
    /// The API's own JSON.
    Json,
}

pub struct Screen {
    pub form: Form,
    out: io::StdoutLock<'static>,
    /// Of the terminal, if it is one.
    width: Option<usize>,
}

impl Screen {
    pub fn new(form: Form) -> Screen {
        let out = io::stdout().lock();
        let width = if out.is_terminal() { Some(terminal_width(&out).unwrap_or(80)) } else { None };
        Screen { form, out, width }
    }

    pub fn table(&mut self, table: &Table) -> io::Result<()> {
        table.write(&mut self.out, self.width)
    }

    pub fn pairs(&mut self, pairs: &[(&str, String)]) -> io::Result<()> {
        write_pairs(&mut self.out, pairs)
    }

    /// A line of our own, or of a server: on a terminal it cannot act on it.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        if self.width.is_some() { writeln!(self.out, "{}", visible(text)) } else { writeln!(self.out, "{text}") }
    }

    /// JSON byte for byte, on a terminal indented.
    pub fn json(&mut self, text: &str) -> io::Result<()> {
        let text = text.trim_ascii();
        if self.width.is_some() && self.form == Form::Human {
            self.line_by_line(&pretty(text))
        } else {
            writeln!(self.out, "{text}")
        }
    }

    pub fn line_by_line(&mut self, text: &str) -> io::Result<()> {
        text.lines().try_for_each(|line| self.line(line))
    }

    pub fn is_terminal(&self) -> bool {
        self.width.is_some()
    }

    /// What comes next stands at the top of an empty terminal.
    pub fn clear(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[H\x1b[J")
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn terminal_width(out: &impl std::os::fd::AsRawFd) -> Option<usize> {
    nix::ioctl_read_bad!(window_size, libc::TIOCGWINSZ, libc::winsize);
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open as long as `out` lives, and `size` is what this request fills.
    unsafe { window_size(out.as_raw_fd(), &mut size) }.ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}
