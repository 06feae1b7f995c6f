//! The tables of projects: external servers, secrets and records of calls, written and read. Values that may be secrets are
//! sealed on the way in and opened on the way out; none of them gets into an error or a log. Rows are judged by the rules of a
//! request (`api::projects`), because anybody with a connection to the database can have written them: what breaks one is left
//! out. Invariant: what is read of one row is bounded, and no row makes a query fail.

use crate::api::projects::{fields, template};
use crate::ids::Uuid;
use crate::limits::{
    CALLS_LIMIT_MAX, EXTERNALS_MAX, NAME_MAX, RECORD_ARGUMENTS_MAX, RUN_ID_MAX, SECRET_NAME_MAX, SECRETS_MAX,
    STORED_EXTERNAL_MAX, STORED_SECRET_MAX, TOOL_NAME_MAX,
};
use crate::model::external::{
    CallFilter, CallOutcome, ExternalId, ExternalServer, ProjectId, Secret, SecretValue, StoredSecret, ToolCallRecord,
};
use crate::model::records::Snapshot;
use crate::sealing::SealingError;
use crate::store::rows::{column, each, text, unsigned};
use crate::store::seals::Seals;
use crate::store::sql::{Param, Trouble, signed, without_nul};
use postgres::types::{Json, Type};
use postgres::{Client, GenericClient, Row, Transaction};
use serde_json::{Map, Value, json};

/// How a sealed text begins, whatever version it is.
const SEALED: &str = "sealed";

impl From<SealingError> for Trouble {
    fn from(e: SealingError) -> Trouble {
        Trouble::Refused(format!("it cannot be sealed: {e}"))
    }
}

// --- writing ----------------------------------------------------------------------------------------------------------

const PUT_EXTERNAL: &str = "
    INSERT INTO kb.project_mcp_servers (id, project_id, product_id, name, description, transport, config, enabled,
        created_at, updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'epoch'::timestamptz + $9 * interval '1 millisecond',
        'epoch'::timestamptz + $10 * interval '1 millisecond')
    ON CONFLICT (id) DO UPDATE SET product_id = excluded.product_id, name = excluded.name,
        description = excluded.description, transport = excluded.transport, config = excluded.config,
        enabled = excluded.enabled, updated_at = excluded.updated_at
    WHERE project_mcp_servers.project_id = excluded.project_id";

const DELETE_EXTERNAL: &str = "DELETE FROM kb.project_mcp_servers WHERE id = $1";

const DELETE_OTHERS_OF_PRODUCT: &str = "
    DELETE FROM kb.project_mcp_servers WHERE project_id = $1 AND product_id = $2 AND NOT id = ANY ($3)";

const PUT_SECRET: &str = "
    INSERT INTO kb.project_secrets (project_id, name, sealed, created_at, updated_at)
    VALUES ($1, $2, $3, 'epoch'::timestamptz + $4 * interval '1 millisecond',
        'epoch'::timestamptz + $5 * interval '1 millisecond')
    ON CONFLICT (project_id, name) DO UPDATE SET sealed = excluded.sealed, updated_at = excluded.updated_at";

const DELETE_SECRET: &str = "DELETE FROM kb.project_secrets WHERE project_id = $1 AND name = $2";

const INSERT_CALL: &str = "
    INSERT INTO kb.agent_run_tool_calls (id, project_id, server, tool, run_id, principal, arguments, arguments_bytes,
        is_error, error_code, outcome, started_at, duration_ms, result_bytes)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'epoch'::timestamptz + $12 * interval '1 millisecond', $13, $14)
    ON CONFLICT (id) DO NOTHING";

const DELETE_CALLS: &str = "
    DELETE FROM kb.agent_run_tool_calls WHERE started_at < 'epoch'::timestamptz + $1 * interval '1 millisecond'";

pub fn put_external(db: &mut impl GenericClient, seals: &mut Seals, server: &ExternalServer) -> Result<(), Trouble> {
    let spec = &server.spec;
    let mut config = fields::written(spec, |text| json!(text.expose()));
    // They have columns of their own.
    for key in ["name", "description", "transport", "enabled"] {
        config.remove(key);
    }
    each_value(&mut config, &mut |value| {
        if !template::mentions_any(value) {
            *value = seals.seal(&what_for(server.id), value)?;
        }
        Ok::<(), SealingError>(())
    })?;
    let params: &[Param<'_>] = &[
        (&server.id.0, Type::UUID),
        (&server.project.as_str(), Type::TEXT),
        (&server.product, Type::TEXT),
        (&spec.name, Type::TEXT),
        (&spec.description, Type::TEXT),
        (&spec.target.transport(), Type::TEXT),
        (&Json(&config), Type::JSONB),
        (&spec.enabled, Type::BOOL),
        (&signed(server.created_unix_ms), Type::INT8),
        (&signed(server.updated_unix_ms), Type::INT8),
    ];
    match db.execute_typed(PUT_EXTERNAL, params)? {
        0 => Err(Trouble::Refused("a server of another project has this id".to_string())),
        _ => Ok(()),
    }
}

pub fn delete_external(db: &mut impl GenericClient, id: ExternalId) -> Result<(), Trouble> {
    db.execute_typed(DELETE_EXTERNAL, &[(&id.0, Type::UUID)])?;
    Ok(())
}

/// Those that are gone go first: a name may pass from one to another.
pub fn replace_product(
    db: &mut impl GenericClient,
    seals: &mut Seals,
    project: &ProjectId,
    product: &str,
    servers: &[ExternalServer],
) -> Result<(), Trouble> {
    let mut tx = db.transaction()?;
    let kept: Vec<Uuid> = servers.iter().map(|server| server.id.0).collect();
    let params: &[Param<'_>] = &[(&project.as_str(), Type::TEXT), (&product, Type::TEXT), (&kept, Type::UUID_ARRAY)];
    tx.execute_typed(DELETE_OTHERS_OF_PRODUCT, params)?;
    for server in servers {
        put_external(&mut tx, seals, server)?;
    }
    tx.commit()?;
    Ok(())
}

pub fn put_secret(db: &mut impl GenericClient, seals: &mut Seals, secret: &StoredSecret) -> Result<(), Trouble> {
    let value = match &secret.value {
        SecretValue::Open(value) => value,
        SecretValue::Unreadable { why } => return Err(Trouble::Refused(format!("it has no value: {why}"))),
    };
    let sealed = seals.seal(&secret_for(&secret.project, &secret.name), value.expose())?;
    let params: &[Param<'_>] = &[
        (&secret.project.as_str(), Type::TEXT),
        (&secret.name, Type::TEXT),
        (&sealed, Type::TEXT),
        (&signed(secret.created_unix_ms), Type::INT8),
        (&signed(secret.updated_unix_ms), Type::INT8),
    ];
    db.execute_typed(PUT_SECRET, params)?;
    Ok(())
}

pub fn delete_secret(db: &mut impl GenericClient, project: &ProjectId, name: &str) -> Result<(), Trouble> {
    db.execute_typed(DELETE_SECRET, &[(&project.as_str(), Type::TEXT), (&name, Type::TEXT)])?;
    Ok(())
}

/// All or none: whoever sent them may send them again.
pub fn insert_calls(db: &mut impl GenericClient, calls: &[ToolCallRecord]) -> Result<(), Trouble> {
    let mut tx = db.transaction()?;
    for call in calls {
        let params: &[Param<'_>] = &[
            (&call.id, Type::UUID),
            (&call.project.as_str(), Type::TEXT),
            (&call.server, Type::TEXT),
            (&without_nul(&call.tool), Type::TEXT),
            (&call.run_id, Type::TEXT),
            (&call.principal, Type::TEXT),
            (&call.arguments, Type::TEXT),
            (&signed(call.arguments_bytes), Type::INT8),
            (&call.is_error, Type::BOOL),
            (&call.error_code, Type::TEXT),
            (&call.outcome.wire(), Type::TEXT),
            (&signed(call.started_unix_ms), Type::INT8),
            (&signed(call.duration_ms), Type::INT8),
            (&signed(call.result_bytes), Type::INT8),
        ];
        tx.execute_typed(INSERT_CALL, params)?;
    }
    tx.commit()?;
    Ok(())
}

pub fn delete_calls(db: &mut impl GenericClient, before_unix_ms: u64) -> Result<(), Trouble> {
    db.execute_typed(DELETE_CALLS, &[(&signed(before_unix_ms), Type::INT8)])?;
    Ok(())
}

/// The texts of a configuration that may be secrets.
fn each_value<E>(
    config: &mut Map<String, Value>,
    visit: &mut dyn FnMut(&mut String) -> Result<(), E>,
) -> Result<(), E> {
    for key in ["env", "headers"] {
        let Some(Value::Object(all)) = config.get_mut(key) else { continue };
        for value in all.values_mut() {
            if let Value::String(text) = value {
                visit(text)?;
            }
        }
    }
    if let Some(Value::String(text)) = config.get_mut("auth").and_then(|auth| auth.get_mut("client_secret")) {
        visit(text)?;
    }
    Ok(())
}

fn what_for(id: ExternalId) -> String {
    format!("external/{id}")
}

fn secret_for(project: &ProjectId, name: &str) -> String {
    format!("secret/{project}/{name}")
}

// --- another key --------------------------------------------------------------------------------------------------------

/// Seals with the key of now whatever can be opened; the rest stays as it is. Gives how many did.
pub fn reseal(tx: &mut Transaction<'_>, seals: &mut Seals) -> Result<usize, Trouble> {
    let mut left = 0;
    let ids = tx.query("SELECT id FROM kb.project_mcp_servers WHERE config::text LIKE '%sealed%' FOR UPDATE", &[])?;
    for id in ids.iter().filter_map(|row| row.try_get::<_, Uuid>(0).ok()) {
        let read = format!(
            "SELECT CASE WHEN octet_length(config::text) <= {STORED_EXTERNAL_MAX} THEN config::text END
            FROM kb.project_mcp_servers WHERE id = $1"
        );
        let row = tx.query_typed_one(&read, &[(&id, Type::UUID)])?;
        let Some(Ok(Value::Object(mut config))) = text(&row, 0).map(|json| serde_json::from_str(&json)) else {
            continue;
        };
        let for_it = what_for(ExternalId(id));
        each_value(&mut config, &mut |value| {
            if is_sealed(value) {
                match seals.open(&for_it, value) {
                    Ok(clear) => *value = seals.seal(&for_it, &clear)?,
                    Err(_) => left += 1,
                }
            }
            Ok::<(), SealingError>(())
        })?;
        let update = "UPDATE kb.project_mcp_servers SET config = $2 WHERE id = $1";
        tx.execute_typed(update, &[(&id, Type::UUID), (&Json(&config), Type::JSONB)])?;
    }
    let keys = tx.query("SELECT project_id, name FROM kb.project_secrets FOR UPDATE", &[])?;
    for row in &keys {
        let (Some(project), Some(name)) = (text(row, 0), text(row, 1)) else { continue };
        let key: [Param<'_>; 2] = [(&project, Type::TEXT), (&name, Type::TEXT)];
        let read = format!(
            "SELECT CASE WHEN octet_length(sealed) <= {STORED_SECRET_MAX} THEN sealed END
            FROM kb.project_secrets WHERE project_id = $1 AND name = $2"
        );
        let sealed = text(&tx.query_typed_one(&read, &key)?, 0);
        let for_it = format!("secret/{project}/{name}");
        match sealed.ok_or(SealingError::TooLarge).and_then(|sealed| seals.open(&for_it, &sealed)) {
            Ok(clear) => {
                let again = seals.seal(&for_it, &clear)?;
                let update = "UPDATE kb.project_secrets SET sealed = $3 WHERE project_id = $1 AND name = $2";
                tx.execute_typed(update, &[(&project, Type::TEXT), (&name, Type::TEXT), (&again, Type::TEXT)])?;
            }
            Err(_) => left += 1,
        }
    }
    Ok(left)
}

fn is_sealed(value: &str) -> bool {
    value.starts_with(SEALED) && value.contains(':')
}

// --- reading ----------------------------------------------------------------------------------------------------------

fn select_externals() -> String {
    format!(
        "SELECT id, left(project_id::text, {0}), left(product_id::text, {0}), left(name::text, {0}), description::text,
            transport::text, CASE WHEN octet_length(config::text) <= {STORED_EXTERNAL_MAX} THEN config::text END,
            enabled::text,
            CASE WHEN isfinite(created_at) THEN floor(extract(epoch FROM created_at) * 1000)::bigint END,
            CASE WHEN isfinite(updated_at) THEN floor(extract(epoch FROM updated_at) * 1000)::bigint END
        FROM kb.project_mcp_servers ORDER BY created_at, id LIMIT {1}",
        NAME_MAX + 1,
        EXTERNALS_MAX + 1,
    )
}

fn select_secrets() -> String {
    format!(
        "SELECT left(project_id, {}), left(name, {}),
            CASE WHEN octet_length(sealed) <= {STORED_SECRET_MAX} THEN sealed END,
            CASE WHEN isfinite(created_at) THEN floor(extract(epoch FROM created_at) * 1000)::bigint END,
            CASE WHEN isfinite(updated_at) THEN floor(extract(epoch FROM updated_at) * 1000)::bigint END
        FROM kb.project_secrets ORDER BY created_at, project_id, name LIMIT {}",
        NAME_MAX + 1,
        SECRET_NAME_MAX + 1,
        SECRETS_MAX + 1,
    )
}

pub fn load(tx: &mut Transaction<'_>, seals: &mut Seals, snapshot: &mut Snapshot) -> Result<(), postgres::Error> {
    each(tx, &select_externals(), EXTERNALS_MAX, "kb.project_mcp_servers", |row| match external_of(row, seals) {
        Ok(server) => snapshot.externals.push(server),
        Err(why) => {
            let id = row.try_get::<_, Uuid>(0).map_or_else(|_| "?".to_string(), |id| id.to_string());
            log::error!("store: the row {id} of kb.project_mcp_servers is left out: {why}");
        }
    })?;
    each(tx, &select_secrets(), SECRETS_MAX, "kb.project_secrets", |row| match secret_of(row, seals) {
        Ok(secret) => snapshot.secrets.push(secret),
        Err(why) => log::error!("store: a row of kb.project_secrets is left out: {why}"),
    })
}

fn external_of(row: &Row, seals: &mut Seals) -> Result<ExternalServer, String> {
    let id = ExternalId(column(row, 0)?);
    let project = text(row, 1).ok_or("project_id: is required")?;
    let project = ProjectId::new(&project).map_err(|why| format!("project_id: {why}"))?;
    let product =
        text(row, 2).map(|id| fields::product_id(&id)).transpose().map_err(|why| format!("product_id: {why}"))?;
    let config = text(row, 6).ok_or_else(|| format!("config: must be JSON of at most {STORED_EXTERNAL_MAX} bytes"))?;
    let Ok(Value::Object(mut given)) = serde_json::from_str(&config) else {
        return Err("config: expected an object".to_string());
    };
    each_value(&mut given, &mut |value| {
        if is_sealed(value) {
            *value = seals.open(&what_for(id), value)?;
        }
        Ok(())
    })
    .map_err(|why: SealingError| format!("config: {why}"))?;
    let enabled = text(row, 7).is_some_and(|word| word == "true" || word == "t");
    let columns = [
        ("name", text(row, 3).map(Value::from)),
        ("description", text(row, 4).map(Value::from)),
        ("transport", text(row, 5).map(Value::from)),
        ("enabled", Some(enabled.into())),
    ];
    for (key, value) in columns {
        given.insert(key.to_string(), value.unwrap_or(Value::Null));
    }
    // The message of a fault names the field and the rule, and no value.
    let spec = fields::from_fields(given).map_err(|fault| fault.message)?;
    let time = |at: usize| unsigned(row.try_get(at).ok().flatten());
    Ok(ExternalServer { id, project, product, spec, created_unix_ms: time(8), updated_unix_ms: time(9) })
}

fn secret_of(row: &Row, seals: &mut Seals) -> Result<StoredSecret, String> {
    let project: String = column(row, 0)?;
    let project = ProjectId::new(&project).map_err(|why| format!("project_id: {why}"))?;
    let name: String = column(row, 1)?;
    let name = template::secret_name(&name).map_err(|why| format!("name: {why}"))?;
    let opened = match text(row, 2) {
        Some(sealed) => seals.open(&secret_for(&project, &name), &sealed),
        None => Err(SealingError::TooLarge),
    };
    let value = match opened {
        Ok(clear) => SecretValue::Open(Secret::new(clear)),
        Err(why) => {
            log::error!("store: the secret {name} of the project {project} cannot be opened: {why}");
            SecretValue::Unreadable { why: why.to_string() }
        }
    };
    let time = |at: usize| unsigned(row.try_get(at).ok().flatten());
    Ok(StoredSecret { project, name, value, created_unix_ms: time(3), updated_unix_ms: time(4) })
}

/// Newest first; what a row lacks, or has too much of, is left out of it.
pub fn read_calls(
    client: &mut Client,
    project: &ProjectId,
    filter: &CallFilter,
) -> Result<Vec<ToolCallRecord>, Trouble> {
    let query = format!(
        "SELECT id, left(server::text, {0}), left(tool::text, {TOOL_NAME_MAX}), left(run_id::text, {RUN_ID_MAX}),
            left(principal::text, {0}),
            CASE WHEN octet_length(arguments::text) <= {RECORD_ARGUMENTS_MAX} THEN arguments::text END,
            arguments_bytes::bigint, is_error::boolean, left(error_code::text, {0}), outcome::text,
            CASE WHEN isfinite(started_at) THEN floor(extract(epoch FROM started_at) * 1000)::bigint END,
            duration_ms::bigint, result_bytes::bigint
        FROM kb.agent_run_tool_calls
        WHERE project_id::text = $1 AND ($2::text IS NULL OR server::text = $2) AND ($3::text IS NULL OR tool::text = $3)
            AND ($4::text IS NULL OR run_id::text = $4)
            AND ($5::bigint IS NULL OR started_at >= 'epoch'::timestamptz + $5 * interval '1 millisecond')
        ORDER BY started_at DESC, id LIMIT $6",
        NAME_MAX + 1,
    );
    let limit = filter.limit.min(CALLS_LIMIT_MAX) as i64;
    let params: &[Param<'_>] = &[
        (&project.as_str(), Type::TEXT),
        (&filter.server, Type::TEXT),
        (&filter.tool, Type::TEXT),
        (&filter.run_id, Type::TEXT),
        (&filter.since_unix_ms.map(signed), Type::INT8),
        (&limit, Type::INT8),
    ];
    let rows = client.query_typed(&query, params)?;
    Ok(rows.iter().filter_map(|row| call_of(row, project)).collect())
}

fn call_of(row: &Row, project: &ProjectId) -> Option<ToolCallRecord> {
    let number = |at: usize| unsigned(row.try_get(at).ok().flatten());
    let outcome = text(row, 9);
    let outcome = CallOutcome::ALL.into_iter().find(|known| outcome.as_deref() == Some(known.wire()));
    Some(ToolCallRecord {
        id: row.try_get(0).ok()?,
        project: project.clone(),
        server: text(row, 1),
        tool: text(row, 2)?,
        run_id: text(row, 3),
        principal: text(row, 4).unwrap_or_default(),
        arguments: text(row, 5),
        arguments_bytes: number(6),
        is_error: row.try_get::<_, Option<bool>>(7).ok().flatten().unwrap_or(false),
        error_code: text(row, 8),
        outcome: outcome.unwrap_or(CallOutcome::SentUnknown),
        started_unix_ms: number(10),
        duration_ms: number(11),
        result_bytes: number(12),
    })
}
