//! Environments of hosted servers, which are sealed as one text per row: the column `environment_sealed`, bound to the server's
//! id. The definition beside it keeps the names, each with an empty value. Invariant: no value is written in clear, and none
//! gets into an error or a log.

use crate::ids::{ServerId, Uuid};
use crate::limits::STORED_DEFINITION_MAX;
use crate::model::definition::Definition;
use crate::sealing::SealingError;
use crate::store::rows::text;
use crate::store::seals::Seals;
use crate::store::sql::{Param, Trouble, describe};
use postgres::types::{Json, Type};
use postgres::{Client, Transaction};
use std::collections::BTreeMap;

pub type Environment = BTreeMap<String, String>;

fn what_for(id: ServerId) -> String {
    format!("environment/{id}")
}

/// None: there is nothing to hide.
pub fn seal(seals: &mut Seals, id: ServerId, environment: &Environment) -> Result<Option<String>, SealingError> {
    if environment.is_empty() {
        return Ok(None);
    }
    let clear = serde_json::to_string(environment).map_err(|_| SealingError::TooLarge)?;
    seals.seal(&what_for(id), &clear).map(Some)
}

pub fn open(seals: &mut Seals, id: ServerId, sealed: &str) -> Result<Environment, SealingError> {
    let clear = seals.open(&what_for(id), sealed)?;
    serde_json::from_str(&clear).map_err(|_| SealingError::Damaged)
}

pub fn names_only(definition: &Definition) -> Definition {
    Definition { environment: without_values(&definition.environment), ..definition.clone() }
}

fn without_values(environment: &Environment) -> Environment {
    environment.keys().map(|name| (name.clone(), String::new())).collect()
}

// --- rows that were written before ------------------------------------------------------------------------------------

/// Rows that have values in clear are sealed, one by one. What cannot be stays as it is, and the log says why. Gives how many
/// were sealed.
pub fn seal_clear_rows(client: &mut Client, seals: &mut Seals) -> Result<usize, postgres::Error> {
    const CLEAR: &str = "
        SELECT id FROM kb.agent_workspaces WHERE container_type = 'mcp_server' AND environment_sealed IS NULL
            AND CASE WHEN jsonb_typeof(definition -> 'environment') = 'object' THEN definition -> 'environment' <> '{}' END";
    let mut count = 0;
    for id in client.query(CLEAR, &[])?.iter().filter_map(|row| row.try_get::<_, Uuid>(0).ok()) {
        let mut tx = client.transaction()?;
        match seal_row(&mut tx, seals, ServerId(id)) {
            Ok(true) => {
                tx.commit()?;
                count += 1;
            }
            Ok(false) => tx.rollback()?,
            Err(Trouble::Taken(why) | Trouble::Refused(why) | Trouble::Failed(why)) => {
                log::error!("store: the environment of the server {id} stays in clear text: {why}");
                tx.rollback()?;
            }
        }
    }
    Ok(count)
}

/// False: it is nothing that can be read, and `rows` will say so.
fn seal_row(tx: &mut Transaction<'_>, seals: &mut Seals, id: ServerId) -> Result<bool, Trouble> {
    const UPDATE: &str = "
        UPDATE kb.agent_workspaces SET environment_sealed = $2, definition = jsonb_set(definition, '{environment}', $3)
        WHERE id = $1";
    let read = format!(
        "SELECT CASE WHEN octet_length(definition::text) <= {STORED_DEFINITION_MAX} THEN (definition -> 'environment')::text END
        FROM kb.agent_workspaces WHERE id = $1 FOR UPDATE"
    );
    let row = tx.query_typed_one(&read, &[(&id.0, Type::UUID)])?;
    let Some(Ok(environment)) = text(&row, 0).map(|json| serde_json::from_str::<Environment>(&json)) else {
        return Ok(false);
    };
    let sealed = seal(seals, id, &environment)?;
    let names = Json(without_values(&environment));
    let params: &[Param<'_>] = &[(&id.0, Type::UUID), (&sealed, Type::TEXT), (&names, Type::JSONB)];
    tx.execute_typed(UPDATE, params)?;
    Ok(true)
}

/// An updated row leaves its former self in the table's files until they are written anew.
pub fn wipe_former_rows(client: &mut Client) {
    const WIPE: &str = "SET lock_timeout = '2s'; ";
    let wiped = client.batch_execute(WIPE).and_then(|()| client.batch_execute("VACUUM (FULL) kb.agent_workspaces"));
    if let Err(e) = wiped.and_then(|()| client.batch_execute("RESET lock_timeout")) {
        log::warn!(
            "store: environments are sealed, but their former values may still be in the files of the database until \
             VACUUM FULL kb.agent_workspaces has run: {}",
            describe(&e)
        );
    }
}

// --- another key --------------------------------------------------------------------------------------------------------

/// Seals with the key of now whatever can be opened; the rest stays as it is. Gives how many did.
pub fn reseal(tx: &mut Transaction<'_>, seals: &mut Seals) -> Result<usize, Trouble> {
    const SEALED: &str = "
        SELECT id FROM kb.agent_workspaces WHERE container_type = 'mcp_server' AND environment_sealed IS NOT NULL
        FOR UPDATE";
    let read = format!(
        "SELECT CASE WHEN octet_length(environment_sealed) <= {STORED_DEFINITION_MAX} THEN environment_sealed END
        FROM kb.agent_workspaces WHERE id = $1"
    );
    let mut left = 0;
    for id in tx.query(SEALED, &[])?.iter().filter_map(|row| row.try_get::<_, Uuid>(0).ok()) {
        let sealed = text(&tx.query_typed_one(&read, &[(&id, Type::UUID)])?, 0);
        let for_it = what_for(ServerId(id));
        match sealed.ok_or(SealingError::TooLarge).and_then(|sealed| seals.open(&for_it, &sealed)) {
            Ok(clear) => {
                let again = seals.seal(&for_it, &clear)?;
                let update = "UPDATE kb.agent_workspaces SET environment_sealed = $2 WHERE id = $1";
                tx.execute_typed(update, &[(&id, Type::UUID), (&again, Type::TEXT)])?;
            }
            Err(_) => left += 1,
        }
    }
    Ok(left)
}
