//! One daemon per database. Owns the claim to it: an advisory lock of the store thread's session, which the server releases
//! when that session ends however it ends, and the epoch in `kb.daemon`, which every session of this daemon carries.
//! Invariant: nothing is read at boot, migrated or written before the lock is held; and what a daemon writes after another
//! one has taken over is refused by the tables themselves (migration 0008), whatever session it comes from.

use crate::limits::{STANDBY_PATIENCE, STORE_LOCK_WAIT};
use crate::store::home::{Home, Leftovers, Neighbour};
use postgres::Client;
use std::path::PathBuf;
use std::time::Instant;

/// "stdiod1" in ASCII; migrations have a lock of their own.
const LOCK_KEY: i64 = 0x73_7464_696f_6431;

/// Who has the lock, and what the row says of the last one who had it; the row may be of somebody before.
const HOLDER: &str = "
    SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid::bigint = $1::bigint >> 32 AND objid::bigint = $1::bigint & 4294967295";
const ROW: &str = "
    SELECT epoch, home, host, data_dir, kernel, to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')
    FROM kb.daemon";
const BEGIN_EPOCH: &str = "
    INSERT INTO kb.daemon (epoch, home, host, data_dir, kernel) VALUES (1, $1, $2, $3, $4)
    ON CONFLICT (one) DO UPDATE SET epoch = daemon.epoch + 1, home = excluded.home, host = excluded.host,
        data_dir = excluded.data_dir, kernel = excluded.kernel, since = now()
    RETURNING epoch";

/// What came of one try.
pub enum Try {
    /// It is ours. What the daemon before has left on this machine, if it was another.
    Taken(Option<Leftovers>),
    /// Not now; why.
    Wait(String),
    /// Not in this life; why, and what to do.
    Denied(String),
}

pub struct Claim {
    home: Home,
    /// Waits for as long as it takes.
    standby: bool,
    /// Ours, once there is one.
    epoch: Option<i64>,
    /// Since when the lock was seen to be somebody else's, or nobody's.
    held_since: Option<Instant>,
    free_since: Option<Instant>,
}

/// `kb.daemon`.
struct Last {
    epoch: i64,
    home: Home,
    since: String,
}

impl Claim {
    pub fn new(home: Home, standby: bool) -> Claim {
        Claim { home, standby, epoch: None, held_since: None, free_since: None }
    }

    /// Tries once, on a session that has not tried before or was told to wait. The caller comes again.
    pub fn attempt(&mut self, client: &mut Client) -> Result<Try, postgres::Error> {
        let last = last(client)?;
        if let (Some(ours), Some(last)) = (self.epoch, &last)
            && last.epoch != ours
        {
            return Ok(Try::Denied(lost_to(last)));
        }
        if let Some(holder) = client.query_opt(HOLDER, &[&LOCK_KEY])? {
            return self.held(client, holder.try_get(0)?, last.as_ref());
        }
        self.held_since = None;
        let leftovers = match last.as_ref().map(|last| last.home.look_at(&self.home)) {
            None | Some(Neighbour::Elsewhere) => None,
            Some(Neighbour::Gone(leftovers)) => Some(leftovers),
            // Cut off from the database for a moment, or on its way out.
            Some(Neighbour::Runs) => {
                self.free_since = None;
                return self.not_yet(&last.expect("it was looked at"), "it runs, though it has no connection");
            }
        };
        if let Some(last) = last.filter(|last| self.standby && last.home.id != self.home.id)
            && self.free_since.get_or_insert_with(Instant::now).elapsed() < STANDBY_PATIENCE
        {
            return Ok(Try::Wait(format!("{} has left the database, and may come back", named(&last))));
        }
        let taken: bool = client.query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK_KEY])?.try_get(0)?;
        match taken {
            true => Ok(Try::Taken(leftovers)),
            false => Ok(Try::Wait("another stdiod takes the database over at this moment".to_string())),
        }
    }

    fn held(&mut self, client: &mut Client, pid: i32, last: Option<&Last>) -> Result<Try, postgres::Error> {
        self.free_since = None;
        let Some(last) = last else {
            return Ok(Try::Wait("another stdiod is making its tables in this database".to_string()));
        };
        if self.epoch.is_none() && last.home.is_earlier_life_of(&self.home) {
            // We hold the lock of its directory, so it is gone, and the server has not noticed yet.
            client.execute("SELECT pg_terminate_backend($1)", &[&pid])?;
            return Ok(Try::Wait("the session of this daemon's earlier life is being ended".to_string()));
        }
        self.not_yet(last, "it holds its lock")
    }

    fn not_yet(&mut self, last: &Last, why: &str) -> Result<Try, postgres::Error> {
        let since = *self.held_since.get_or_insert_with(Instant::now);
        if self.standby || since.elapsed() < STORE_LOCK_WAIT {
            return Ok(Try::Wait(format!("{} works on this database ({why})", named(last))));
        }
        Ok(Try::Denied(format!(
            "{} works on this database ({why}); stop it, give this one another database_url, or set `standby = true` to \
             have this one wait and take over",
            named(last)
        )))
    }

    /// With the lock held and the tables made: what this session writes from here on is in the name of this daemon. The
    /// second time it is the same epoch, unless there was another daemon in between: then none, and its sentence.
    pub fn enter(&mut self, client: &mut Client) -> Result<Result<(), String>, postgres::Error> {
        let epoch = match self.epoch {
            None => {
                let home = &self.home;
                let data_dir = home.data_dir.display().to_string();
                client.query_one(BEGIN_EPOCH, &[&home.id, &home.host, &data_dir, &home.kernel])?.try_get(0)?
            }
            Some(ours) => match last(client)? {
                Some(last) if last.epoch == ours => ours,
                Some(last) => return Ok(Err(lost_to(&last))),
                None => return Ok(Err("the row of kb.daemon is gone, and nobody knows whose this database is".into())),
            },
        };
        client.execute("SELECT set_config('stdiod.epoch', $1, false)", &[&epoch.to_string()])?;
        self.epoch = Some(epoch);
        Ok(Ok(()))
    }
}

fn last(client: &mut Client) -> Result<Option<Last>, postgres::Error> {
    // The very first daemon has no tables yet.
    let there: bool = client.query_one("SELECT to_regclass('kb.daemon') IS NOT NULL", &[])?.try_get(0)?;
    if !there {
        return Ok(None);
    }
    let Some(row) = client.query_opt(ROW, &[])? else { return Ok(None) };
    let home = Home {
        id: row.try_get(1)?,
        host: row.try_get(2)?,
        data_dir: PathBuf::from(row.try_get::<_, String>(3)?),
        kernel: row.try_get(4)?,
    };
    Ok(Some(Last { epoch: row.try_get(0)?, home, since: row.try_get(5)? }))
}

fn named(last: &Last) -> String {
    let Last { home, since, .. } = last;
    format!("another stdiod (on {}, data_dir {}, since {since})", home.host, home.data_dir.display())
}

fn lost_to(last: &Last) -> String {
    format!("{} has taken this database over; this one ends, so that nothing runs twice", named(last))
}
