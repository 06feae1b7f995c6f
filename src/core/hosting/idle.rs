//! Rest of servers that nobody uses: the rule, and what one peer's rest is decided by. The states are `lifecycle.rs`'s, and what
//! keeps a peer awake is known to other rooms (`rest.rs` asks them). Pure data and arithmetic.

use crate::model::definition::IdleMode;
use serde::{Deserialize, Serialize};

/// What one peer's rest is decided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rest {
    /// When it was last used, or became ready.
    pub used_ms: u64,
    /// Frozen since then.
    pub dozing_since_ms: Option<u64>,
    /// That it dozes is told: somebody has asked for that, and not only the daemon found that it saves time.
    pub is_told: bool,
    /// Somebody waits for it to be there again since then.
    pub waking_since_ms: Option<u64>,
    /// What the last wake has cost.
    pub last_wake_ms: Option<u64>,
}

/// What becomes of a peer that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub mode: IdleMode,
    pub after_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Verdict {
    /// It is looked at again then.
    Later {
        at_ms: u64,
    },
    Doze,
    Stop,
}

impl Policy {
    /// `held`: something keeps it awake, which is as good as a use.
    pub(in crate::core) fn look(self, used_ms: u64, held: bool, now_ms: u64) -> Verdict {
        let due_ms = if held { now_ms } else { used_ms } + self.after_ms;
        match self.mode {
            IdleMode::Off => Verdict::Later { at_ms: u64::MAX },
            IdleMode::Doze | IdleMode::Stop if due_ms > now_ms => Verdict::Later { at_ms: due_ms },
            IdleMode::Doze => Verdict::Doze,
            IdleMode::Stop => Verdict::Stop,
        }
    }
}

/// Requests that neither wake a server nor count as a use of it.
pub(in crate::core) fn is_quiet(method: &str) -> bool {
    method.ends_with("/list") || method == "ping" || method == "initialize"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_held_is_looked_at_again_after_the_whole_time() {
        let policy = |mode| Policy { mode, after_ms: 100 };
        for (mode, verdict) in [(IdleMode::Doze, Verdict::Doze), (IdleMode::Stop, Verdict::Stop)] {
            assert_eq!(policy(mode).look(50, false, 149), Verdict::Later { at_ms: 150 });
            assert_eq!(policy(mode).look(50, false, 150), verdict);
            assert_eq!(policy(mode).look(50, true, 150), Verdict::Later { at_ms: 250 });
        }
        assert_eq!(policy(IdleMode::Off).look(50, false, 1_000), Verdict::Later { at_ms: u64::MAX });
    }

    #[test]
    fn lists_and_pings_are_no_use() {
        for quiet in ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "ping", "initialize"]
        {
            assert!(is_quiet(quiet), "{quiet}");
        }
        for use_of_it in ["tools/call", "prompts/get", "resources/read", "completion/complete", "list", "echo"] {
            assert!(!is_quiet(use_of_it), "{use_of_it}");
        }
    }
}
