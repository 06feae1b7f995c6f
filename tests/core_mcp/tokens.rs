//! Tokens and time: what ends with a token, and what a rotation leaves alive.

use crate::stage::{Child, Stage, someone};
use serde_json::json;
use stdiod::api::request::{Ask, TokenWanted};
use stdiod::api::response::Answer;
use stdiod::model::fault::Code;
use stdiod::model::principal::Principal;

#[test]
fn a_token_that_comes_to_its_end_ends_what_was_opened_with_it() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    let scopes = vec!["mcp:call".to_string()];
    let lifetime_ms = Some(60_000);
    let wanted = TokenWanted { name: "guest".to_string(), scopes, lifetime_ms, ..TokenWanted::default() };
    stage.ask(&someone(), Ask::TokenCreate { wanted });
    stage.who = Principal { name: "guest".into(), ..someone() };
    let session = stage.session(Some("old"), json!({}));
    let (stream, watching) = (stage.listen(Some("old"), session), stage.ask(&stage.who.clone(), Ask::News));
    stage.pass(59_000);
    assert!(!stage.has_ended(stream) && !stage.has_ended(watching));
    stage.pass(1_000);
    assert!(stage.has_ended(stream) && stage.has_ended(watching));
    let list = stage.ask(&someone(), Ask::TokenList);
    let Some(Answer::Tokens(tokens)) = stage.answered(list) else { panic!("a list") };
    let guest = tokens.iter().find(|token| token.name == "guest").expect("it stays in the list");
    assert!(guest.last_used_unix_ms.is_some() && guest.expires_unix_ms.is_some(), "{guest:?}");
}

#[test]
fn a_token_that_is_rotated_without_grace_is_dead_at_once_and_with_grace_a_while_later() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    let scopes = vec!["mcp:call".to_string()];
    let wanted = TokenWanted { name: "guest".to_string(), scopes, ..TokenWanted::default() };
    stage.ask(&someone(), Ask::TokenCreate { wanted });
    stage.who = Principal { name: "guest".into(), ..someone() };
    let watching = stage.ask(&stage.who.clone(), Ask::News);
    let rotate = |stage: &mut Stage, grace_ms: u64| {
        let conn = stage.ask(&someone(), Ask::TokenRotate { name: "guest".to_string(), grace_ms });
        match stage.answered(conn) {
            Some(Answer::TokenCreated { token, secret, rotated: true }) => (token, secret),
            other => panic!("{other:?}"),
        }
    };
    let (first, secret) = rotate(&mut stage, 0);
    assert!(stage.has_ended(watching) && first.previous.is_none() && secret.len() >= 32);
    let watching = stage.ask(&stage.who.clone(), Ask::News);
    let (second, _) = rotate(&mut stage, 5_000);
    assert_eq!(second.previous.map(|(hash, _)| hash), Some(first.hash));
    assert!(!stage.has_ended(watching));
    stage.pass(5_000);
    assert!(stage.has_ended(watching), "whoever had the old one, or the new one, comes again with the new one");
    let unknown = stage.ask(&someone(), Ask::TokenRotate { name: "nobody".to_string(), grace_ms: 0 });
    assert!(matches!(stage.answered(unknown), Some(Answer::Refused(fault)) if fault.code == Code::NotFound));
}
