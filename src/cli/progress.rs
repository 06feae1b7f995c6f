//! The progress of a pull, on stderr: a bar per layer on a terminal, redrawn in place, and elsewhere a plain line for each
//! thing that is done. Shows what it is told and knows nothing more.

use super::table::size;
use crate::model::instance::{LayerState, PullStep};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};

const BAR: usize = 30;

pub struct Progress {
    bars: bool,
    /// Layers by their place in the image.
    layers: BTreeMap<usize, Layer>,
    /// How many lines of bars stand on the terminal.
    drawn: usize,
}

struct Layer {
    name: String,
    state: LayerState,
    bytes: u64,
    total: u64,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { bars: io::stderr().is_terminal(), layers: BTreeMap::new(), drawn: 0 }
    }

    pub fn show(&mut self, step: &PullStep) {
        match step {
            PullStep::Resolved { digest, layers, bytes } => {
                let coming = if *bytes == 0 { "all here".to_owned() } else { format!("{} to come", size(*bytes)) };
                self.line(&format!("{digest}: {layers} layers, {coming}"));
            }
            PullStep::Layer { index, of, layer, state, layer_bytes, layer_total, .. } => {
                let (bytes, total) = (*layer_bytes, *layer_total);
                let before = self.layers.insert(*index, Layer { name: short(layer), state: *state, bytes, total });
                if self.bars {
                    self.draw();
                } else if before.is_none_or(|before| before.state != *state) {
                    self.line(&format!("layer {index}/{of} {} {} {}", short(layer), word(*state), size(total)));
                }
            }
            // The caller says how it ended.
            PullStep::Due | PullStep::Done { .. } | PullStep::Failed(_) => {}
        }
    }

    /// What comes next stands below the bars.
    pub fn end(&mut self) {
        self.drawn = 0;
    }

    fn line(&mut self, text: &str) {
        self.drawn = 0;
        eprintln!("{text}");
    }

    fn draw(&mut self) {
        let mut text = String::new();
        if self.drawn > 0 {
            text += &format!("\x1b[{}A", self.drawn);
        }
        for (index, layer) in &self.layers {
            let full =
                (layer.bytes.min(layer.total) * BAR as u64).checked_div(layer.total).unwrap_or(BAR as u64) as usize;
            let (bar, name) = (format!("{}{}", "#".repeat(full), "-".repeat(BAR - full)), &layer.name);
            let amount = format!("{}/{}", size(layer.bytes), size(layer.total));
            text += &format!("\x1b[2K{index:>3} {name} [{bar}] {amount:>14} {}\n", word(layer.state));
        }
        self.drawn = self.layers.len();
        // A terminal that is gone takes no bars; the pull goes on.
        _ = io::stderr().write_all(text.as_bytes());
    }
}

fn short(digest: &str) -> String {
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    hex.chars().filter(char::is_ascii_alphanumeric).take(12).collect()
}

fn word(state: LayerState) -> &'static str {
    match state {
        LayerState::Downloading => "downloading",
        LayerState::Downloaded => "downloaded",
        LayerState::Present => "is here already",
        LayerState::Unpacking => "unpacking",
    }
}
