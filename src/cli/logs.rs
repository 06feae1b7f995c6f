//! `logs`: the last lines of a server's stderr and its lifecycle, and with `-f` those to come, read from an event stream.

use super::api::{Api, server_path};
use super::error::Error;
use super::screen::{Form, Screen};
use super::table::visible;
use crate::wire::sse::read_data;
use clap::builder::NonEmptyStringValueParser;
use serde_json::Value;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  stdiod logs notes --tail 50
  stdiod logs notes --since 2026-02-17T10:00:00Z
  stdiod logs -f notes")]
pub struct Logs {
    /// Name or id of the server
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Go on with new lines as they come
    #[arg(short, long)]
    follow: bool,
    /// Start with the last N lines
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// Nothing older than this, as in 2026-02-17T10:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
}

pub fn logs(api: &Api, screen: &mut Screen, args: &Logs) -> Result<(), Error> {
    let mut query: Vec<String> = args.tail.iter().map(|tail| format!("tail={tail}")).collect();
    if let Some(since) = &args.since {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-:.".contains(&byte);
        let encoded = since.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") });
        query.push(format!("since={}", encoded.collect::<String>()));
    }
    if args.follow {
        query.push("follow=true".to_string());
    }
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    let path = server_path(&args.name, &format!("/logs{query}"));
    match (args.follow, screen.form) {
        (true, _) => follow(api, screen, &path),
        (false, Form::Json) => Ok(screen.json(&api.get(&path)?)?),
        (false, Form::Human) => Ok(screen.line_by_line(&api.get_text(&path)?)?),
    }
}

fn follow(api: &Api, screen: &mut Screen, path: &str) -> Result<(), Error> {
    let mut stream = api.follow(path)?.body;
    while let Some(data) = read_data(&mut stream).map_err(|why| api.stream_fault(why))? {
        match screen.form {
            Form::Json => screen.json(&data)?,
            Form::Human => screen.line_by_line(&entry_line(&data))?,
        }
        screen.flush()?;
    }
    Ok(())
}

/// A log entry as a line: time, source, text. What is no log entry is shown as it is.
fn entry_line(data: &str) -> String {
    let Ok(Value::Object(entry)) = serde_json::from_str(data) else { return data.to_string() };
    let Some(text) = entry.get("text").and_then(Value::as_str) else { return data.to_string() };
    let field = |key: &str| entry.get(key).and_then(Value::as_str);
    let parts = [field("at"), field("source"), Some(text)];
    // One entry is one line: a server may not write lines that look like another entry.
    visible(&parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_becomes_a_line_and_anything_else_stays_as_it_is() {
        assert_eq!(entry_line(r#"{"at":"T","source":"stderr","text":"hi","instance":1}"#), "T stderr hi");
        assert_eq!(entry_line(r#"{"text":"one\ntwo"}"#), "one␊two");
        assert_eq!(entry_line(r#"{"x":1}"#), r#"{"x":1}"#);
        assert_eq!(entry_line("plain"), "plain");
    }
}
