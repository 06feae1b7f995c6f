//! What is said to the database: each `StoreOp` as one statement, the snapshot as two queries, and errors in words.
//! Owns the shape of the rows; never decides when to write or what to do after a failure. Invariant: only rows of
//! `container_type = 'mcp_server'` are read or touched, and no value of a definition gets into an error or a log.

use crate::core::contract::{LastCrash, Snapshot, Status, StoreOp, StoredServer, StoredStatus, Token};
use crate::core::definition::{Definition, Source};
use crate::ids::{ServerId, Uuid};
use postgres::types::{Json, ToSql, Type};
use postgres::{Client, GenericClient, IsolationLevel, Row};
use std::borrow::Cow;
use std::error::Error as _;

/// Why an operation was not done.
#[derive(Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The data is at fault: the database would refuse it again.
    Refused(String),
    /// The connection, the server or its state is at fault; perhaps it was done all the same.
    Failed(String),
}

impl From<postgres::Error> for Trouble {
    fn from(e: postgres::Error) -> Trouble {
        // 22: data exceptions, 23: integrity constraints.
        match e.code().map(|state| &state.code()[..2]) {
            Some("22" | "23") => Trouble::Refused(describe(&e)),
            Some(_) | None => Trouble::Failed(describe(&e)),
        }
    }
}

/// An error in words. Only the message of a database error: its DETAIL shows the failing row, with all its secrets.
pub fn describe(e: &postgres::Error) -> String {
    match (e.as_db_error(), e.source()) {
        (Some(db), _) => format!("{} (SQLSTATE {})", db.message(), db.code().code()),
        (None, Some(cause)) => format!("{e}: {cause}"),
        (None, None) => e.to_string(),
    }
}

// --- writing --------------------------------------------------------------------------------------------------------

// Milliseconds become a timestamptz by whole microseconds, without a detour through the session's time zone.
const INSERT_SERVER: &str = "
    INSERT INTO kb.agent_workspaces (id, container_type, name, provider, image, desired, definition, status,
        restart_count, last_crash, last_error, created_at, updated_at, last_used_at)
    VALUES ($1, 'mcp_server', $2, $3, $4, $5, $6, $7, $8, $9, $10,
        'epoch'::timestamptz + $11 * interval '1 millisecond', now(),
        'epoch'::timestamptz + $12 * interval '1 millisecond')
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, provider = excluded.provider, image = excluded.image,
        desired = excluded.desired, definition = excluded.definition, status = excluded.status,
        restart_count = excluded.restart_count, last_crash = excluded.last_crash, last_error = excluded.last_error,
        updated_at = now(), last_used_at = excluded.last_used_at
    WHERE agent_workspaces.container_type = 'mcp_server'";

const UPDATE_SERVER: &str = "
    UPDATE kb.agent_workspaces
    SET name = $2, provider = $3, image = $4, desired = $5, definition = $6, updated_at = now()
    WHERE id = $1 AND container_type = 'mcp_server'";

const DELETE_SERVER: &str = "DELETE FROM kb.agent_workspaces WHERE id = $1 AND container_type = 'mcp_server'";

const SAVE_STATUS: &str = "
    UPDATE kb.agent_workspaces
    SET status = $2, restart_count = $3, last_crash = $4, last_error = $5, updated_at = now(),
        last_used_at = 'epoch'::timestamptz + $6 * interval '1 millisecond'
    WHERE id = $1 AND container_type = 'mcp_server'";

const INSERT_TOKEN: &str = "
    INSERT INTO kb.api_tokens (id, name, hash, scopes, servers, created_at)
    VALUES ($1, $2, $3, $4, $5, 'epoch'::timestamptz + $6 * interval '1 millisecond')
    ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, scopes = excluded.scopes, servers = excluded.servers,
        created_at = excluded.created_at";

const DELETE_TOKEN: &str = "DELETE FROM kb.api_tokens WHERE name = $1";

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Does one operation, by itself or as a part of the caller's transaction. By `execute_typed` throughout: one round trip,
/// and unlike `execute` the client library does not log its parameters when someone turns on debugging.
pub fn perform(db: &mut impl GenericClient, op: &StoreOp) -> Result<(), Trouble> {
    match op {
        StoreOp::InsertServer(server) => insert_server(db, server)?,
        StoreOp::UpdateServer { id, definition, desired_up } => {
            let params: &[Param<'_>] = &[
                (&id.0, Type::UUID),
                (&definition.name, Type::TEXT),
                (&definition.provider, Type::TEXT),
                (&image(definition), Type::TEXT),
                (&desired(*desired_up), Type::TEXT),
                (&Json(&**definition), Type::JSONB),
            ];
            if db.execute_typed(UPDATE_SERVER, params)? == 0 {
                return Err(Trouble::Refused(format!("server {id} is not in the database")));
            }
        }
        StoreOp::DeleteServer { id } => {
            db.execute_typed(DELETE_SERVER, &[(&id.0, Type::UUID)])?;
        }
        // A server that was deleted meanwhile has no status to keep.
        StoreOp::SaveStatus { id, status } => {
            let params: &[Param<'_>] = &[
                (&id.0, Type::UUID),
                (&status.status.wire(), Type::TEXT),
                (&signed(status.restart_count), Type::INT8),
                (&last_crash(status), Type::JSONB),
                (&last_error(status), Type::TEXT),
                (&status.last_used_unix_ms.map(signed), Type::INT8),
            ];
            db.execute_typed(SAVE_STATUS, params)?;
        }
        StoreOp::InsertToken { id, token } => {
            let params: &[Param<'_>] = &[
                (id, Type::UUID),
                (&token.name, Type::TEXT),
                (&token.hash.as_slice(), Type::BYTEA),
                (&token.scopes, Type::TEXT_ARRAY),
                (&token.servers, Type::TEXT_ARRAY),
                (&signed(token.created_unix_ms), Type::INT8),
            ];
            db.execute_typed(INSERT_TOKEN, params)?;
        }
        StoreOp::DeleteToken { name } => {
            db.execute_typed(DELETE_TOKEN, &[(name, Type::TEXT)])?;
        }
    }
    Ok(())
}

fn insert_server(db: &mut impl GenericClient, server: &StoredServer) -> Result<(), Trouble> {
    let StoredServer { id, definition, desired_up, status, created_unix_ms } = server;
    let params: &[Param<'_>] = &[
        (&id.0, Type::UUID),
        (&definition.name, Type::TEXT),
        (&definition.provider, Type::TEXT),
        (&image(definition), Type::TEXT),
        (&desired(*desired_up), Type::TEXT),
        (&Json(definition), Type::JSONB),
        (&status.status.wire(), Type::TEXT),
        (&signed(status.restart_count), Type::INT8),
        (&last_crash(status), Type::JSONB),
        (&last_error(status), Type::TEXT),
        (&signed(*created_unix_ms), Type::INT8),
        (&status.last_used_unix_ms.map(signed), Type::INT8),
    ];
    db.execute_typed(INSERT_SERVER, params)?;
    Ok(())
}

fn image(definition: &Definition) -> Option<&str> {
    match &definition.source {
        Source::Image(name) => Some(name),
        Source::HostRootfs => None,
    }
}

fn desired(up: bool) -> &'static str {
    if up { "up" } else { "down" }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A server's stderr may hold NULs, which neither text nor jsonb can.
fn last_crash(status: &StoredStatus) -> Option<Json<LastCrash>> {
    status.last_crash.as_ref().map(|crash| {
        let stderr_tail = crash.stderr_tail.iter().map(|line| without_nul(line).into_owned()).collect();
        Json(LastCrash { stderr_tail, ..crash.clone() })
    })
}

fn last_error(status: &StoredStatus) -> Option<Cow<'_, str>> {
    status.last_error.as_deref().map(without_nul)
}

fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

// --- reading --------------------------------------------------------------------------------------------------------

// An infinite timestamp, which others may have written, has no milliseconds.
const SELECT_SERVERS: &str = "
    SELECT id, name, desired, definition, status, restart_count, last_crash, last_error,
        CASE WHEN isfinite(created_at) THEN floor(extract(epoch FROM created_at) * 1000)::bigint END,
        CASE WHEN isfinite(last_used_at) THEN floor(extract(epoch FROM last_used_at) * 1000)::bigint END
    FROM kb.agent_workspaces WHERE container_type = 'mcp_server' ORDER BY created_at, id";

const SELECT_TOKENS: &str = "
    SELECT id, name, hash, scopes, servers,
        CASE WHEN isfinite(created_at) THEN floor(extract(epoch FROM created_at) * 1000)::bigint END
    FROM kb.api_tokens ORDER BY created_at, id";

/// Everything that is stored. A row that this version cannot read stays where it is and is left out, loudly: one bad
/// row must not keep all the others from starting.
pub fn load(client: &mut Client) -> Result<Snapshot, postgres::Error> {
    let mut tx = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true).start()?;
    let mut snapshot = Snapshot { servers: Vec::new(), tokens: Vec::new() };
    for row in tx.query(SELECT_SERVERS, &[])? {
        match server_of(&row) {
            Ok(server) => snapshot.servers.push(server),
            Err(why) => log::error!("store: skipped the server {} of kb.agent_workspaces: {why}", row_name(&row)),
        }
    }
    for row in tx.query(SELECT_TOKENS, &[])? {
        match token_of(&row) {
            Ok(token) => snapshot.tokens.push(token),
            Err(why) => log::error!("store: skipped the token {} of kb.api_tokens: {why}", row_name(&row)),
        }
    }
    tx.commit()?;
    Ok(snapshot)
}

fn server_of(row: &Row) -> Result<StoredServer, String> {
    let definition: Option<serde_json::Value> = column(row, 3)?;
    let definition = definition.ok_or("it has no definition")?;
    let definition: Definition = serde_json::from_value(definition).map_err(|e| unreadable(&e))?;
    let desired_up = match column::<Option<String>>(row, 2)?.as_deref() {
        Some("up") => true,
        Some("down") => false,
        Some(_) | None => return Err("desired is neither up nor down".to_string()),
    };
    Ok(StoredServer {
        id: ServerId(column(row, 0)?),
        definition,
        desired_up,
        status: StoredStatus {
            // What is said here is about an earlier life: an unknown word is no reason to lose the server.
            status: column::<Option<String>>(row, 4)?.and_then(status_of).unwrap_or(Status::Stopped),
            restart_count: unsigned(column(row, 5)?),
            last_crash: column::<Option<serde_json::Value>>(row, 6)?.and_then(|json| serde_json::from_value(json).ok()),
            last_error: column(row, 7)?,
            last_used_unix_ms: column::<Option<i64>>(row, 9)?.map(|ms| unsigned(Some(ms))),
        },
        created_unix_ms: unsigned(column(row, 8)?),
    })
}

fn token_of(row: &Row) -> Result<(Uuid, Token), String> {
    let hash: Vec<u8> = column(row, 2)?;
    let token = Token {
        name: column(row, 1)?,
        hash: hash.try_into().map_err(|_| "its hash is not 32 bytes long")?,
        scopes: column(row, 3)?,
        servers: column(row, 4)?,
        created_unix_ms: unsigned(column(row, 5)?),
    };
    Ok((column(row, 0)?, token))
}

fn column<'r, T: postgres::types::FromSql<'r>>(row: &'r Row, index: usize) -> Result<T, String> {
    row.try_get(index).map_err(|e| format!("column {}: {e}", row.columns()[index].name()))
}

/// For the log: the name of a row that could not be read, or its id.
fn row_name(row: &Row) -> String {
    match row.try_get::<_, Option<String>>(1) {
        Ok(Some(name)) => name,
        Ok(None) | Err(_) => row.try_get::<_, Uuid>(0).map_or_else(|_| "?".to_string(), |id| id.to_string()),
    }
}

/// Why JSON is no definition. Most messages of serde quote the value, and a value may be a secret.
fn unreadable(e: &serde_json::Error) -> String {
    let text = e.to_string();
    if text.starts_with("missing field") { text } else { "its definition is not one of this version".to_string() }
}

fn status_of(word: String) -> Option<Status> {
    serde_json::from_value(serde_json::Value::String(word)).ok()
}

fn unsigned(n: Option<i64>) -> u64 {
    n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
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
        ] {
            assert_eq!(status_of(status.wire().to_string()), Some(status));
        }
        assert_eq!(status_of("asleep".to_string()), None);
    }

    #[test]
    fn the_reason_for_a_skipped_row_never_quotes_a_value() {
        let e = serde_json::from_str::<std::collections::BTreeMap<String, u32>>(r#"{"KEY":"hunter2"}"#).unwrap_err();
        assert!(e.to_string().contains("hunter2"), "serde quotes: {e}");
        assert!(!unreadable(&e).contains("hunter2"));
    }

    #[test]
    fn nuls_are_replaced_and_nothing_else_is_touched() {
        assert_eq!(without_nul("a\0b\0"), "a\u{fffd}b\u{fffd}");
        assert!(matches!(without_nul("plain"), Cow::Borrowed("plain")));
    }
}
