//! What is said to the database: each `StoreOp` as one statement, and errors in words; `rows` reads the same tables back.
//! Never decides when to write or what to do after a failure. Invariant: only rows of `container_type = 'mcp_server'` are
//! touched, and no value of a definition gets into an error or a log.

use crate::model::definition::{Definition, Source};
use crate::model::external::ProjectId;
use crate::model::rate::RateLimit;
use crate::model::records::{StoreOp, StoredServer, StoredStatus, Token};
use crate::model::status::LastCrash;
use crate::store::environments;
use crate::store::projects;
use crate::store::rotation;
use crate::store::seals::Seals;
use postgres::GenericClient;
use postgres::error::SqlState;
use postgres::types::{Json, ToSql, Type};
use std::borrow::Cow;
use std::error::Error as _;

/// Why an operation was not done.
#[derive(Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Another row has what must be unique.
    Taken(String),
    /// The data is at fault: the database would refuse it again.
    Refused(String),
    /// The connection, the server or its state is at fault; perhaps it was done all the same.
    Failed(String),
}

impl From<postgres::Error> for Trouble {
    fn from(e: postgres::Error) -> Trouble {
        // 22: data exceptions, 23: integrity constraints.
        match e.code().map(|state| &state.code()[..2]) {
            _ if e.code() == Some(&SqlState::UNIQUE_VIOLATION) => Trouble::Taken(describe(&e)),
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
// Whoever has a name has the volumes under it: those that were to be removed are gone, or there would be no such row.
const INSERT_SERVER: &str = "
    WITH kept AS (DELETE FROM kb.volume_removals WHERE id = $1 OR name = $2)
    INSERT INTO kb.agent_workspaces (id, container_type, name, provider, image, desired, definition, status,
        restart_count, last_crash, last_error, created_at, updated_at, last_used_at, environment_sealed)
    VALUES ($1, 'mcp_server', $2, $3, $4, $5, $6, $7, $8, $9, $10,
        'epoch'::timestamptz + $11 * interval '1 millisecond', now(),
        'epoch'::timestamptz + $12 * interval '1 millisecond', $13)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, provider = excluded.provider, image = excluded.image,
        desired = excluded.desired, definition = excluded.definition, environment_sealed = excluded.environment_sealed, status = excluded.status,
        restart_count = excluded.restart_count, last_crash = excluded.last_crash, last_error = excluded.last_error,
        updated_at = now(), last_used_at = excluded.last_used_at
    WHERE agent_workspaces.container_type = 'mcp_server'";

const UPDATE_SERVER: &str = "
    UPDATE kb.agent_workspaces
    SET name = $2, provider = $3, image = $4, desired = $5, definition = $6, environment_sealed = $7, updated_at = now()
    WHERE id = $1 AND container_type = 'mcp_server'";

const SET_DESIRED: &str = "
    UPDATE kb.agent_workspaces SET desired = $2, updated_at = now() WHERE id = $1 AND container_type = 'mcp_server'";

// One statement, so that the row never goes without what is to become of its volumes.
const DELETE_SERVER: &str = "
    WITH gone AS (DELETE FROM kb.agent_workspaces WHERE id = $1 AND container_type = 'mcp_server')
    DELETE FROM kb.volume_removals WHERE id = $1";

const DELETE_SERVER_AND_VOLUMES: &str = "
    WITH gone AS (DELETE FROM kb.agent_workspaces WHERE id = $1 AND container_type = 'mcp_server')
    INSERT INTO kb.volume_removals (id, name) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING";

const SAVE_STATUS: &str = "
    UPDATE kb.agent_workspaces
    SET status = $2, restart_count = $3, last_crash = $4, last_error = $5, updated_at = now(),
        last_used_at = 'epoch'::timestamptz + $6 * interval '1 millisecond'
    WHERE id = $1 AND container_type = 'mcp_server'";

const SAVE_CATALOGUE: &str = "
    UPDATE kb.agent_workspaces SET catalogue = $2 WHERE id = $1 AND container_type = 'mcp_server'";

const INSERT_TOKEN: &str = "
    INSERT INTO kb.api_tokens (id, name, hash, scopes, servers, created_at, expires_at, last_used_at, previous_hash,
        previous_until, rate_per_second, rate_burst, projects)
    VALUES ($1, $2, $3, $4, $5, 'epoch'::timestamptz + $6 * interval '1 millisecond',
        'epoch'::timestamptz + $7 * interval '1 millisecond', 'epoch'::timestamptz + $8 * interval '1 millisecond', $9,
        'epoch'::timestamptz + $10 * interval '1 millisecond', $11, $12, $13)
    ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, scopes = excluded.scopes, servers = excluded.servers,
        created_at = excluded.created_at, expires_at = excluded.expires_at, last_used_at = excluded.last_used_at,
        previous_hash = excluded.previous_hash, previous_until = excluded.previous_until,
        rate_per_second = excluded.rate_per_second, rate_burst = excluded.rate_burst,
        projects = excluded.projects";

const DELETE_TOKEN: &str = "DELETE FROM kb.api_tokens WHERE name = $1";

pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Does one operation, by itself or as a part of the caller's transaction. By `execute_typed` throughout: one round trip,
/// and unlike `execute` the client library does not log its parameters when someone turns on debugging.
pub fn perform(db: &mut impl GenericClient, seals: &mut Seals, op: &StoreOp) -> Result<(), Trouble> {
    match op {
        StoreOp::InsertServer(server) => insert_server(db, seals, server)?,
        StoreOp::UpdateServer { id, definition, desired_up } => {
            let sealed = environments::seal(seals, *id, &definition.environment)?;
            let params: &[Param<'_>] = &[
                (&id.0, Type::UUID),
                (&definition.name, Type::TEXT),
                (&definition.provider, Type::TEXT),
                (&image(definition), Type::TEXT),
                (&desired(*desired_up), Type::TEXT),
                (&Json(environments::names_only(definition)), Type::JSONB),
                (&sealed, Type::TEXT),
            ];
            if db.execute_typed(UPDATE_SERVER, params)? == 0 {
                return Err(Trouble::Refused(format!("server {id} is not in the database")));
            }
        }
        StoreOp::SetDesired { id, up } => {
            db.execute_typed(SET_DESIRED, &[(&id.0, Type::UUID), (&desired(*up), Type::TEXT)])?;
        }
        StoreOp::DeleteServer { id, volumes: None } => {
            db.execute_typed(DELETE_SERVER, &[(&id.0, Type::UUID)])?;
        }
        StoreOp::DeleteServer { id, volumes: Some(name) } => {
            db.execute_typed(DELETE_SERVER_AND_VOLUMES, &[(&id.0, Type::UUID), (name, Type::TEXT)])?;
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
        StoreOp::SaveCatalogue { id, catalogue } => {
            let kept = serde_json::to_vec(catalogue).expect("a catalogue is plain data");
            db.execute_typed(SAVE_CATALOGUE, &[(&id.0, Type::UUID), (&kept, Type::BYTEA)])?;
        }
        StoreOp::InsertToken { id, token } => insert_token(db, id, token)?,
        StoreOp::DeleteToken { name } => {
            db.execute_typed(DELETE_TOKEN, &[(name, Type::TEXT)])?;
        }
        StoreOp::RotateKey => rotation::rotate(db, seals)?,
        StoreOp::PutExternal(server) => projects::put_external(db, seals, server)?,
        StoreOp::DeleteExternal { id } => projects::delete_external(db, *id)?,
        StoreOp::ReplaceProduct { project, product, servers } => {
            projects::replace_product(db, seals, project, product, servers)?;
        }
        StoreOp::Import { servers, externals } => {
            let mut all = db.transaction()?;
            for server in servers {
                insert_server(&mut all, seals, server)?;
            }
            for external in externals {
                projects::put_external(&mut all, seals, external)?;
            }
            all.commit()?;
        }
        StoreOp::PutSecret(secret) => projects::put_secret(db, seals, secret)?,
        StoreOp::DeleteSecret { project, name } => projects::delete_secret(db, project, name)?,
        StoreOp::InsertCalls(calls) => projects::insert_calls(db, calls)?,
        StoreOp::DeleteCallsBefore { unix_ms } => projects::delete_calls(db, *unix_ms)?,
        StoreOp::ReadCalls { .. } => unreachable!("the thread reads, and has nothing to perform"),
    }
    Ok(())
}

fn insert_server(db: &mut impl GenericClient, seals: &mut Seals, server: &StoredServer) -> Result<(), Trouble> {
    let StoredServer { id, definition, desired_up, status, created_unix_ms } = server;
    let sealed = environments::seal(seals, *id, &definition.environment)?;
    let params: &[Param<'_>] = &[
        (&id.0, Type::UUID),
        (&definition.name, Type::TEXT),
        (&definition.provider, Type::TEXT),
        (&image(definition), Type::TEXT),
        (&desired(*desired_up), Type::TEXT),
        (&Json(environments::names_only(definition)), Type::JSONB),
        (&status.status.wire(), Type::TEXT),
        (&signed(status.restart_count), Type::INT8),
        (&last_crash(status), Type::JSONB),
        (&last_error(status), Type::TEXT),
        (&signed(*created_unix_ms), Type::INT8),
        (&status.last_used_unix_ms.map(signed), Type::INT8),
        (&sealed, Type::TEXT),
    ];
    db.execute_typed(INSERT_SERVER, params)?;
    Ok(())
}

fn insert_token(db: &mut impl GenericClient, id: &uuid::Uuid, token: &Token) -> Result<(), Trouble> {
    let previous = token.previous.as_ref();
    let projects: Vec<&str> = token.projects.iter().map(ProjectId::as_str).collect();
    let rate = |of: fn(RateLimit) -> u32| token.rate_limit.map(|rate| i32::try_from(of(rate)).unwrap_or(i32::MAX));
    let params: &[Param<'_>] = &[
        (id, Type::UUID),
        (&token.name, Type::TEXT),
        (&token.hash.as_slice(), Type::BYTEA),
        (&token.scopes, Type::TEXT_ARRAY),
        (&token.servers, Type::TEXT_ARRAY),
        (&signed(token.created_unix_ms), Type::INT8),
        (&token.expires_unix_ms.map(signed), Type::INT8),
        (&token.last_used_unix_ms.map(signed), Type::INT8),
        (&previous.map(|(hash, _)| hash.as_slice()), Type::BYTEA),
        (&previous.map(|(_, until)| signed(*until)), Type::INT8),
        (&rate(|rate| rate.per_second), Type::INT4),
        (&rate(|rate| rate.burst), Type::INT4),
        (&projects, Type::TEXT_ARRAY),
    ];
    db.execute_typed(INSERT_TOKEN, params)?;
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

pub fn signed(n: u64) -> i64 {
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

pub fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nuls_are_replaced_and_nothing_else_is_touched() {
        assert_eq!(without_nul("a\0b\0"), "a\u{fffd}b\u{fffd}");
        assert!(matches!(without_nul("plain"), Cow::Borrowed("plain")));
    }
}
