//! The schedule of one server, restated naively: when may it start again at the earliest?

use stdiod::model::definition::CrashLoop;

#[derive(Default)]
pub struct Shadow {
    deaths: Vec<u64>,
    level: usize,
    /// The same of installs that failed.
    installs: Vec<u64>,
    install_level: usize,
    pub ready_since: Option<u64>,
    pub earliest: u64,
}

impl Shadow {
    /// Something happened that may have changed the schedule.
    pub fn expect_nothing(&mut self) {
        *self = Shadow { ready_since: self.ready_since, ..Shadow::default() };
    }

    /// Its own reading of the crash-loop rules.
    pub fn death(&mut self, rules: &CrashLoop, now: u64, launch: bool) {
        if !launch && self.ready_since.is_some_and(|since| now - since >= rules.stable_ms) {
            (self.deaths, self.level) = (Vec::new(), 0);
        }
        self.ready_since = None;
        self.earliest = now + delay(&mut self.deaths, &mut self.level, rules, now);
    }

    /// It counts by itself, and as no death.
    pub fn install_failed(&mut self, rules: &CrashLoop, now: u64) {
        self.earliest = now + delay(&mut self.installs, &mut self.install_level, rules, now);
    }

    pub fn installed(&mut self) {
        (self.installs, self.install_level) = (Vec::new(), 0);
    }
}

fn delay(deaths: &mut Vec<u64>, level: &mut usize, rules: &CrashLoop, now: u64) -> u64 {
    deaths.push(now);
    let recent = deaths.iter().filter(|at| now - **at <= rules.window_ms).count();
    if rules.relentless || *level > 0 || recent > rules.threshold as usize {
        *level += 1;
        rules.schedule_ms[(*level - 1).min(rules.schedule_ms.len() - 1)]
    } else {
        [0, 1_000, 2_000][recent - 1]
    }
}
