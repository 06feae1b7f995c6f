//! `register`: a definition from a file, or put together from flags, sent to the daemon. Judges only what the daemon
//! cannot see (local files, the form of a flag); everything else is the daemon's to refuse. Values of the environment
//! are never printed.

use super::api::{Api, SERVERS, Wait};
use super::error::Error;
use super::read_stdin;
use super::screen::{Form, Screen};
use super::servers::{parse, text};
use clap::ValueEnum;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

#[derive(clap::Args, Default)]
#[command(after_help = "Examples:
  stdiod register notes.json
  stdiod register notes --image notes:1 --volume /data --env-file notes.env
  stdiod register hello --host --file /app/hello.py=hello.py -- python3 /app/hello.py")]
pub struct Register {
    /// Its name; or a file (FILE.json, or `-` for stdin) with a whole definition
    #[arg(value_name = "NAME|FILE.json|-")]
    what: String,
    /// Run this image (see `stdiod image`)
    #[arg(long, conflicts_with = "host")]
    image: Option<String>,
    /// Run a command of this host's /usr, sandboxed
    #[arg(long)]
    host: bool,
    /// gvisor, crun, or a provider of the configuration
    #[arg(long)]
    provider: Option<String>,
    /// An environment variable; without a value, the value it has here
    #[arg(long, value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// A file with one KEY=VALUE per line
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// A directory in the container that outlives it
    #[arg(long, value_name = "PATH")]
    volume: Vec<String>,
    /// Put a local text file into the container
    #[arg(long, value_name = "PATH=LOCALFILE")]
    file: Vec<String>,
    /// As in 512M or 2G
    #[arg(long)]
    memory: Option<String>,
    /// Cores, as in 0.5
    #[arg(long)]
    cpu: Option<String>,
    /// Of the writable layer, as in 1G
    #[arg(long)]
    disk: Option<String>,
    /// Of all its volumes together, as in 2G (default: as --disk)
    #[arg(long, value_name = "SIZE")]
    volume_size: Option<String>,
    /// User in the container
    #[arg(long)]
    user: Option<String>,
    /// Where the command starts
    #[arg(long)]
    workdir: Option<String>,
    /// When it is started again
    #[arg(long, value_name = "POLICY")]
    restart: Option<Restart>,
    /// Calls it can work on at once (default 1)
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
    /// Do not wait until it is ready
    #[arg(long)]
    no_wait: bool,
    /// The command to run
    #[arg(last = true, value_name = "CMD")]
    cmd: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Restart {
    Always,
    OnFailure,
    Never,
}

impl Restart {
    fn wire(self) -> &'static str {
        match self {
            Restart::Always => "always",
            Restart::OnFailure => "on-failure",
            Restart::Never => "never",
        }
    }
}

pub fn register(api: &Api, screen: &mut Screen, args: &Register) -> Result<(), Error> {
    let definition = definition_text(args)?;
    let (query, wait) = if args.no_wait { ("?wait=false", Wait::Quick) } else { ("", Wait::Lifecycle) };
    let body = api.post(&format!("{SERVERS}{query}"), Some(definition.as_bytes()), wait)?;
    let server = parse(&body)?;
    let (name, status) = (text(&server["name"]), text(&server["status"]));
    match screen.form {
        Form::Json => screen.json(&body)?,
        Form::Human => screen.line(&format!("registered {name} ({}): {status}", text(&server["workspace_id"])))?,
    }
    if args.no_wait || status == "ready" || server["stdio_bridge"] == Value::Bool(false) {
        return Ok(());
    }
    screen.flush()?;
    let why = server["last_error"].as_str().unwrap_or("it has not answered yet");
    Err(Error::Fault(format!("{name} is registered, but not ready: {why}\nsee `stdiod logs {name}`")))
}

fn definition_text(args: &Register) -> Result<String, Error> {
    if !names_a_file(&args.what) {
        return Ok(Value::Object(definition_of_flags(args)?).to_string());
    }
    let plain = Register { what: args.what.clone(), no_wait: args.no_wait, ..Register::default() };
    if !definition_of_flags(args)?.eq(&definition_of_flags(&plain)?) {
        let text = "a file holds the whole definition: give either a file or flags";
        return Err(Error::Usage(text.to_string()));
    }
    let text = if args.what == "-" { read_stdin()? } else { read_local(Path::new(&args.what))? };
    // As with `call`: what is no JSON is wrong use. What it says is the daemon's to judge, byte for byte.
    match serde_json::from_str::<&RawValue>(&text) {
        Ok(_) => Ok(text),
        Err(why) => Err(Error::Usage(format!("{} is not valid JSON: {why}", args.what))),
    }
}

/// Names are made of `[a-z0-9-]`, so what holds a dot or a slash can only be a file.
fn names_a_file(what: &str) -> bool {
    what == "-" || what.contains(['.', '/'])
}

fn definition_of_flags(args: &Register) -> Result<Map<String, Value>, Error> {
    let mut definition = Map::new();
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            definition.insert(key.to_string(), value);
        }
    };
    let filled = |value: Value| match &value {
        Value::Array(items) if items.is_empty() => None,
        Value::Object(fields) if fields.is_empty() => None,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            Some(value)
        }
    };
    set("name", Some(json!(args.what)));
    set("image", args.image.as_deref().map(Value::from));
    set("rootfs", args.host.then(|| json!("host")));
    set("cmd", filled(json!(args.cmd)));
    set("provider", args.provider.as_deref().map(Value::from));
    set("environment", filled(Value::Object(environment(args)?)));
    set("volumes", filled(json!(args.volume)));
    set("files", filled(Value::Object(files(&args.file)?)));
    set("resource_limits", filled(limits(args)));
    set("user", args.user.as_deref().map(Value::from));
    set("workdir", args.workdir.as_deref().map(Value::from));
    set("restart_policy", args.restart.map(|policy| json!(policy.wire())));
    set("max_in_flight", args.max_in_flight.map(Value::from));
    Ok(definition)
}

fn limits(args: &Register) -> Value {
    let given = [("cpu", &args.cpu), ("memory", &args.memory), ("disk", &args.disk), ("volume", &args.volume_size)];
    let given = given.into_iter().filter_map(|(key, value)| Some((key.to_string(), json!(value.as_deref()?))));
    Value::Object(given.collect())
}

/// Files first, flags last: what stands on the command line wins.
fn environment(args: &Register) -> Result<Map<String, Value>, Error> {
    let mut environment = Map::new();
    for file in &args.env_file {
        for (number, line) in read_local(file)?.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                let text = format!("{} line {}: write KEY=VALUE", file.display(), number + 1);
                return Err(Error::Usage(text));
            };
            environment.insert(key.trim().to_string(), json!(value));
        }
    }
    for item in &args.env {
        let (key, value) = match item.split_once('=') {
            Some((key, value)) => (key, value.to_string()),
            None => match std::env::var(item) {
                Ok(value) => (item.as_str(), value),
                Err(_) => return Err(Error::Usage(format!("--env {item}: it has no value here; write {item}=VALUE"))),
            },
        };
        environment.insert(key.to_string(), json!(value));
    }
    Ok(environment)
}

fn files(items: &[String]) -> Result<Map<String, Value>, Error> {
    let mut files = Map::new();
    for item in items {
        let Some((path, local)) = item.split_once('=') else {
            return Err(Error::Usage(format!("--file {item}: write PATH=LOCALFILE, as in /app/server.py=server.py")));
        };
        files.insert(path.to_string(), json!(read_local(Path::new(local))?));
    }
    Ok(files)
}

fn read_local(file: &Path) -> Result<String, Error> {
    std::fs::read_to_string(file).map_err(|why| Error::Usage(format!("cannot read {}: {why}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        register: Register,
    }

    fn args(words: &[&str]) -> Register {
        Line::try_parse_from(["register"].iter().chain(words)).map_err(|error| error.to_string()).unwrap().register
    }

    fn sent(words: &[&str]) -> Value {
        let text = definition_text(&args(words)).map_err(|error| error.message()).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn complaint(words: &[&str]) -> String {
        let error = definition_text(&args(words)).expect_err("must be refused");
        assert_eq!(error.exit_code(), 2);
        error.message().unwrap()
    }

    fn scratch(name: &str, text: &str) -> PathBuf {
        let file = std::env::temp_dir().join(format!("stdiod-register-{}-{name}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn only_what_was_said_is_sent() {
        assert_eq!(sent(&["notes", "--image", "notes:1"]), json!({"name": "notes", "image": "notes:1"}));
    }

    #[test]
    fn flags_become_the_fields_of_a_definition() {
        let file = scratch("server.py", "print('hi')\n");
        let env = scratch("env", "# comment\n\nA=from file\nB=x=y\n");
        let definition = sent(&[
            "hello",
            "--host",
            "--provider=crun",
            "--env-file",
            env.to_str().unwrap(),
            "--env=A=flag wins",
            "--volume=/data",
            &format!("--file=/app/s.py={}", file.display()),
            "--memory=512M",
            "--cpu=0.5",
            "--restart=on-failure",
            "--max-in-flight=4",
            "--",
            "python3",
            "/app/s.py",
            "--flag",
        ]);
        std::fs::remove_file(file).unwrap();
        std::fs::remove_file(env).unwrap();
        let expected = json!({
            "name": "hello", "rootfs": "host", "provider": "crun", "cmd": ["python3", "/app/s.py", "--flag"],
            "environment": {"A": "flag wins", "B": "x=y"}, "volumes": ["/data"],
            "files": {"/app/s.py": "print('hi')\n"}, "resource_limits": {"cpu": "0.5", "memory": "512M"},
            "restart_policy": "on-failure", "max_in_flight": 4,
        });
        assert_eq!(definition, expected);
    }

    #[test]
    fn a_variable_without_a_value_takes_the_value_it_has_here() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(sent(&["x", "--env=PATH"])["environment"]["PATH"], json!(path));
        assert!(complaint(&["x", "--env=STDIOD_TEST_NOT_SET"]).contains("STDIOD_TEST_NOT_SET=VALUE"));
    }

    #[test]
    fn a_file_is_sent_byte_for_byte_and_takes_no_flags_beside_it() {
        let text = "{\"name\": \"x\",\n \"z\": 1.0e2}\n";
        let file = scratch("definition.json", text);
        let path = file.to_str().unwrap();
        assert_eq!(definition_text(&args(&[path, "--no-wait"])).ok().unwrap(), text);
        assert!(complaint(&[path, "--cpu=1"]).contains("either a file or flags"));
        std::fs::write(&file, "{\"name\": \"x\",}").unwrap();
        assert!(complaint(&[path]).contains("not valid JSON"));
        std::fs::remove_file(file).unwrap();
        assert!(complaint(&["missing.json"]).contains("missing.json"));
    }

    #[test]
    fn a_malformed_flag_is_wrong_use_and_shows_no_value() {
        assert!(complaint(&["x", "--file=/app/x"]).contains("PATH=LOCALFILE"));
        assert!(complaint(&["x", "--env-file=/nonexistent"]).contains("/nonexistent"));
        let env = scratch("bad-env", "A=1\nhunter2\n");
        let said = complaint(&["x", "--env-file", env.to_str().unwrap()]);
        std::fs::remove_file(env).unwrap();
        assert!(said.contains("line 2") && !said.contains("hunter2"), "{said}");
    }
}
