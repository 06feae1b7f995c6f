//! What is done about keys as a whole: before the first rows are read, and when the key is replaced. A rotation makes
//! `<key>.next`, seals everything with it in one transaction, and then puts it in the place of the key. Invariant: at every
//! moment the files that are there open everything that is committed, so that a daemon that is killed in between finishes the
//! rotation at its next start.

use crate::store::environments;
use crate::store::projects;
use crate::store::seals::Seals;
use crate::store::sql::{Trouble, describe};
use postgres::{Client, GenericClient};

const ANYTHING_SEALED: &str = "
    SELECT EXISTS (SELECT FROM kb.agent_workspaces WHERE container_type = 'mcp_server' AND environment_sealed IS NOT NULL)
        OR EXISTS (SELECT FROM kb.project_secrets)
        OR EXISTS (SELECT FROM kb.project_mcp_servers WHERE config::text LIKE '%\"sealed1:%')";

/// Once, before rows are read: finishes what an earlier daemon has begun, and seals what an earlier version wrote in clear. The
/// error is of the database; without a key the daemon runs all the same, and whoever needs it says so.
pub fn prepare(client: &mut Client, seals: &mut Seals) -> Result<(), String> {
    let sealed = client.query_one(ANYTHING_SEALED, &[]).and_then(|row| row.try_get(0)).map_err(|e| describe(&e))?;
    if sealed {
        seals.expect_key();
    }
    if let Err(why) = seals.resume() {
        log::error!("store: a rotation of the key has begun and cannot be finished: {why}");
    }
    if seals.is_rotating() {
        log::info!("store: the key was being rotated; this is finished now");
        match rotate(client, seals) {
            Ok(()) => {}
            Err(Trouble::Failed(why)) => return Err(why),
            Err(Trouble::Taken(why) | Trouble::Refused(why)) => {
                log::error!("store: the rotation of the key is not finished: {why}");
            }
        }
    }
    let count = environments::seal_clear_rows(client, seals).map_err(|e| describe(&e))?;
    if count > 0 {
        log::info!("store: environments of {count} servers were in clear text and are sealed now");
        environments::wipe_former_rows(client);
    }
    Ok(())
}

pub fn rotate(db: &mut impl GenericClient, seals: &mut Seals) -> Result<(), Trouble> {
    seals.begin_rotation()?;
    let mut tx = db.transaction()?;
    let left = environments::reseal(&mut tx, seals)? + projects::reseal(&mut tx, seals)?;
    tx.commit()?;
    seals.finish_rotation()?;
    if left > 0 {
        log::warn!("store: {left} sealed texts could not be opened before, and are left as they are");
    }
    log::info!("store: the key was rotated");
    Ok(())
}
