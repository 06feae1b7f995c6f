//! What carries the link of an external server: a connection, or a program in a sandbox. Fills the project's secrets into what
//! the row says, at the moment it is needed, and hands it to the shell. Never keeps what it has filled in.

use crate::api::definition::stored;
use crate::api::projects::template::{self, Unfilled};
use crate::core::Core;
use crate::core::contract::Output;
use crate::core::hosting::lifecycle::Event;
use crate::core::links::external::{Carrier, LinkEvent};
use crate::core::links::link::{Breaker, Rules};
use crate::core::peers::life::Life;
use crate::core::servers::server::Origin;
use crate::ids::{InstanceId, PeerId};
use crate::model::definition::{Definition, RestartPolicy, Source};
use crate::model::endpoint::{ClientCredentials, Endpoint, LinkFault, LinkFaultKind, Transport};
use crate::model::external::{
    ExternalServer, ExternalSpec, Isolation, Program, Remote, RemoteTransport, Secrets, Target,
};
use crate::model::fault::{Code, Fault, Outcome};
use std::sync::Arc;

impl Core {
    /// Some: the next event of this peer, because it cannot even be tried.
    pub(in crate::core) fn connect_external(&mut self, id: PeerId, instance: InstanceId) -> Option<Event> {
        let peer = self.peers.known.get_mut(&id).expect("advance holds it");
        let server = peer.server;
        peer.begin_instance();
        let row = self.row_of(id).expect("only the peer of a row has a connection");
        match endpoint(&row, &self.projects.secrets_of(&row.project)) {
            Ok(endpoint) => {
                self.hosting.instances.insert(instance, id);
                self.effects.outputs.push_back(Output::Connect { instance, server, endpoint: Arc::new(endpoint) });
                None
            }
            Err(fault) => Some(Event::Link(LinkEvent::Impossible(fault))),
        }
    }

    /// What is to be launched for a peer: the definition as it is registered, or a row's with its secrets.
    pub(in crate::core) fn launchable(&self, id: PeerId) -> Result<Arc<Definition>, Fault> {
        let Some(row) = self.row_of(id) else { return Ok(Arc::clone(&self.peers.known[&id].definition)) };
        let definition = filled_definition(&row, &self.projects.secrets_of(&row.project))?;
        self.check_place(&definition)?;
        Ok(Arc::new(definition))
    }

    /// The row that a peer's server comes from, if it does.
    pub(in crate::core) fn row_of(&self, id: PeerId) -> Option<Arc<ExternalServer>> {
        let peer = self.peers.known.get(&id)?;
        match self.servers.known.get(&peer.server)?.origin {
            Origin::Registered => None,
            Origin::Project(row) => self.projects.rows.get(&row).cloned(),
        }
    }

    pub(in crate::core) fn link_lost(&mut self, instance: InstanceId, why: LinkFault) {
        let event = match why.kind {
            LinkFaultKind::Invalid => {
                LinkEvent::Impossible(Fault::new(Code::UpstreamUnavailable, why.message).outcome(Outcome::NotSent))
            }
            LinkFaultKind::Name
            | LinkFaultKind::Refused
            | LinkFaultKind::Tls
            | LinkFaultKind::Timeout
            | LinkFaultKind::Unauthorized(_)
            | LinkFaultKind::Status(_)
            | LinkFaultKind::SessionLost
            | LinkFaultKind::Protocol
            | LinkFaultKind::Closed
            | LinkFaultKind::Overloaded => LinkEvent::Lost(why.message),
        };
        self.advance_instance(instance, Event::Link(event));
    }

    /// Each failed attempt and each loss is told, whether somebody uses the link or not.
    pub(in crate::core) fn link_failed(&mut self, id: PeerId, why: String, was_up: bool) {
        let Some(row) = self.row_of(id) else { return };
        let peer = self.peers.known.get_mut(&id).expect("it has a row");
        // What is known of a program that said nothing useful is more than that it took too long.
        let why = peer.put_down_for.take().unwrap_or(why);
        let what = if was_up { "transport-exit" } else { "attempt failed" };
        log::error!("server={} project={} {what}: {why}", row.spec.name, row.project);
        peer.last_error = Some(why.clone());
        peer.restart_due = true;
        self.note(id, format!("{what}: {why}"));
    }

    /// The version that was agreed on is in the headers of what follows.
    pub(in crate::core) fn tell_version(&mut self, id: PeerId, instance: InstanceId) {
        let peer = &self.peers.known[&id];
        let remote = matches!(&peer.life, Life::External(life) if life.carrier() == Carrier::Network);
        let version = peer.hello.as_ref().and_then(|hello| hello.protocol_version.clone());
        if let Some(version) = version.filter(|_| remote) {
            self.effects.outputs.push_back(Output::Negotiated { instance, version });
        }
    }
}

// --- what a row says --------------------------------------------------------------------------------------------------

pub(in crate::core) fn rules_of(spec: &ExternalSpec) -> Rules {
    let breaker = spec.breaker.map(|rule| Breaker { attempts: rule.attempts, cooldown_ms: rule.cooldown_ms });
    Rules { shared: spec.shared, breaker, startup_ms: spec.startup_timeout_ms }
}

pub(in crate::core) fn carrier_of(spec: &ExternalSpec) -> Carrier {
    match spec.target {
        Target::Program(_) => Carrier::Sandbox,
        Target::Remote(_) => Carrier::Network,
    }
}

/// What the peer of a row has to know; values as they were written.
pub(in crate::core) fn definition_of(row: &ExternalServer) -> Definition {
    let spec = &row.spec;
    let mut definition = Definition {
        source: Source::HostRootfs,
        stdio_bridge: true,
        shared: true,
        restart_policy: RestartPolicy::Always,
        max_in_flight: spec.max_in_flight,
        queue_max: spec.queue_max,
        request_timeout_ms: spec.request_timeout_ms,
        startup_timeout_ms: spec.startup_timeout_ms,
        health: spec.health.clone(),
        ..stored::nothing_of(spec.name.clone())
    };
    if let Target::Program(program) = &spec.target {
        definition.cmd = std::iter::once(&program.command).chain(&program.args).cloned().collect();
        definition.network = Some(program.network.clone());
        definition.provider = match program.isolation {
            Isolation::Sandbox => None,
            Isolation::None => Some("none".to_string()),
        };
    }
    definition
}

/// Does what a row says need another connection?
pub(in crate::core) fn needs_new_link(old: &ExternalSpec, new: &ExternalSpec) -> bool {
    let same_link = ExternalSpec {
        description: new.description.clone(),
        enabled: new.enabled,
        request_timeout_ms: new.request_timeout_ms,
        health: new.health.clone(),
        max_in_flight: new.max_in_flight,
        queue_max: new.queue_max,
        ..old.clone()
    };
    same_link != *new
}

pub(in crate::core) fn mentions(spec: &ExternalSpec, name: &str) -> bool {
    texts(spec).into_iter().any(|text| template::mentions(text).any(|mentioned| mentioned == name))
}

fn texts(spec: &ExternalSpec) -> Vec<&str> {
    match &spec.target {
        Target::Program(program) => {
            let args = program.args.iter().map(String::as_str);
            args.chain(program.env.values().map(|value| value.expose())).collect()
        }
        Target::Remote(remote) => {
            let mut texts: Vec<&str> = vec![&remote.url];
            texts.extend(remote.headers.values().map(|value| value.expose()));
            if let Some(auth) = &remote.auth {
                texts.extend([auth.token_url.as_str(), &auth.client_id, auth.client_secret.expose()]);
                texts.extend(auth.scope.as_deref().into_iter().chain(auth.resource.as_deref()));
            }
            texts
        }
    }
}

fn filled_definition(row: &ExternalServer, secrets: &Secrets) -> Result<Definition, Fault> {
    let mut definition = definition_of(row);
    if let Target::Program(Program { command, args, env, .. }) = &row.spec.target {
        let fill = |text: &str| filled(row, text, secrets);
        let args = args.iter().map(|arg| fill(arg)).collect::<Result<Vec<String>, Fault>>()?;
        definition.cmd = std::iter::once(command.clone()).chain(args).collect();
        for (name, value) in env {
            definition.environment.insert(name.clone(), fill(value.expose())?);
        }
    }
    Ok(definition)
}

fn endpoint(row: &ExternalServer, secrets: &Secrets) -> Result<Endpoint, Fault> {
    let Target::Remote(Remote { transport, url, headers, tls_ca, auth }) = &row.spec.target else {
        unreachable!("a program has no connection");
    };
    let fill = |text: &str| filled(row, text, secrets);
    let transport = match transport {
        RemoteTransport::Http => Transport::Http,
        RemoteTransport::Sse => Transport::Sse,
        RemoteTransport::WebSocket => Transport::WebSocket,
    };
    let headers = headers.iter().map(|(name, value)| Ok((name.clone(), fill(value.expose())?)));
    let auth = auth.as_ref().map(|auth| -> Result<ClientCredentials, Fault> {
        Ok(ClientCredentials {
            token_url: fill(&auth.token_url)?,
            client_id: fill(&auth.client_id)?,
            client_secret: fill(auth.client_secret.expose())?,
            scope: auth.scope.as_deref().map(fill).transpose()?,
            resource: auth.resource.as_deref().map(fill).transpose()?,
        })
    });
    Ok(Endpoint {
        transport,
        url: fill(url)?,
        headers: headers.collect::<Result<_, Fault>>()?,
        tls_ca: tls_ca.as_ref().map(Into::into),
        auth: auth.transpose()?,
        startup_ms: row.spec.startup_timeout_ms,
    })
}

fn filled(row: &ExternalServer, text: &str, secrets: &Secrets) -> Result<String, Fault> {
    let (name, project) = (&row.spec.name, &row.project);
    let fault = match template::fill(text, secrets) {
        Ok(filled) => return Ok(filled.expose().to_string()),
        Err(Unfilled::Missing(names)) => {
            let names: Vec<String> = names.into_iter().collect();
            let message = format!(
                "{name} needs the secret {}, which project {project} does not have; PUT it under `…/secrets/`",
                names.join(", ")
            );
            Fault::new(Code::SecretMissing, message).with("secrets", names)
        }
        Err(Unfilled::Unreadable { name: secret, why }) => {
            let message = format!("the secret {secret} of project {project} cannot be read: {why}");
            Fault::new(Code::SecretMissing, message).with("secrets", vec![secret])
        }
        Err(Unfilled::TooLong) => {
            Fault::new(Code::InvalidRequest, format!("{name}: a text is too long with its secrets filled in"))
        }
    };
    Err(fault.outcome(Outcome::NotSent))
}
