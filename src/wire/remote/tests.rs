//! Links that show a token, and what comes before the transport that a server speaks, against servers that are written out
//! here byte by byte.

use super::*;
use crate::model::endpoint::{ClientCredentials, Transport};

const CALL: &[u8] = br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}"#;

fn remote(auth: bool, known: Option<Bearer>) -> Remote {
    let endpoint = Endpoint {
        transport: Transport::Http,
        url: "http://h.test/mcp".to_string(),
        headers: vec![("Authorization".to_string(), "row".to_string())],
        tls_ca: None,
        auth: auth.then(|| ClientCredentials {
            token_url: "http://t.test/token".to_string(),
            client_id: "me".to_string(),
            client_secret: "hidden".to_string(),
            scope: None,
            resource: None,
        }),
        startup_ms: 1_000,
    };
    Remote::new(Arc::new(endpoint), Seeds { key: [1; 16], masks: [2; 32] }, known, 0)
        .unwrap_or_else(|why| panic!("{why:?}"))
}

fn all(remote: &mut Remote) -> Vec<Command> {
    std::iter::from_fn(|| remote.poll()).collect()
}

/// Connects what is to be opened and answers the request that comes of it; gives the request, and what follows.
fn serve(remote: &mut Remote, commands: &[Command], answer: &str, now_ms: u64) -> (String, Vec<Command>) {
    let mut words = String::new();
    let mut channel = None;
    let note = |commands: &[Command], words: &mut String, channel: &mut Option<Channel>| {
        for command in commands {
            match command {
                Command::Open { channel: opened, .. } => *channel = Some(*opened),
                Command::Write { channel: to, bytes } => {
                    *channel = Some(*to);
                    words.push_str(std::str::from_utf8(bytes).unwrap());
                }
                _ => {}
            }
        }
    };
    note(commands, &mut words, &mut channel);
    if words.is_empty() {
        remote.heard(channel.expect("a connection"), Heard::Connected { proxy: None }, now_ms);
        note(&all(remote), &mut words, &mut channel);
    }
    remote.heard(channel.expect("a request"), Heard::Bytes(answer.as_bytes().to_vec()), now_ms);
    (words, all(remote))
}

fn answer(status: &str, media: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn token(text: &str) -> String {
    answer("200 OK", "application/json", &format!(r#"{{"access_token":"{text}","expires_in":100}}"#))
}

fn result() -> String {
    answer("200 OK", "application/json", r#"{"jsonrpc":"2.0","id":7,"result":{}}"#)
}

/// Signed in with `t1` at 0 ms.
fn signed_in() -> Remote {
    let mut remote = remote(true, None);
    let commands = all(&mut remote);
    let (words, commands) = serve(&mut remote, &commands, &token("t1"), 0);
    assert!(words.starts_with("POST /token HTTP/1.1\r\n"), "{words}");
    assert!(commands.contains(&Command::Connected), "{commands:?}");
    remote
}

#[test]
fn a_token_is_fetched_first_and_shown_instead_of_what_the_row_says() {
    let mut remote = signed_in();
    remote.write(CALL, Some(CallId(7)), 1);
    let commands = all(&mut remote);
    let (words, commands) = serve(&mut remote, &commands, &result(), 1);
    assert!(words.contains("Authorization: Bearer t1\r\n") && !words.contains("row"), "{words}");
    assert!(matches!(commands[..], [Command::Line(_)]), "{commands:?}");
}

#[test]
fn a_known_token_is_shown_at_once_and_an_ended_one_is_not() {
    let bearer = signed_in().bearer().cloned().unwrap();
    assert_eq!(all(&mut remote(true, Some(bearer.clone()))), [Command::Connected]);
    let mut ended = bearer;
    ended.until_ms = 0;
    assert!(matches!(all(&mut remote(true, Some(ended)))[..], [Command::Open { .. }]));
}

#[test]
fn shortly_before_its_end_another_one_is_fetched_while_messages_wait() {
    let mut remote = signed_in();
    remote.write(CALL, Some(CallId(7)), 95_000);
    let commands = all(&mut remote);
    let (words, commands) = serve(&mut remote, &commands, &token("t2"), 95_000);
    assert!(words.starts_with("POST /token "), "{words}");
    let (words, _) = serve(&mut remote, &commands, &result(), 95_000);
    assert!(words.contains("Bearer t2"), "{words}");
}

#[test]
fn a_message_that_is_answered_401_is_sent_once_more_with_another_token_and_not_again() {
    let refused = answer("401 Unauthorized", "text/plain", "");
    let mut remote = signed_in();
    remote.write(CALL, Some(CallId(7)), 20_000);
    let commands = all(&mut remote);
    let (words, commands) = serve(&mut remote, &commands, &refused, 20_000);
    assert!(words.contains("Bearer t1"), "{words}");
    let (words, commands) = serve(&mut remote, &commands, &token("t2"), 20_000);
    assert!(words.starts_with("POST /token "), "{words}");
    let (words, commands) = serve(&mut remote, &commands, &refused, 20_000);
    assert!(words.contains("Bearer t2"), "{words}");
    let undelivered = commands.iter().find_map(|command| match command {
        Command::Undelivered { call: CallId(7), fault } => Some(fault.data["upstream_status"].clone()),
        _ => None,
    });
    assert_eq!(undelivered, Some(401.into()), "{commands:?}");
}

#[test]
fn without_a_token_there_is_no_link_and_one_that_is_up_stays_up() {
    let refused = answer("401 Unauthorized", "application/json", r#"{"error":"invalid_client"}"#);
    let mut remote = remote(true, None);
    let commands = all(&mut remote);
    let (_, commands) = serve(&mut remote, &commands, &refused, 0);
    let Some(Command::Lost(why)) = commands.last() else { panic!("{commands:?}") };
    assert!(why.message.contains("invalid_client") && !why.message.contains("hidden"), "{}", why.message);
    let mut remote = signed_in();
    remote.write(CALL, Some(CallId(7)), 95_000);
    let commands = all(&mut remote);
    let (_, commands) = serve(&mut remote, &commands, &refused, 95_000);
    let outcome = commands.iter().find_map(|command| match command {
        Command::Undelivered { fault, .. } => Some(fault.data["outcome"].clone()),
        _ => None,
    });
    assert_eq!(outcome, Some("not_sent".into()), "{commands:?}");
    assert!(!commands.iter().any(|command| matches!(command, Command::Lost(_))), "{commands:?}");
}

const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;

#[test]
fn a_server_that_speaks_only_the_pair_of_2024_is_spoken_to_in_that() {
    for status in ["400 Bad Request", "404 Not Found", "405 Method Not Allowed"] {
        let mut remote = remote(false, None);
        assert_eq!(all(&mut remote), [Command::Connected]);
        remote.write(INITIALIZE, Some(CallId(1)), 0);
        let commands = all(&mut remote);
        let (_, commands) = serve(&mut remote, &commands, &answer(status, "text/plain", "no"), 0);
        let stream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: endpoint\ndata: /m\n\n";
        let (words, commands) = serve(&mut remote, &commands, stream, 0);
        assert!(words.starts_with("GET /mcp HTTP/1.1\r\n"), "{words}");
        let accepted = answer("202 Accepted", "text/plain", "");
        let (words, commands) = serve(&mut remote, &commands, &accepted, 0);
        assert!(words.starts_with("POST /m HTTP/1.1\r\n") && words.contains("initialize"), "{words}");
        assert_eq!(commands, [], "it was connected before");
    }
}

#[test]
fn where_that_does_not_help_either_the_first_refusal_is_told() {
    let mut remote = remote(false, None);
    remote.write(INITIALIZE, Some(CallId(1)), 0);
    let commands = all(&mut remote);
    let (_, commands) = serve(&mut remote, &commands, &answer("404 Not Found", "text/plain", "no"), 0);
    let (_, commands) = serve(&mut remote, &commands, &answer("405 Not Allowed", "text/plain", "no"), 0);
    let Some(Command::Lost(why)) = commands.last() else { panic!("{commands:?}") };
    assert_eq!(why.kind, LinkFaultKind::Status(404));
}
