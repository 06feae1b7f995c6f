//! Words of the protocol that more than one layer knows: its versions, and the levels of log messages.

use serde::{Deserialize, Serialize};

/// Versions of the protocol that have sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Version {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
}

/// The version without sessions.
pub const STATELESS: &str = "2026-07-28";

impl Version {
    pub const ALL: [Version; 4] =
        [Version::V2024_11_05, Version::V2025_03_26, Version::V2025_06_18, Version::V2025_11_25];
    pub const NEWEST: Version = Version::V2025_11_25;

    pub fn wire(self) -> &'static str {
        match self {
            Version::V2024_11_05 => "2024-11-05",
            Version::V2025_03_26 => "2025-03-26",
            Version::V2025_06_18 => "2025-06-18",
            Version::V2025_11_25 => "2025-11-25",
        }
    }

    pub fn of(text: &str) -> Option<Version> {
        Version::ALL.into_iter().find(|version| version.wire() == text)
    }

    /// May an event come that has an id and no message? Older clients would try to read one.
    pub fn knows_priming(self) -> bool {
        self >= Version::V2025_11_25
    }

    pub fn has_batches(self) -> bool {
        self == Version::V2025_03_26
    }
}

/// Of log messages, the least severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Level(u8);

impl Level {
    const NAMES: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

    pub fn of(name: &str) -> Option<Level> {
        Level::NAMES.iter().position(|known| *known == name).map(|at| Level(at as u8))
    }

    pub fn wire(self) -> &'static str {
        Level::NAMES[self.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_levels_are_known_by_their_names() {
        for version in Version::ALL {
            assert_eq!(Version::of(version.wire()), Some(version));
        }
        assert_eq!(Version::of(STATELESS), None);
        assert!(Level::of("debug") < Level::of("info") && Level::of("loud").is_none());
    }
}
