//! `connect`: a hosted server as a stdio program. Lines from stdin become requests to the daemon's Streamable HTTP endpoint,
//! and what comes back becomes lines on stdout. Owns the order in which things are sent; the session and the connections
//! are `bridge`'s. Nothing but JSON-RPC goes to stdout.

mod bridge;
mod message;

use super::Common;
use super::api::{Api, server_path};
use super::error::Error;
use super::http::Target;
use crate::limits::LINE_MAX;
use crate::wire::answer::read_line;
use bridge::Bridge;
use clap::builder::NonEmptyStringValueParser;
use message::{Kind, kind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

#[derive(clap::Args)]
#[command(after_help = "For clients that only start programs: give them `stdiod` with the arguments `connect NAME`.

Examples:
  stdiod connect notes
  stdiod connect http://127.0.0.1:8480/mcp/notes")]
pub struct Connect {
    /// Name of the server, or the URL of its MCP endpoint
    #[arg(value_name = "NAME|URL", value_parser = NonEmptyStringValueParser::new())]
    what: String,
}

pub fn connect(common: &Common, args: &Connect) -> Result<u8, Error> {
    let (api, path) = endpoint(common, &args.what)?;
    let bridge = Arc::new(Bridge::new(api.into_client(), path));
    end_on_signals(&bridge)?;
    let said = pass_on(&bridge);
    if said.is_ok() {
        bridge.wait_for_answers();
    }
    bridge.end();
    said.map(|()| 0)
}

/// The daemon and the path of the endpoint. A server that is not there is found out here, before anybody has said a word.
fn endpoint(common: &Common, what: &str) -> Result<(Api, String), Error> {
    if !what.contains("://") {
        let api = Api::new(common)?;
        must_be_there(&api, what)?;
        return Ok((api, format!("/mcp/{}", super::api::encode(what))));
    }
    let (base, path) = split_url(what).map_err(|remedy| Error::Usage(format!("`{what}` is no address: {remedy}")))?;
    let url = Some(base.to_string());
    let common = Common {
        config: common.config.clone(),
        url,
        token_file: common.token_file.clone(),
        json: common.json,
        ca: common.ca.clone(),
    };
    let api = Api::new(&common)?;
    if let Some(name) = path.strip_prefix("/mcp/").filter(|name| !name.contains('/')) {
        must_be_there(&api, name)?;
    }
    Ok((api, path.to_string()))
}

/// `http://HOST:PORT/path`, where the path is at least one character.
fn split_url(url: &str) -> Result<(&str, &str), String> {
    let rest = url.strip_prefix("http://").ok_or("write http://HOST:PORT/mcp/NAME")?;
    let slash = rest.find('/').filter(|at| at + 1 < rest.len()).ok_or("write http://HOST:PORT/mcp/NAME")?;
    let (base, path) = url.split_at(url.len() - rest.len() + slash);
    if path.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err("its path has characters that a URL has not".to_string());
    }
    Target::parse(base)?;
    Ok((base, path))
}

/// Its tools are what a token for calls may ask for too.
fn must_be_there(api: &Api, name: &str) -> Result<(), Error> {
    match api.get(&server_path(name, "/tools")) {
        Err(Error::Refused(refusal)) if !matches!(refusal.status, 401 | 403 | 404) => Ok(()),
        answer => answer.map(|_| ()),
    }
}

/// Until the end of the input.
fn pass_on(bridge: &Arc<Bridge>) -> Result<(), Error> {
    let mut input = BufReader::with_capacity(64 * 1024, io::stdin().lock());
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = read_line(&mut input, &mut line, LINE_MAX);
        if read.map_err(|why| Error::Fault(format!("cannot read stdin: {why}")))? == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        match kind(text) {
            None => eprintln!("stdiod: a line on stdin is no JSON-RPC message, and was not passed on"),
            Some(Kind::Request { id, method }) if method == "initialize" => bridge.initialize(&id, text),
            Some(Kind::Request { id, .. }) => bridge.request(Some(id), text),
            Some(Kind::Batch) => bridge.request(None, text),
            Some(Kind::Notification { method }) => bridge.notify(&method, text),
            Some(Kind::Response) => bridge.tell(text),
        }
    }
}

/// A client that ends us by a signal leaves no session behind.
fn end_on_signals(bridge: &Arc<Bridge>) -> Result<(), Error> {
    let registered = || -> io::Result<UnixStream> {
        let (mut read, write) = UnixStream::pair()?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        read.set_read_timeout(None)?;
        let bridge = Arc::clone(bridge);
        let copy = read.try_clone()?;
        std::thread::spawn(move || {
            if read.read(&mut [0]).is_ok() {
                bridge.end();
                std::process::exit(0);
            }
        });
        Ok(copy)
    };
    registered().map(|_| ()).map_err(|why| Error::Fault(format!("cannot wait for signals: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_path() {
        assert_eq!(split_url("http://h:1/mcp/x"), Ok(("http://h:1", "/mcp/x")));
        assert_eq!(
            split_url("http://[::1]:1/api/v1/mcp/servers/x/mcp"),
            Ok(("http://[::1]:1", "/api/v1/mcp/servers/x/mcp"))
        );
        for url in ["http://h", "http://h/", "ftp://h/x", "https://h/mcp/x", "http://u@h/mcp/x", "http://h/a b"] {
            split_url(url).expect_err(url);
        }
    }
}
