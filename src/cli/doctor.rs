//! `doctor`: what this host can and cannot do, found by trying and not by asking, and what to install. Owns the report
//! and its verdict; the looking is done in `host` and `runtimes`. Changes nothing: every attempt happens in namespaces
//! and directories of its own and is over, by force if need be, before the report is printed.

mod host;
mod runtimes;
mod trial;

use super::Common;
use super::error::Error;
use super::screen::{Form, Screen};
use super::table::Table;
use crate::config::Config;
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ok,
    Warn,
    Missing,
}

impl State {
    fn wire(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Missing => "missing",
        }
    }
}

/// What hangs on a check.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Need {
    /// Without it no server can be hosted.
    Always,
    /// One provider that works is enough.
    OneProvider,
    /// Something can be done without it.
    Sometimes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    name: String,
    need: Need,
    state: State,
    found: String,
    remedy: Option<String>,
}

impl Check {
    fn new(name: &str, need: Need, state: State, found: impl Into<String>) -> Check {
        Check { name: name.to_string(), need, state, found: found.into(), remedy: None }
    }

    fn ok(name: &str, need: Need, found: impl Into<String>) -> Check {
        Check::new(name, need, State::Ok, found)
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Check {
        self.remedy = Some(remedy.into());
        self
    }

    fn as_json(&self) -> Value {
        json!({ "name": self.name, "state": self.state.wire(), "found": self.found, "remedy": self.remedy })
    }
}

/// Exit code 0: a server can be hosted here.
pub fn doctor(common: &Common, screen: &mut Screen) -> Result<u8, Error> {
    let config = common.load_config()?;
    let checks = examine(&config, common);
    let verdict = Verdict::of(&checks);
    match screen.form {
        Form::Json => screen.json(&verdict.as_json(&checks).to_string())?,
        Form::Human => show(screen, &checks, &verdict)?,
    }
    Ok(if verdict.can_host { 0 } else { 1 })
}

fn examine(config: &Config, common: &Common) -> Vec<Check> {
    let mut checks = vec![host::kernel(), host::user()];
    checks.extend(runtimes::providers(config));
    checks.push(host::user_namespaces());
    checks.push(host::cgroups());
    checks.push(host::overlay(&config.data_dir));
    checks.push(host::loop_devices());
    checks.push(host::project_quotas(&config.data_dir));
    checks.push(host::cni_plugins());
    checks.push(host::nftables());
    checks.push(host::database(config));
    checks.push(host::disk_space(&config.data_dir));
    checks.push(host::starts());
    checks.push(host::daemon(common));
    checks
}

#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    can_host: bool,
    providers: Vec<String>,
}

impl Verdict {
    fn of(checks: &[Check]) -> Verdict {
        let usable = |check: &&Check| check.need == Need::OneProvider && check.state != State::Missing;
        let providers: Vec<String> = checks.iter().filter(usable).map(|check| check.name.clone()).collect();
        let lacking = checks.iter().any(|check| check.need == Need::Always && check.state == State::Missing);
        Verdict { can_host: !lacking && !providers.is_empty(), providers }
    }

    fn as_json(&self, checks: &[Check]) -> Value {
        let checks: Vec<Value> = checks.iter().map(Check::as_json).collect();
        json!({ "can_host": self.can_host, "providers": self.providers, "checks": checks })
    }

    fn sentence(&self) -> String {
        match (self.can_host, self.providers.as_slice()) {
            (true, providers) => format!("Servers can be hosted here, with {}.", providers.join(" and ")),
            (false, []) => "No server can be hosted here: no sandbox works.".to_string(),
            (false, _) => "No server can be hosted here yet.".to_string(),
        }
    }
}

fn show(screen: &mut Screen, checks: &[Check], verdict: &Verdict) -> Result<(), Error> {
    let mut table = Table::new(&["check", "state", "found"]);
    for check in checks {
        table.row(vec![check.name.clone(), check.state.wire().to_string(), check.found.clone()]);
    }
    screen.table(&table)?;
    let advice: Vec<String> =
        checks.iter().filter_map(|check| Some(format!("  {}: {}", check.name, check.remedy.as_ref()?))).collect();
    if !advice.is_empty() {
        screen.line("")?;
        screen.line("What to do:")?;
        advice.iter().try_for_each(|line| screen.line(line))?;
    }
    screen.line("")?;
    Ok(screen.line(&verdict.sentence())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, need: Need, state: State) -> Check {
        Check::new(name, need, state, "")
    }

    #[test]
    fn one_provider_that_works_is_enough() {
        let checks = [
            check("user", Need::Always, State::Ok),
            check("gvisor", Need::OneProvider, State::Missing),
            check("crun", Need::OneProvider, State::Warn),
            check("cni", Need::Sometimes, State::Missing),
        ];
        assert_eq!(Verdict::of(&checks), Verdict { can_host: true, providers: vec!["crun".to_string()] });
        assert!(!Verdict::of(&checks[..2]).can_host);
    }

    #[test]
    fn without_what_is_always_needed_nothing_can_be_hosted() {
        let checks = [check("user", Need::Always, State::Missing), check("crun", Need::OneProvider, State::Ok)];
        let verdict = Verdict::of(&checks);
        assert!(!verdict.can_host);
        assert_eq!(verdict.as_json(&checks)["checks"][0]["state"], "missing");
    }
}
