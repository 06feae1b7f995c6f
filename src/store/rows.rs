//! What is in the tables, read at boot. Every row is judged by the rules of a request (`api::stored`, `api::auth`), because
//! anybody with a connection to the database can have written it: what breaks one becomes an `UnfitServer`, or is left out
//! if it is a token, and stops nobody else. Never changes a row. Invariant: what is read of one row is bounded, no row
//! makes the query fail, and no value of a definition gets into a log.

use crate::api::auth::token_name;
use crate::api::definition::fields::server_name;
use crate::api::definition::stored;
use crate::ids::{ServerId, Uuid};
use crate::limits::{
    CRASH_TAIL_LINES, LOG_LINE_MAX, NAME_MAX, SCOPES_MAX, SERVERS_MAX, STORED_CATALOGUE_MAX, STORED_CRASH_MAX,
    STORED_DEFINITION_MAX, STORED_ERROR_MAX, STORED_TOKEN_MAX, TOKEN_SERVERS_MAX, TOKENS_MAX,
};
use crate::model::catalogue::Catalogue;
use crate::model::definition::Definition;
use crate::model::external::ProjectId;
use crate::model::fault::Fault;
use crate::model::rate::RateLimit;
use crate::model::records::{Snapshot, StoredServer, StoredStatus, Token, UnfitServer};
use crate::model::status::{LastCrash, Status};
use crate::sealing::SealingError;
use crate::store::environments;
use crate::store::projects;
use crate::store::seals::Seals;
use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, IsolationLevel, Row, Transaction};

// As text, whatever type a table of others gives its columns; and only as much as can be right. An infinite timestamp has no
// milliseconds.
fn select_servers() -> String {
    format!(
        "SELECT id, left(name::text, {}), desired::text, octet_length(definition::text),
            CASE WHEN octet_length(definition::text) <= {STORED_DEFINITION_MAX} THEN definition::text END,
            status::text, restart_count::text,
            CASE WHEN octet_length(last_crash::text) <= {STORED_CRASH_MAX} THEN last_crash::text END,
            left(last_error::text, {STORED_ERROR_MAX}),
            CASE WHEN isfinite(created_at) THEN floor(extract(epoch FROM created_at) * 1000)::bigint END,
            CASE WHEN isfinite(last_used_at) THEN floor(extract(epoch FROM last_used_at) * 1000)::bigint END,
            environment_sealed IS NOT NULL,
            CASE WHEN octet_length(environment_sealed) <= {STORED_DEFINITION_MAX} THEN environment_sealed END,
            CASE WHEN octet_length(catalogue) <= {STORED_CATALOGUE_MAX} THEN catalogue END
        FROM kb.agent_workspaces WHERE container_type = 'mcp_server' ORDER BY created_at, id LIMIT {}",
        NAME_MAX + 1,
        SERVERS_MAX + 1,
    )
}

fn select_tokens() -> String {
    format!(
        "SELECT id, left(name, {}), CASE WHEN octet_length(hash) = 32 THEN hash END,
            CASE WHEN octet_length(scopes::text) <= {STORED_TOKEN_MAX} THEN scopes END,
            CASE WHEN octet_length(servers::text) <= {STORED_TOKEN_MAX} THEN servers END,
            CASE WHEN isfinite(created_at) THEN floor(extract(epoch FROM created_at) * 1000)::bigint END,
            CASE WHEN expires_at < 'infinity' THEN greatest(0, floor(extract(epoch FROM expires_at) * 1000))::bigint END,
            CASE WHEN isfinite(last_used_at) THEN floor(extract(epoch FROM last_used_at) * 1000)::bigint END,
            CASE WHEN octet_length(previous_hash) = 32 THEN previous_hash END,
            CASE WHEN isfinite(previous_until) THEN floor(extract(epoch FROM previous_until) * 1000)::bigint END,
            rate_per_second, rate_burst,
            CASE WHEN octet_length(projects::text) <= {STORED_TOKEN_MAX} THEN projects END
        FROM kb.api_tokens ORDER BY created_at, id LIMIT {}",
        NAME_MAX + 1,
        TOKENS_MAX + 1,
    )
}

fn select_removals() -> String {
    format!(
        "SELECT id, left(name, {}) FROM kb.volume_removals ORDER BY decided_at, id LIMIT {SERVERS_MAX}",
        NAME_MAX + 1
    )
}

pub fn load(client: &mut Client, seals: &mut Seals) -> Result<Snapshot, postgres::Error> {
    let mut tx = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true).start()?;
    let mut snapshot = Snapshot::default();
    each(&mut tx, &select_servers(), SERVERS_MAX, "kb.agent_workspaces", |row| match server_of(row, seals) {
        Ok(Ok(server)) => {
            snapshot.catalogues.extend(catalogue_of(row).map(|catalogue| (server.id, catalogue)));
            snapshot.servers.push(server);
        }
        Ok(Err(unfit)) => snapshot.unfit.push(unfit),
        Err(why) => log::error!("store: a row of kb.agent_workspaces is left out: {why}"),
    })?;
    each(&mut tx, &select_tokens(), TOKENS_MAX, "kb.api_tokens", |row| match token_of(row) {
        Ok(token) => snapshot.tokens.push(token),
        Err(why) => log::error!("store: the token {} of kb.api_tokens is left out: {why}", row_name(row)),
    })?;
    each(&mut tx, &select_removals(), SERVERS_MAX, "kb.volume_removals", |row| {
        match (column::<Uuid>(row, 0), column::<String>(row, 1)) {
            (Ok(id), Ok(name)) => snapshot.volume_removals.push((ServerId(id), name)),
            (Err(why), _) | (_, Err(why)) => log::error!("store: a row of kb.volume_removals is left out: {why}"),
        }
    })?;
    projects::load(&mut tx, seals, &mut snapshot)?;
    tx.commit()?;
    Ok(snapshot)
}

/// One row at a time: all of them at once might be more than fits.
pub fn each(
    tx: &mut Transaction<'_>,
    query: &str,
    most: usize,
    table: &str,
    mut take: impl FnMut(&Row),
) -> Result<(), postgres::Error> {
    let mut rows = tx.query_raw(query, std::iter::empty::<i32>())?;
    let mut taken = 0;
    while let Some(row) = rows.next()? {
        if taken == most {
            log::error!("store: {table} has more than {most} rows; the newest are left out");
            continue;
        }
        taken += 1;
        take(&row);
    }
    Ok(())
}

// --- servers --------------------------------------------------------------------------------------------------------

/// One that cannot be read is none: the server says it anew.
fn catalogue_of(row: &Row) -> Option<Catalogue> {
    let kept = row.try_get::<_, Option<Vec<u8>>>(13).ok().flatten()?;
    serde_json::from_slice(&kept).ok()
}

/// The error is of a row that cannot even be named.
fn server_of(row: &Row, seals: &mut Seals) -> Result<Result<StoredServer, UnfitServer>, String> {
    let id = ServerId(column(row, 0)?);
    let name = text(row, 1).filter(|name| server_name(name).is_ok());
    let desired_up = match text(row, 2).as_deref() {
        Some("up") => Ok(true),
        Some("down") => Ok(false),
        Some(_) | None => Err(Fault::field("desired", "must be up or down")),
    };
    let definition =
        definition_of(row, name.as_deref()).and_then(|definition| environment_of(row, definition, id, seals));
    let server = |definition: Definition, desired_up: bool| StoredServer {
        id,
        definition,
        desired_up,
        status: status_of(row),
        created_unix_ms: unsigned(row.try_get(9).ok().flatten()),
    };
    let up = *desired_up.as_ref().unwrap_or(&false);
    let (definition, why) = match (definition, desired_up) {
        (Ok(definition), Ok(up)) => return Ok(Ok(server(definition, up))),
        (Ok(definition), Err(why)) => (definition, why),
        (Err((definition, why)), _) => (definition.unwrap_or_else(|| stored::nothing_of(String::new())), why),
    };
    // Its own name, if it has one; and nothing else that could be a path.
    let (name, why) = match name {
        Some(name) => (name, why),
        None => (stored::harmless_name(id), Fault::field("name", rule_of_names())),
    };
    Ok(Err(UnfitServer { server: server(Definition { name, ..definition }, up), why }))
}

fn rule_of_names() -> String {
    server_name("").expect_err("the rule")
}

/// What could be read of it comes with the refusal.
fn definition_of(row: &Row, name: Option<&str>) -> Result<Definition, (Option<Definition>, Fault)> {
    let unreadable = |why: &str| (None, Fault::field("definition", why));
    let Some(json) = text(row, 4) else {
        return Err(match row.try_get::<_, Option<i32>>(3) {
            Ok(Some(_)) => unreadable(&format!("must not be longer than {STORED_DEFINITION_MAX} bytes")),
            Ok(None) | Err(_) => unreadable("is required"),
        });
    };
    let read: Definition = serde_json::from_str(&json).map_err(|e| unreadable(&words(&e)))?;
    let checked = match name {
        None => Err(Fault::field("name", rule_of_names())),
        Some(name) if read.name != name => Err(Fault::field("name", "the row and its definition have different ones")),
        Some(_) => stored::check(&read),
    };
    checked.map_err(|why| (Some(read), why))
}

/// With the values of its environment, if they are sealed and can be opened.
fn environment_of(
    row: &Row,
    definition: Definition,
    id: ServerId,
    seals: &mut Seals,
) -> Result<Definition, (Option<Definition>, Fault)> {
    if !row.try_get::<_, bool>(11).unwrap_or(false) {
        return Ok(definition);
    }
    let opened = text(row, 12).ok_or(SealingError::TooLarge).and_then(|sealed| environments::open(seals, id, &sealed));
    match opened {
        Err(why) => Err((Some(definition), stored::sealed_environment(&why))),
        Ok(environment) => {
            let whole = Definition { environment, ..definition };
            stored::check(&whole).map_err(|why| (Some(whole), why))
        }
    }
}

/// Why JSON is no definition. Most messages of serde quote the value, and a value may be a secret; a field's name is none.
fn words(e: &serde_json::Error) -> String {
    let text = e.to_string();
    let known = ["missing field", "unknown field"].iter().any(|beginning| text.starts_with(beginning));
    match text.split(", expected").next().and_then(|text| text.split(" at line").next()) {
        Some(text) if known => text.chars().take(2 * NAME_MAX).flat_map(char::escape_debug).collect(),
        Some(_) | None => "is not one of this version".to_string(),
    }
}

/// What is said here is about an earlier life: a word that is not known is no reason to lose the server.
fn status_of(row: &Row) -> StoredStatus {
    let status = text(row, 5).and_then(|word| serde_json::from_value(serde_json::Value::String(word)).ok());
    let last_crash = text(row, 7).and_then(|json| serde_json::from_str::<LastCrash>(&json).ok());
    StoredStatus {
        status: status.unwrap_or(Status::Stopped),
        restart_count: unsigned(text(row, 6).and_then(|count| count.parse().ok())),
        last_crash: last_crash.map(|mut crash| {
            crash.stderr_tail.truncate(CRASH_TAIL_LINES);
            crash.stderr_tail.iter_mut().for_each(|line| line.truncate(boundary(line, LOG_LINE_MAX)));
            crash
        }),
        last_error: text(row, 8),
        last_used_unix_ms: row.try_get::<_, Option<i64>>(10).ok().flatten().map(|ms| unsigned(Some(ms))),
    }
}

// --- tokens ---------------------------------------------------------------------------------------------------------

fn token_of(row: &Row) -> Result<(Uuid, Token), String> {
    let name: String = column(row, 1)?;
    let name = token_name(&name).map_err(|why| format!("name: {why}"))?;
    let hash: Vec<u8> = column::<Option<_>>(row, 2)?.ok_or("hash: must be 32 bytes long")?;
    let too_long = |what: &str| format!("{what}: must not be longer than {STORED_TOKEN_MAX} bytes");
    // A scope that is not known grants nothing.
    let scopes: Vec<String> = column::<Option<_>>(row, 3)?.ok_or_else(|| too_long("scopes"))?;
    let servers: Vec<String> = column::<Option<_>>(row, 4)?.ok_or_else(|| too_long("servers"))?;
    let projects: Vec<String> = column::<Option<_>>(row, 12)?.ok_or_else(|| too_long("projects"))?;
    if scopes.len() > SCOPES_MAX || servers.len() > TOKEN_SERVERS_MAX || projects.len() > TOKEN_SERVERS_MAX {
        let most = format!("{SCOPES_MAX} scopes, {TOKEN_SERVERS_MAX} servers and as many projects");
        return Err(format!("must not have more than {most}"));
    }
    let projects = projects.iter().map(|id| ProjectId::new(id)).collect::<Result<Vec<_>, _>>();
    let projects = projects.map_err(|why| format!("projects: {why}"))?;
    if let Some(why) = servers.iter().find_map(|name| server_name(name).err()) {
        return Err(format!("servers: {why}"));
    }
    let hash = hash.try_into().map_err(|_| "hash: must be 32 bytes long")?;
    let millis = |index: usize| column::<Option<i64>>(row, index).map(|ms| ms.map(|ms| unsigned(Some(ms))));
    let previous: Option<Vec<u8>> = column(row, 8)?;
    let previous = previous.and_then(|hash| hash.try_into().ok());
    let rate = match (column::<Option<i32>>(row, 10)?, column::<Option<i32>>(row, 11)?) {
        (None, _) => None,
        (Some(per_second), burst) => {
            let number = |n: i32| u32::try_from(n).unwrap_or(0);
            let rate = RateLimit::new(number(per_second), number(burst.unwrap_or(per_second)));
            Some(rate.map_err(|(key, why)| format!("rate_{key}: {why}"))?)
        }
    };
    let token = Token {
        name,
        hash,
        scopes,
        servers,
        projects,
        created_unix_ms: unsigned(column(row, 5)?),
        // One that cannot be read must not become one without an end.
        expires_unix_ms: millis(6)?,
        last_used_unix_ms: millis(7)?,
        previous: previous.zip(millis(9)?),
        rate_limit: rate,
    };
    Ok((column(row, 0)?, token))
}

// --- columns --------------------------------------------------------------------------------------------------------

pub fn column<'r, T: postgres::types::FromSql<'r>>(row: &'r Row, index: usize) -> Result<T, String> {
    row.try_get(index).map_err(|e| format!("column {}: {e}", index + 1))
}

pub fn text(row: &Row, index: usize) -> Option<String> {
    row.try_get::<_, Option<String>>(index).ok().flatten()
}

/// For the log: a name that may be anything.
fn row_name(row: &Row) -> String {
    match text(row, 1) {
        Some(name) => format!("{name:?}"),
        None => row.try_get::<_, Uuid>(0).map_or_else(|_| "?".to_string(), |id| id.to_string()),
    }
}

pub fn unsigned(n: Option<i64>) -> u64 {
    n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

/// The last place at or before `most` where a character ends.
fn boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_survives_its_own_word() {
        for status in [
            Status::Starting,
            Status::Ready,
            Status::Unresponsive,
            Status::Stopping,
            Status::Stopped,
            Status::Restarting,
            Status::Backoff,
            Status::Failed,
            Status::Asleep,
        ] {
            let word = serde_json::Value::String(status.wire().to_string());
            assert_eq!(serde_json::from_value::<Status>(word).ok(), Some(status));
        }
    }

    #[test]
    fn the_reason_for_a_refused_row_names_a_field_and_never_quotes_a_value() {
        let why = |json: &str| words(&serde_json::from_str::<Definition>(json).unwrap_err());
        assert_eq!(why(r#"{"KEY\n\u001b[2J":"hunter2"}"#), r"unknown field `KEY\n\u{1b}[2J`");
        assert_eq!(why("{}"), "missing field `name`");
        for quoted in [r#"{"name": 5, "cmd": "hunter2"}"#, r#"{"cmd": "hunter2"}"#, r#"{"user": ["hunter2"]}"#, "["] {
            assert_eq!(why(quoted), "is not one of this version");
        }
        assert!(why(&format!(r#"{{"{}": 1}}"#, "x".repeat(1 << 20))).len() < 4 * NAME_MAX);
    }
}
