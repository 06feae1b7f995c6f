//! The command line as scripts and people use it: forms, exit codes, and what goes to which stream.

use crate::support::{self, Daemon, RUDE, STDIOD, python};
use serde_json::{Value, json};
use std::process::Output;

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_server_lives_its_whole_life_by_the_command_line() {
    let daemon = Daemon::start();
    let file = daemon.scratch("cli").join("rude.json");
    std::fs::write(&file, python("rude", "crun", RUDE).to_string()).expect("a file");

    let registered = daemon.cli(&["register", file.to_str().expect("our own name")]);
    assert_eq!(registered.status.code(), Some(0), "{registered:?}");
    let again = daemon.cli(&["register", file.to_str().expect("our own name")]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("name_taken"), "{again:?}");

    let listed = daemon.cli(&["ls"]);
    assert!(out(&listed).contains("rude") && out(&listed).contains("ready"), "{listed:?}");
    let listed = daemon.cli_json(&["ls"]);
    assert_eq!(listed[0]["name"], "rude", "{listed}");
    let id = listed[0]["workspace_id"].as_str().expect("an id").to_string();
    assert_eq!(daemon.cli_json(&["status", &id])["name"], "rude", "by id as well as by name");

    assert!(out(&daemon.cli(&["tools", "rude"])).contains("whoami"));
    let called = daemon.cli(&["call", "rude", "--tool", "echo", r#"{"text":"hello"}"#]);
    assert_eq!(called.status.code(), Some(0), "{called:?}");
    assert!(out(&called).contains("hello"), "{called:?}");
    let called: Value =
        daemon.cli_json(&["call", "rude", "tools/call", r#"{"name":"echo","arguments":{"text":"hi"}}"#]);
    assert_eq!(called["result"]["content"][0]["text"], "hi", "{called}");
    let unknown = daemon.cli(&["call", "rude", "no/such/method"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("-32601"), "{unknown:?}");

    assert!(out(&daemon.cli(&["logs", "rude"])).contains("rude.py: up"));
    for (command, status) in [("stop", "stopped"), ("start", "ready"), ("restart", "ready")] {
        let changed = daemon.cli(&[command, "rude"]);
        assert_eq!(changed.status.code(), Some(0), "{command}: {changed:?}");
        assert_eq!(daemon.status("rude")["status"], status, "{command}");
    }
    assert_eq!(daemon.cli(&["rm", "rude"]).status.code(), Some(0));
    assert_eq!(daemon.cli_json(&["ls"]), json!([]));
    let gone = daemon.cli(&["status", "rude"]);
    assert_eq!((gone.status.code(), out(&gone).as_str()), (Some(1), ""), "{gone:?}");
}

#[test]
fn wrong_use_wrong_configuration_and_no_daemon_have_their_exit_codes() {
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = std::process::Command::new(STDIOD);
        command.args(arguments).env_clear().envs(variables.iter().copied()).output().expect("it runs")
    };
    assert_eq!(run(&["--help"], &[]).status.code(), Some(0));
    assert_eq!(run(&["--version"], &[]).status.code(), Some(0));
    assert_eq!(run(&["frobnicate"], &[]).status.code(), Some(2));
    assert_eq!(run(&["call"], &[]).status.code(), Some(2));
    assert_eq!(run(&["status", ""], &[]).status.code(), Some(2), "the variable that was to be here is not set");
    let nobody = run(&["ls"], &[("STDIOD_URL", "http://127.0.0.1:1")]);
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("127.0.0.1:1"), "{nobody:?}");

    let directory = support::short_temporary_directory();
    let file = directory.join("stdiod.toml");
    std::fs::write(&file, "# a comment\nlisten = \"127.0.0.1:0\"\nlissten = 1\n").expect("a file");
    let listen = format!("unix:{}", file.display());
    let data_dir = directory.join("data").display().to_string();
    let path = std::env::var("PATH").expect("a PATH");
    let variables = [("STDIOD_LISTEN", listen.as_str()), ("STDIOD_DATA_DIR", &data_dir), ("PATH", &path)];
    let no_socket = run(&["serve"], &variables);
    assert_eq!(no_socket.status.code(), Some(1), "{no_socket:?}");
    assert!(String::from_utf8_lossy(&no_socket.stderr).contains("no socket"), "{no_socket:?}");
    assert!(file.is_file(), "somebody's file is not taken for an old socket");
    let wrong = run(&["serve", "--config", file.to_str().expect("our own name")], &[]);
    std::fs::remove_dir_all(&directory).expect("our directory");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let told = String::from_utf8_lossy(&wrong.stderr);
    assert!(told.contains("lissten") && told.contains("line 3"), "unknown keys are refused with their line: {told}");
}

#[test]
fn doctor_tells_what_this_host_can_do() {
    let daemon = Daemon::start();
    let doctor = daemon.cli(&["doctor"]);
    let told = out(&doctor);
    assert_eq!(doctor.status.code(), Some(0), "{doctor:?}");
    for part in ["runsc", "crun", "cgroup", "PostgreSQL"] {
        assert!(told.to_lowercase().contains(&part.to_lowercase()), "no {part} in {told}");
    }
}
