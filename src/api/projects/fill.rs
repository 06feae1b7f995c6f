//! An external server with its secrets filled in: what can be connected to, or launched. Owns what a filled text must still be:
//! a secret must not end the line of a header, nor lead to another kind of address. Never shows a value.

use crate::api::definition::fields as definitions;
use crate::api::projects::fields;
use crate::api::projects::template::{self, Unfilled};
use crate::limits::STRING_MAX;
use crate::model::definition::{Definition, Source};
use crate::model::endpoint::{self, Endpoint};
use crate::model::external::{
    ExternalServer, ExternalSpec, Isolation, Program, Remote, RemoteTransport, Secret, Secrets, Target,
};
use crate::model::fault::{Code, Fault};
use crate::wire::http::url::Url;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

#[derive(Debug)]
pub enum Filled {
    /// For `Output::Launch`, under the provider that its definition names.
    Program(Box<Definition>),
    /// For `Output::Connect`.
    Remote(Box<Endpoint>),
}

/// The secrets that a server mentions: a change of one of them means a new connection.
pub fn mentioned(spec: &ExternalSpec) -> BTreeSet<&str> {
    let mut texts: Vec<&str> = Vec::new();
    match &spec.target {
        Target::Program(Program { args, env, .. }) => {
            texts.extend(args.iter().map(String::as_str));
            texts.extend(env.values().map(Secret::expose));
        }
        Target::Remote(Remote { url, headers, auth, .. }) => {
            texts.push(url);
            texts.extend(headers.values().map(Secret::expose));
            if let Some(auth) = auth {
                texts.extend([auth.token_url.as_str(), &auth.client_id, auth.client_secret.expose()]);
                texts.extend([&auth.scope, &auth.resource].into_iter().flatten().map(String::as_str));
            }
        }
    }
    texts.into_iter().flat_map(template::mentions).collect()
}

/// `secret_missing` names all that are not there.
pub fn fill(server: &ExternalServer, secrets: &Secrets) -> Result<Filled, Fault> {
    let missing: Vec<&str> =
        mentioned(&server.spec).into_iter().filter(|name| !secrets.0.contains_key(*name)).collect();
    if !missing.is_empty() {
        let message = format!(
            "{} needs secrets that the project {} does not have: {}",
            server.spec.name,
            server.project,
            missing.join(", ")
        );
        return Err(Fault::new(Code::SecretMissing, message).with("missing", missing));
    }
    match &server.spec.target {
        Target::Program(program) => program_of(server, program, secrets).map(Box::new).map(Filled::Program),
        Target::Remote(remote) => remote_of(&server.spec, remote, secrets).map(Box::new).map(Filled::Remote),
    }
}

fn text(field: &str, text: &str, secrets: &Secrets) -> Result<String, Fault> {
    match template::fill(text, secrets) {
        Ok(filled) => Ok(filled.expose().to_string()),
        Err(Unfilled::Missing(names)) => {
            let names: Vec<String> = names.into_iter().collect();
            let message = format!("{field}: these secrets are missing: {}", names.join(", "));
            Err(Fault::new(Code::SecretMissing, message).with("missing", names))
        }
        Err(Unfilled::Unreadable { name, why }) => {
            let message = format!("{field}: the secret {name} cannot be opened: {why}");
            Err(Fault::new(Code::SecretMissing, message).with("missing", vec![name]))
        }
        Err(Unfilled::TooLong) => Err(Fault::field(field, "is too long with its secrets filled in")),
    }
}

fn remote_of(spec: &ExternalSpec, remote: &Remote, secrets: &Secrets) -> Result<Endpoint, Fault> {
    let address = |field: &str, given: &str, transport: RemoteTransport| {
        let url = text(field, given, secrets)?;
        let is_one = match transport {
            RemoteTransport::Http | RemoteTransport::Sse => Url::parse(&url).is_some(),
            RemoteTransport::WebSocket => Url::parse_websocket(&url).is_some(),
        };
        // Which of its parts is wrong may be a part of a secret.
        if is_one { Ok(url) } else { Err(Fault::field(field, "is no address once its secrets are filled in")) }
    };
    let mut headers = Vec::with_capacity(remote.headers.len());
    for (name, value) in &remote.headers {
        let field = format!("headers.{name}");
        let value = text(&field, value.expose(), secrets)?;
        if !fields::is_header_value(&value) {
            return Err(Fault::field(&field, "has control characters in it once its secrets are filled in"));
        }
        headers.push((name.clone(), value));
    }
    let auth = match &remote.auth {
        None => None,
        Some(auth) => {
            let optional = |field: &str, given: &Option<String>| {
                given.as_deref().map(|given| text(field, given, secrets)).transpose()
            };
            Some(endpoint::ClientCredentials {
                token_url: address("auth.token_url", &auth.token_url, RemoteTransport::Http)?,
                client_id: text("auth.client_id", &auth.client_id, secrets)?,
                client_secret: text("auth.client_secret", auth.client_secret.expose(), secrets)?,
                scope: optional("auth.scope", &auth.scope)?,
                resource: optional("auth.resource", &auth.resource)?,
            })
        }
    };
    Ok(Endpoint {
        transport: remote.transport,
        url: address("url", &remote.url, remote.transport)?,
        headers,
        tls_ca: remote.tls_ca.as_ref().map(Into::into),
        auth,
        startup_ms: spec.startup_timeout_ms,
    })
}

/// By the rules of a registration, so that a program that fetches packages gets its cache.
fn program_of(server: &ExternalServer, program: &Program, secrets: &Secrets) -> Result<Definition, Fault> {
    let mut args = Vec::with_capacity(program.args.len());
    for (at, word) in program.args.iter().enumerate() {
        args.push(text(&format!("args[{at}]"), word, secrets)?);
    }
    let mut environment = Map::new();
    for (name, value) in &program.env {
        environment.insert(name.clone(), text(&format!("env.{name}"), value.expose(), secrets)?.into());
    }
    if args
        .iter()
        .map(String::as_str)
        .chain(environment.values().filter_map(Value::as_str))
        .any(|t| t.len() > STRING_MAX)
    {
        return Err(Fault::field(
            "env",
            format_args!("no value and no argument may be longer than {STRING_MAX} bytes"),
        ));
    }
    let spec = &server.spec;
    let mut given = json!({
        "name": peer_name(server), "command": program.command, "args": args, "environment": environment,
        "timeouts": {"request_ms": spec.request_timeout_ms, "startup_ms": spec.startup_timeout_ms},
        "max_in_flight": spec.max_in_flight, "queue_max": spec.queue_max,
    });
    match program.isolation {
        Isolation::Sandbox => given["network"] = json!(program.network),
        Isolation::None => given["provider"] = json!("none"),
    }
    let Value::Object(given) = given else { unreachable!("an object was just made") };
    let mut definition = definitions::from_fields(given)?;
    definition.health = spec.health.clone();
    if program.isolation == Isolation::None {
        // It sees the host's files, and has none of its own.
        definition.volumes.clear();
    }
    Ok(definition)
}

/// Of a peer that stands for an external server which is reached over a network: how it is looked after, and nothing to run.
pub fn peer_definition(server: &ExternalServer) -> Definition {
    let spec = &server.spec;
    Definition {
        max_in_flight: spec.max_in_flight,
        queue_max: spec.queue_max,
        request_timeout_ms: spec.request_timeout_ms,
        startup_timeout_ms: spec.startup_timeout_ms,
        health: spec.health.clone(),
        ..definitions::standard(peer_name(server), Source::HostRootfs)
    }
}

/// Harmless in paths, and no other's.
fn peer_name(server: &ExternalServer) -> String {
    format!("external-{}", server.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;
    use crate::model::external::{ExternalId, ProjectId, SecretValue};

    fn server(given: Value) -> ExternalServer {
        ExternalServer {
            id: ExternalId(Uuid::from_u128(1)),
            project: ProjectId::new("p").unwrap(),
            product: None,
            spec: fields::from_fields(given.as_object().unwrap().clone()).unwrap(),
            created_unix_ms: 0,
            updated_unix_ms: 0,
        }
    }

    fn secrets(pairs: &[(&str, &str)]) -> Secrets {
        Secrets(pairs.iter().map(|(name, value)| (name.to_string(), SecretValue::Open(Secret::new(*value)))).collect())
    }

    fn remote() -> ExternalServer {
        server(json!({"name": "a", "transport": "http", "url": "https://h.test/${PATH}",
            "headers": {"Authorization": "Bearer ${TOKEN}"},
            "auth": {"type": "client_credentials", "token_url": "https://t.test/", "client_id": "${ID}",
                "client_secret": "${TOKEN}"}}))
    }

    /// Seed 002, "Environment variable interpolation".
    #[test]
    fn values_come_from_the_secrets_of_the_project() {
        let known = secrets(&[("PATH", "mcp"), ("TOKEN", "hunter2"), ("ID", "me")]);
        let Filled::Remote(endpoint) = fill(&remote(), &known).unwrap() else { panic!("it is remote") };
        assert_eq!(endpoint.url, "https://h.test/mcp");
        assert_eq!(endpoint.headers, [("authorization".to_string(), "Bearer hunter2".to_string())]);
        assert_eq!(endpoint.auth.as_ref().unwrap().client_secret, "hunter2");
        assert!(!format!("{endpoint:?}").contains("hunter2"));
        let stdio = server(json!({"name": "s", "transport": "stdio", "command": "npx", "args": ["${PATH}"],
            "env": {"SEARCH_API_KEY": "${TOKEN}"}}));
        let Filled::Program(definition) = fill(&stdio, &known).unwrap() else { panic!("it is a program") };
        assert_eq!(definition.cmd, ["npx", "mcp"]);
        assert_eq!(definition.environment["SEARCH_API_KEY"], "hunter2");
        assert_eq!(definition.network.as_deref(), Some("bridge"));
        assert!(!definition.volumes.is_empty(), "a program that fetches packages has a cache");
    }

    /// The same, "if a referenced variable is not found".
    #[test]
    fn all_that_are_missing_are_named_and_nothing_is_connected() {
        let fault = fill(&remote(), &secrets(&[("PATH", "hunter2")])).unwrap_err();
        assert_eq!((fault.code, &fault.data["missing"]), (Code::SecretMissing, &json!(["ID", "TOKEN"])));
        assert!(fault.message.contains("ID, TOKEN") && !fault.message.contains("hunter2"), "{}", fault.message);
        assert_eq!(mentioned(&remote().spec).into_iter().collect::<Vec<_>>(), ["ID", "PATH", "TOKEN"]);
    }

    #[test]
    fn a_secret_cannot_end_a_line_or_make_another_address() {
        let known = |path: &str, token: &str| secrets(&[("PATH", path), ("TOKEN", token), ("ID", "me")]);
        for (path, token, field) in
            [("a b", "x", "url"), ("\r\n", "x", "url"), ("x", "hunter2\r\nX: y", "headers.authorization")]
        {
            let fault = fill(&remote(), &known(path, token)).unwrap_err();
            assert_eq!(fault.data["field"], json!(field));
            assert!(!fault.message.contains("hunter2"), "{}", fault.message);
        }
        let sealed =
            Secrets([("K".to_string(), SecretValue::Unreadable { why: "the key file is gone".into() })].into());
        let uses = server(json!({"name": "a", "transport": "ws", "url": "ws://h/${K}"}));
        let fault = fill(&uses, &sealed).unwrap_err();
        assert!(fault.code == Code::SecretMissing && fault.message.contains("the key file is gone"));
    }
}
