//! Brings a database to the schema of this binary. Owns `kb.schema_migrations` and the order of `migrations/*.sql`;
//! never edits or undoes what is applied. Invariant: a version stands in the table exactly when its SQL is committed,
//! with the checksum of the text that ran.

use crate::store::sql::describe;
use postgres::Client;
use sha2::{Digest, Sha256};
use std::fmt;

pub struct Migration {
    pub version: i32,
    pub name: &'static str,
    pub sql: &'static str,
}

pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "0001_agent_workspaces",
        sql: include_str!("../../migrations/0001_agent_workspaces.sql"),
    },
    Migration { version: 2, name: "0002_api_tokens", sql: include_str!("../../migrations/0002_api_tokens.sql") },
    Migration {
        version: 3,
        name: "0003_volume_removals",
        sql: include_str!("../../migrations/0003_volume_removals.sql"),
    },
    Migration { version: 4, name: "0004_token_life", sql: include_str!("../../migrations/0004_token_life.sql") },
    Migration { version: 5, name: "0005_projects", sql: include_str!("../../migrations/0005_projects.sql") },
    Migration {
        version: 6,
        name: "0006_token_projects",
        sql: include_str!("../../migrations/0006_token_projects.sql"),
    },
    Migration {
        version: 7,
        name: "0007_sealed_environment",
        sql: include_str!("../../migrations/0007_sealed_environment.sql"),
    },
    Migration { version: 8, name: "0008_one_daemon", sql: include_str!("../../migrations/0008_one_daemon.sql") },
    Migration { version: 9, name: "0009_catalogues", sql: include_str!("../../migrations/0009_catalogues.sql") },
];

/// "stdiod" in ASCII: the advisory lock that all daemons take while they migrate.
const LOCK_KEY: i64 = 0x7374_6469_6f64;

/// `IF NOT EXISTS` alone would ask for the right to create even where there is nothing to create.
const ENSURE_TABLE: &str = "
    DO $$ BEGIN
        IF to_regnamespace('kb') IS NULL THEN
            CREATE SCHEMA kb;
        END IF;
        IF to_regclass('kb.schema_migrations') IS NULL THEN
            CREATE TABLE kb.schema_migrations (
                version integer PRIMARY KEY,
                name text NOT NULL,
                checksum text NOT NULL,
                applied_at timestamptz NOT NULL DEFAULT now()
            );
        END IF;
    END $$";

#[derive(Debug, PartialEq, Eq)]
pub enum MigrationFault {
    /// The text of an applied migration is not the text that was applied.
    Edited {
        name: &'static str,
    },
    /// The database has seen a later binary.
    Newer {
        found: i32,
        known: i32,
    },
    Failed {
        name: &'static str,
        why: String,
    },
    Database {
        why: String,
    },
}

impl fmt::Display for MigrationFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MigrationFault::Edited { name } => write!(
                f,
                "migration {name} was applied to this database with another text: restore that file and put the change \
                 into a new migration"
            ),
            MigrationFault::Newer { found, known } => write!(
                f,
                "the database is at schema version {found}, this stdiod knows {known}: run the newer stdiod again, or \
                 give this one another database"
            ),
            MigrationFault::Failed { name, why } => write!(f, "migration {name}: {why}"),
            MigrationFault::Database { why } => write!(f, "migrations: {why}"),
        }
    }
}

impl From<postgres::Error> for MigrationFault {
    fn from(e: postgres::Error) -> MigrationFault {
        MigrationFault::Database { why: describe(&e) }
    }
}

/// Applies what is missing of `migrations`, and says how many that were. The lock is taken anew in each transaction, so
/// that daemons that start together find each other's work instead of repeating it.
pub fn migrate(client: &mut Client, migrations: &[Migration]) -> Result<usize, MigrationFault> {
    let mut count = 0;
    loop {
        let mut tx = client.transaction()?;
        tx.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK_KEY])?;
        tx.batch_execute(ENSURE_TABLE)?;
        let rows = tx.query("SELECT version, checksum FROM kb.schema_migrations ORDER BY version", &[])?;
        let applied = rows
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect::<Result<Vec<(i32, String)>, postgres::Error>>()?;
        let Some(next) = pending(&applied, migrations)? else {
            tx.commit()?;
            return Ok(count);
        };
        tx.batch_execute(next.sql).map_err(|e| MigrationFault::Failed { name: next.name, why: describe(&e) })?;
        tx.execute(
            "INSERT INTO kb.schema_migrations (version, name, checksum) VALUES ($1, $2, $3)",
            &[&next.version, &next.name, &checksum(next.sql)],
        )?;
        tx.commit()?;
        log::info!("store: applied migration {}", next.name);
        count += 1;
    }
}

/// The first migration that is not applied, if all that is applied is known and unchanged.
fn pending<'m>(
    applied: &[(i32, String)],
    migrations: &'m [Migration],
) -> Result<Option<&'m Migration>, MigrationFault> {
    for (version, sum) in applied {
        let Some(known) = migrations.iter().find(|m| m.version == *version) else {
            let known = migrations.last().map_or(0, |m| m.version);
            return Err(MigrationFault::Newer { found: *version, known });
        };
        if *sum != checksum(known.sql) {
            return Err(MigrationFault::Edited { name: known.name });
        }
    }
    Ok(migrations.iter().find(|m| applied.iter().all(|(version, _)| *version != m.version)))
}

fn checksum(sql: &str) -> String {
    Sha256::digest(sql.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[Migration] =
        &[Migration { version: 1, name: "0001_a", sql: "a" }, Migration { version: 2, name: "0002_b", sql: "b" }];

    fn done(version: i32, sql: &str) -> (i32, String) {
        (version, checksum(sql))
    }

    #[test]
    fn migrations_are_numbered_upwards_from_one_and_named_by_their_file() {
        assert_eq!(MIGRATIONS[0].version, 1);
        assert!(MIGRATIONS.windows(2).all(|pair| pair[0].version < pair[1].version));
        for m in MIGRATIONS {
            assert!(m.name.starts_with(&format!("{:04}_", m.version)), "{}", m.name);
        }
    }

    #[test]
    fn the_first_missing_migration_is_next() {
        assert_eq!(pending(&[], TWO).unwrap().unwrap().version, 1);
        assert_eq!(pending(&[done(1, "a")], TWO).unwrap().unwrap().version, 2);
        assert!(pending(&[done(1, "a"), done(2, "b")], TWO).unwrap().is_none());
    }

    #[test]
    fn an_edited_migration_is_named_and_a_newer_database_is_refused() {
        let edited = pending(&[done(1, "a"), done(2, "B")], TWO).err().unwrap();
        assert_eq!(edited, MigrationFault::Edited { name: "0002_b" });
        assert!(edited.to_string().contains("0002_b"));
        let newer = pending(&[done(1, "a"), done(2, "b"), done(3, "c")], TWO).err().unwrap();
        assert_eq!(newer, MigrationFault::Newer { found: 3, known: 2 });
    }
}
