//! What the core must know of its daemon: its configuration, and what was found out about the host; and what it allows. It
//! changes twice: when it is known which providers work (`provide`), and when SIGHUP names another default provider (`prefer`).

use crate::api::auth::resource::Resource;
use crate::model::ceilings::{Beyond, Ceilings};
use crate::model::definition::{Definition, Idle};
use crate::model::external::ExternalSpec;
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use crate::model::records::Decision;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the core must know of its daemon.
#[derive(Default, Serialize, Deserialize)]
pub struct Settings {
    /// The one for servers that name none, as configured.
    pub default_provider: String,
    /// Usable providers by name; the first is the default, and is there even if nothing is usable.
    pub providers: Vec<String>,
    /// The same without a stand-in for nothing.
    pub usable: Vec<String>,
    /// Why the configured default is not the first of them.
    pub default_warning: Option<String>,
    /// Those whose idle sandboxes take CPU time.
    #[serde(default)]
    pub polling: Vec<String>,
    /// What becomes of servers that nobody uses, where their definition says nothing.
    #[serde(default)]
    pub idle: Idle,
    /// The providers that are not usable here, and why.
    pub unusable: Vec<(String, String)>,
    /// The network of servers that name none; none: loopback only.
    pub default_network: Option<String>,
    pub allow_host_network: bool,
    /// False: servers may be looked at, but none runs.
    pub hosting: bool,
    /// Of the whole daemon; none: as planned in `limits.rs`.
    pub memory_budget: Option<usize>,
    /// The token of `admin.token`.
    pub admin_token_hash: [u8; 32],
    /// What an earlier daemon had decided and could not store.
    pub decisions: Vec<Decision>,
    /// Between a server's name and that of its tool, where all servers are offered at once.
    pub separator: String,
    /// Are the arguments of projects' tool calls recorded?
    pub record_arguments: bool,
    /// For how long records of them are kept; 0: for ever.
    pub records_keep_days: u32,
    pub seed: [u8; 32],
    /// What those who are limited may give a server.
    pub ceilings: Ceilings,
    /// What clients are told of who gives tokens; none: nobody but this daemon does.
    pub resource: Option<Arc<Resource>>,
}

impl Settings {
    /// Another default, among the providers that are known to work.
    pub fn prefer(&mut self, default_provider: String) {
        self.default_provider = default_provider;
        self.provide(self.usable.clone());
    }

    /// The default first. If it cannot run here the next one stands in, with a warning.
    pub fn provide(&mut self, mut usable: Vec<String>) {
        let wanted = &self.default_provider;
        // No sandbox at all is never anybody's second choice.
        usable.sort_by_key(|name| (name != wanted, name == "none", name != "gvisor", name.clone()));
        let why = self.unusable.iter().find(|(name, _)| name == wanted);
        let why = why.map_or_else(|| "it is not configured".to_string(), |(_, why)| why.clone());
        let first = usable.first().filter(|first| *first == wanted || *first != "none");
        self.default_warning = match first {
            Some(first) if first == wanted => None,
            Some(first) => Some(format!("the default provider {wanted} is not usable here ({why}); {first} stands in")),
            None => Some(format!("no provider is usable here ({wanted}: {why}); `stdiod doctor` says what to install")),
        };
        if let Some(warning) = &self.default_warning {
            log::warn!("{warning}");
        }
        self.usable = usable.clone();
        if first.is_none() {
            usable.insert(0, wanted.clone());
        }
        self.providers = usable;
    }

    /// Can this daemon give a definition what it asks of the host? Ports are another matter.
    pub fn check_place(&self, definition: &Definition) -> Result<(), Fault> {
        if let Some(name) = &definition.provider
            && !self.providers.contains(name)
        {
            let known = self.providers.join(", ");
            let why = self.unusable.iter().find(|(unusable, _)| unusable == name);
            let why = why.map_or_else(|| "no provider of this name is configured".to_string(), |(_, why)| why.clone());
            let message = format!("provider: {name} is not usable here: {why}; usable: {known}");
            return Err(Fault::new(Code::ProviderUnusable, message).with("field", "provider").with("reason", why));
        }
        if definition.network.as_deref() == Some("host") && !self.allow_host_network {
            return Err(Fault::field("network", "the host's own is not given away here: see `allow_host_network`"));
        }
        if definition.egress.is_some() && definition.network.is_none() && definition.ports.is_empty() {
            let default = self.default_network.as_deref();
            if default.is_none_or(|name| name == "none") {
                return Err(Fault::field("egress", "needs a `network`; the default here is none"));
            }
        }
        Ok(())
    }

    /// Whoever is limited gives a server no more than the configuration says.
    pub fn check_ceilings(&self, who: &Principal, old: Option<&Definition>, new: &Definition) -> Result<(), Fault> {
        match who.is_limited() {
            true => self.ceilings.admit(old, new).map_err(|beyond| too_much(who, beyond)),
            false => Ok(()),
        }
    }

    /// The same of a row. `old`: what it says now.
    pub fn check_row_ceiling(
        &self,
        who: &Principal,
        old: Option<&ExternalSpec>,
        new: &ExternalSpec,
    ) -> Result<(), Fault> {
        match who.is_limited() {
            true => self.ceilings.admit_row(old, new).map_err(|beyond| too_much(who, beyond)),
            false => Ok(()),
        }
    }

    pub fn check_hosting(&self) -> Result<(), Fault> {
        match self.hosting {
            true => Ok(()),
            false => Err(Fault::new(Code::Unavailable, "hosting is disabled by ENABLE_AGENT_WORKSPACES=false")),
        }
    }
}

fn too_much(who: &Principal, beyond: Beyond) -> Fault {
    who.forbid(beyond.why).with("field", beyond.field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(usable: &[&str], unusable: &[(&str, &str)]) -> Settings {
        let unusable = unusable.iter().map(|(name, why)| (name.to_string(), why.to_string())).collect();
        let mut settings = Settings { default_provider: "gvisor".to_string(), unusable, ..Settings::default() };
        settings.provide(usable.iter().map(ToString::to_string).collect());
        settings
    }

    #[test]
    fn the_next_provider_stands_in_for_a_default_that_does_not_work() {
        let well = settings(&["crun", "gvisor", "youki"], &[]);
        assert_eq!((well.providers[0].as_str(), well.default_warning), ("gvisor", None));
        let lame = settings(&["youki", "crun"], &[("gvisor", "no systrap")]);
        assert_eq!(lame.providers, ["crun", "youki"]);
        assert!(lame.default_warning.is_some_and(|why| why.contains("no systrap") && why.contains("crun stands in")));
        let none = settings(&[], &[("gvisor", "not installed")]);
        assert_eq!(none.providers, ["gvisor"]);
        assert_eq!(settings(&["none"], &[]).providers, ["gvisor", "none"]);
        assert!(none.default_warning.is_some_and(|why| why.contains("doctor")));
    }
}
