//! The store against a real PostgreSQL: each test runs a private cluster of its own through `store::cluster`, with the
//! few lines of `Rig` in place of the reactor. Fails where PostgreSQL is missing. No process and no file stays behind.

mod claim;
mod cluster;
mod encrypted;
mod projects;
mod rig;
mod sealed;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use postgres::{Client, NoTls};
use rig::*;
use std::collections::BTreeMap;
use std::fs;
use std::mem::ManuallyDrop;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use stdiod::ids::{ServerId, StoreSeq, Uuid};
use stdiod::limits::{STORE_CHANNEL, STORE_WAIT};
use stdiod::model::catalogue::Catalogue;
use stdiod::model::definition::{Definition, Source};
use stdiod::model::records::{Snapshot, StoreOp, StoreOutcome, StoredServer, StoredStatus};
use stdiod::model::status::{LastCrash, Status};
use stdiod::store::migrate::{MIGRATIONS, migrate};
use stdiod::store::premises::{Account, prepare};
use stdiod::store::thread::StoreEvent;

// --- operations -------------------------------------------------------------------------------------------------------

#[test]
fn every_operation_is_found_again_by_the_next_daemon() {
    let place = Place::new("roundtrip");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    assert_eq!(desk.opened(&mut rig), Some(Snapshot::default()));

    let (mut kept, gone) = (fresh("kept"), fresh("gone"));
    let host = StoredServer {
        definition: Definition { source: Source::HostRootfs, provider: None, ..definition("host") },
        desired_up: false,
        created_unix_ms: kept.created_unix_ms + 1,
        ..fresh("host")
    };
    let id = kept.id;
    for op in [insert(&kept), insert(&gone), insert(&host)] {
        assert_eq!(desk.ask(&mut rig, op), StoreOutcome::Committed);
    }
    kept.definition.name = "renamed".to_string();
    kept.definition.resource_limits.memory_bytes = 1 << 40;
    kept.desired_up = false;
    let crash = LastCrash {
        at_unix_ms: 1_763_280_001_999,
        exit_code: None,
        signal: Some(9),
        oom: true,
        stderr_tail: vec!["a\0b".to_string(), "ünï".to_string()],
    };
    kept.status = StoredStatus {
        status: Status::Backoff,
        restart_count: 7,
        last_crash: Some(crash),
        last_error: Some("no \0 such file".to_string()),
        last_used_unix_ms: Some(1_763_280_002_001),
    };
    let catalogue = Catalogue {
        capabilities: "{}".to_string(),
        server_info: r#"{"name":"ünï"}"#.to_string(),
        lists: [Some(r#"{"tools":[{"name":"a\u0000"}]}"#.to_string()), None, None, None],
        ..Catalogue::default()
    };
    let definition = Arc::new(kept.definition.clone());
    for op in [
        StoreOp::UpdateServer { id, definition, desired_up: false },
        StoreOp::SaveStatus { id, status: Box::new(kept.status.clone()) },
        StoreOp::SaveCatalogue { id, catalogue: Box::new(catalogue.clone()) },
        StoreOp::SaveCatalogue { id: gone.id, catalogue: Box::new(catalogue.clone()) },
        StoreOp::DeleteServer { id: gone.id, volumes: None },
        StoreOp::SaveCatalogue { id: gone.id, catalogue: Box::new(catalogue.clone()) },
        StoreOp::DeleteServer { id: gone.id, volumes: Some("gone".to_string()) },
        StoreOp::DeleteServer { id: gone.id, volumes: Some("gone".to_string()) },
        StoreOp::SetDesired { id: gone.id, up: true },
        StoreOp::SaveStatus { id: gone.id, status: Box::new(kept.status.clone()) },
        StoreOp::InsertToken { id: Uuid::from_u128(1), token: token("admin", 1) },
        StoreOp::InsertToken { id: Uuid::from_u128(2), token: token("revoked", 2) },
        StoreOp::DeleteToken { name: "revoked".to_string() },
        StoreOp::DeleteToken { name: "revoked".to_string() },
    ] {
        assert_eq!(desk.ask(&mut rig, op.clone()), StoreOutcome::Committed, "{op:?}");
    }
    assert!(desk.wakes.load(Ordering::SeqCst) >= 13, "the loop is woken for each event");
    desk.store.close();

    // Only NULs, which PostgreSQL cannot hold, come back otherwise.
    kept.status.last_crash.as_mut().unwrap().stderr_tail[0] = "a\u{fffd}b".to_string();
    kept.status.last_error = Some("no \u{fffd} such file".to_string());
    let mut desk = Desk::open(&rig.cluster.conninfo());
    let snapshot = desk.opened(&mut rig).expect("a new daemon gets the snapshot");
    assert_eq!(snapshot.catalogues, [(id, catalogue)]);
    assert_eq!(snapshot.servers, [kept, host]);
    assert_eq!(snapshot.tokens, [(Uuid::from_u128(1), token("admin", 1))]);
    assert_eq!(snapshot.volume_removals, [(gone.id, "gone".to_string())]);
    // Whoever has the name next has no volumes of the one before.
    let next = fresh("gone");
    let last = StoreOp::DeleteServer { id: next.id, volumes: None };
    for op in [insert(&next), StoreOp::SetDesired { id: next.id, up: false }, last] {
        assert_eq!(desk.ask(&mut rig, op), StoreOutcome::Committed);
    }
    let left = rig.client().query("SELECT name FROM kb.volume_removals", &[]).unwrap();
    assert_eq!(left.len(), 0);
    desk.store.close();

    let row = rig
        .client()
        .query_one(
            "SELECT image, provider, desired, created_at::text FROM kb.agent_workspaces WHERE name = 'host'",
            &[],
        )
        .unwrap();
    assert_eq!(row.get::<_, Option<String>>(0), None);
    assert_eq!(row.get::<_, Option<String>>(1), None);
    assert_eq!(row.get::<_, String>(2), "down");
    assert!(row.get::<_, String>(3).contains(".124"), "milliseconds are kept");
    rig.stop();
}

#[test]
fn what_the_database_refuses_is_rejected_alone_and_without_its_secrets() {
    let place = Place::new("rejected");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let first = fresh("twin");
    assert_eq!(desk.ask(&mut rig, insert(&first)), StoreOutcome::Committed);
    let nul_in_file = {
        let mut server = fresh("nul");
        server.definition.files.insert("/f".to_string(), "\0".to_string());
        server
    };
    let missing = StoreOp::UpdateServer {
        id: ServerId(Uuid::new_v4()),
        definition: Arc::new(definition("nobody")),
        desired_up: true,
    };
    let taken_token = token("one", 1);
    desk.ask(&mut rig, StoreOp::InsertToken { id: Uuid::from_u128(1), token: taken_token });
    let same_hash = StoreOp::InsertToken { id: Uuid::from_u128(3), token: token("two", 1) };
    let refused = [
        (insert(&fresh("twin")), true),
        (insert(&fresh("NOT A NAME")), false),
        (insert(&nul_in_file), false),
        (missing, false),
        (same_hash, true),
    ];
    for (op, taken) in refused {
        match (desk.ask(&mut rig, op), taken) {
            (StoreOutcome::Taken(why), true) | (StoreOutcome::Rejected(why), false) => {
                assert!(!why.contains("hunter2") && !why.is_empty(), "{why}");
            }
            (other, _) => panic!("taken: {taken}, but {other:?}"),
        }
    }
    // Over their own row they are no news but the truth again.
    let again = [insert(&first), StoreOp::InsertToken { id: Uuid::from_u128(2), token: token("one", 2) }];
    for op in again {
        assert_eq!(desk.ask(&mut rig, op), StoreOutcome::Committed);
    }

    // In a batch that shares a transaction, too: a time that is out of range spoils nobody else's.
    let mut sent = Vec::new();
    for n in 0..200u64 {
        let mut op = save(first.id, n);
        if n % 50 == 10
            && let StoreOp::SaveStatus { status, .. } = &mut op
        {
            status.last_used_unix_ms = Some(u64::MAX);
        }
        sent.push((desk.send(op), n % 50 == 10));
    }
    for (expected, bad) in sent {
        match desk.event(&mut rig, "Done") {
            StoreEvent::Done { seq, outcome } => {
                assert_eq!(seq, expected, "in order");
                assert_eq!(matches!(outcome, StoreOutcome::Rejected(_)), bad, "{outcome:?}");
            }
            other => panic!("not Done: {other:?}"),
        }
    }
    let row = rig.client().query_one("SELECT restart_count FROM kb.agent_workspaces WHERE name = 'twin'", &[]).unwrap();
    assert_eq!(row.get::<_, i64>(0), 199);
    desk.store.close();
    rig.stop();
    let log = fs::read_dir(place.pg().join("data/log")).unwrap().flatten().map(|f| fs::read(f.path()).unwrap());
    assert!(!String::from_utf8_lossy(&log.flatten().collect::<Vec<u8>>()).contains("hunter2"), "nor in its log");
}

#[test]
fn close_writes_down_all_that_is_queued_and_the_thread_takes_no_signals() {
    let place = Place::new("close");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let masks = fs::read_dir("/proc/self/task").unwrap().flatten().filter_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        status.starts_with("Name:\tstore\n").then_some(status)
    });
    for status in masks {
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        // SIGCHLD 17, SIGTERM 15, SIGINT 2.
        let wanted = (1u64 << 16) | (1 << 14) | (1 << 1);
        assert_eq!(u64::from_str_radix(blocked, 16).unwrap() & wanted, wanted);
    }
    let server = fresh("last-words");
    desk.send(insert(&server));
    let mut count = 0;
    while desk.store.try_send(StoreSeq(count + 1), save(server.id, count)).is_ok() && count < 2 * STORE_CHANNEL as u64 {
        count += 1;
    }
    desk.store.close();
    let row = rig.client().query_one("SELECT restart_count FROM kb.agent_workspaces", &[]).unwrap();
    assert_eq!(row.get::<_, i64>(0), count as i64 - 1, "the last one accepted is the one stored");
    rig.stop();
}

// --- losing it, and finding it again ----------------------------------------------------------------------------------

#[test]
fn a_postmaster_killed_under_load_is_restarted_and_nothing_committed_is_lost() {
    let place = Place::new("kill");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let mut committed = Vec::new();
    let mut ids = BTreeMap::new();
    let (mut unknown, mut lost, mut reopened) = (0, 0, 0);
    for life in 0..3 {
        let mut killed = false;
        let mut n = 0;
        // Keeps a few operations under way until the store is back and takes one.
        let deadline = Instant::now() + PATIENCE;
        'life: loop {
            assert!(Instant::now() < deadline, "life {life}: {:?}", rig.downs);
            let server = fresh(&format!("s-{life}-{n}"));
            ids.insert(desk.next, server.id);
            desk.send(insert(&server));
            n += 1;
            if n == 20 {
                kill(rig.postmaster(), Signal::SIGKILL).unwrap();
                killed = true;
            }
            rig.turn();
            for event in desk.store.events().collect::<Vec<_>>() {
                match event {
                    StoreEvent::Done { seq, outcome: StoreOutcome::Committed } => {
                        committed.push(ids[&seq.0]);
                        if killed && reopened > life {
                            break 'life;
                        }
                    }
                    StoreEvent::Done { outcome: StoreOutcome::Unknown(_), .. } => unknown += 1,
                    StoreEvent::Done { outcome: StoreOutcome::Taken(why) | StoreOutcome::Rejected(why), .. } => {
                        panic!("{why}")
                    }
                    StoreEvent::Lost { .. } => lost += 1,
                    StoreEvent::StandingBy { .. } => {}
                    StoreEvent::Denied { why } => panic!("{why}"),
                    StoreEvent::CallsRead { .. } => panic!("nobody has asked"),
                    StoreEvent::Opened { snapshot, .. } => {
                        assert!(snapshot.is_none(), "only the first time");
                        reopened += 1;
                    }
                }
            }
        }
    }
    assert_eq!(reopened, 3);
    assert!(unknown > 0 && lost >= 3, "{unknown} unknown, {lost} lost");
    assert!(!rig.downs.is_empty());
    desk.store.close();
    let rows = rig.client().query("SELECT id FROM kb.agent_workspaces", &[]).unwrap();
    let stored: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    assert!(committed.iter().all(|id| stored.contains(&id.0)), "what was said to be committed is there");
    rig.stop();
}

#[test]
fn an_idle_store_notices_the_loss_by_itself_and_answers_at_once_while_it_lasts() {
    let place = Place::new("idle");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    kill(rig.postmaster(), Signal::SIGKILL).unwrap();
    let begun = Instant::now();
    // Not turned: nobody restarts it yet.
    let lost = loop {
        match desk.store.events().next() {
            Some(StoreEvent::Lost { why }) => break why,
            Some(other) => panic!("{other:?}"),
            None => assert!(begun.elapsed() < Duration::from_secs(5)),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(!lost.is_empty());
    for n in 0..3 {
        let begun = Instant::now();
        desk.send(save(ServerId(Uuid::from_u128(1)), n));
        let outcome = loop {
            match desk.store.events().next() {
                Some(StoreEvent::Done { outcome, .. }) => break outcome,
                Some(StoreEvent::Lost { .. }) => {}
                Some(other) => panic!("{other:?}"),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        assert!(matches!(outcome, StoreOutcome::Unknown(_)));
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    }
    rig.until("Opened", |_| {
        desk.store.events().find(|event| matches!(event, StoreEvent::Opened { snapshot: None, .. }))
    });
    assert_eq!(desk.ask(&mut rig, insert(&fresh("after"))), StoreOutcome::Committed);
    desk.store.close();
    rig.stop();
}

#[test]
fn a_frozen_postgres_is_noticed_and_used_again_when_it_thaws() {
    let place = Place::new("frozen");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let server = fresh("thawed");
    assert_eq!(desk.ask(&mut rig, insert(&server)), StoreOutcome::Committed);
    // The one session alone, which a new one must not overtake; then the server as a whole.
    for whole in [false, true] {
        let frozen = if whole {
            residents(&place.pg().join("data"))
        } else {
            let session = "SELECT pid FROM pg_stat_activity WHERE application_name = 'stdiod'";
            vec![rig.client().query_one(session, &[]).unwrap().get(0)]
        };
        for pid in &frozen {
            kill(Pid::from_raw(*pid), Signal::SIGSTOP).unwrap();
        }
        while !matches!(desk.event(&mut rig, "Lost"), StoreEvent::Lost { .. }) {}
        let begun = Instant::now();
        let asked = desk.send(save(server.id, 1));
        loop {
            match desk.event(&mut rig, "Done") {
                StoreEvent::Done { seq, outcome } => {
                    assert_eq!(seq, asked);
                    assert!(matches!(outcome, StoreOutcome::Unknown(_)));
                    break;
                }
                StoreEvent::Lost { .. } | StoreEvent::StandingBy { .. } => {}
                other @ (StoreEvent::Opened { .. } | StoreEvent::CallsRead { .. } | StoreEvent::Denied { .. }) => {
                    panic!("{other:?}")
                }
            }
        }
        assert!(begun.elapsed() < STORE_WAIT, "before the core gives up by itself: {:?}", begun.elapsed());
        for pid in &frozen {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGCONT);
        }
        assert!(desk.opened(&mut rig).is_none());
        assert_eq!(desk.ask(&mut rig, save(server.id, 2)), StoreOutcome::Committed);
    }
    desk.store.close();
    rig.stop();
}

#[test]
fn an_operation_that_must_wait_too_long_is_given_up_by_the_database() {
    let place = Place::new("locked");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let server = fresh("locked");
    assert_eq!(desk.ask(&mut rig, insert(&server)), StoreOutcome::Committed);
    let mut holder = rig.client();
    let mut tx = holder.transaction().unwrap();
    tx.execute("SELECT FROM kb.agent_workspaces FOR UPDATE", &[]).unwrap();
    let begun = Instant::now();
    assert!(matches!(desk.ask(&mut rig, save(server.id, 1)), StoreOutcome::Unknown(_)));
    assert!(begun.elapsed() < STORE_WAIT, "{:?}", begun.elapsed());
    tx.rollback().unwrap();
    assert!(desk.opened(&mut rig).is_none(), "it is worth trying again");
    assert_eq!(desk.ask(&mut rig, save(server.id, 2)), StoreOutcome::Committed);
    desk.store.close();
    drop(holder);
    rig.stop();
}

// --- the schema -------------------------------------------------------------------------------------------------------

#[test]
fn sessions_that_migrate_at_the_same_time_all_get_the_schema_and_each_step_is_made_once() {
    let place = Place::new("race");
    let mut rig = Rig::start(&place);
    for round in 0..3 {
        let conninfo = rig.database(&format!("race{round}"));
        let sessions: Vec<Client> = (0..4).map(|_| Client::connect(&conninfo, NoTls).unwrap()).collect();
        let steps: usize = std::thread::scope(|scope| {
            let at_once =
                sessions.into_iter().map(|mut session| scope.spawn(move || migrate(&mut session, MIGRATIONS)));
            let at_once: Vec<_> = at_once.collect();
            at_once.into_iter().map(|one| one.join().unwrap().expect("the schema")).sum()
        });
        assert_eq!(steps, MIGRATIONS.len());
    }
    rig.stop();
}

#[test]
fn a_database_of_another_version_is_refused_by_name_until_it_is_put_right() {
    let place = Place::new("version");
    let mut rig = Rig::start(&place);
    for (case, spoil, said, repair) in [
        (
            "newer",
            "INSERT INTO kb.schema_migrations (version, name, checksum) VALUES (9999, '9999_later', 'x')",
            "9999",
            "DELETE FROM kb.schema_migrations WHERE version = 9999",
        ),
        (
            "edited",
            "UPDATE kb.schema_migrations SET checksum = 'x' || checksum WHERE version = 1",
            "0001_agent_workspaces",
            "UPDATE kb.schema_migrations SET checksum = substr(checksum, 2) WHERE version = 1",
        ),
    ] {
        let conninfo = rig.database(case);
        let mut first = Desk::open(&conninfo);
        first.opened(&mut rig);
        first.store.close();
        let mut client = Client::connect(&conninfo, NoTls).unwrap();
        client.batch_execute(spoil).unwrap();

        let mut desk = Desk::open(&conninfo);
        match desk.event(&mut rig, "Lost") {
            StoreEvent::Lost { why } => assert!(why.contains(said), "{why}"),
            other => panic!("{other:?}"),
        }
        client.batch_execute(repair).unwrap();
        assert!(desk.opened(&mut rig).is_some(), "no restart is needed");
        desk.store.close();
    }
    rig.stop();
}

#[test]
fn rows_of_others_are_not_touched_and_a_row_that_cannot_be_read_stops_nobody() {
    let place = Place::new("shared");
    let mut rig = Rig::start(&place);
    let conninfo = rig.database("shared");
    let mut client = Client::connect(&conninfo, NoTls).unwrap();
    // A schema that was there first, with a table of the same name and a row that has nothing of ours.
    client
        .batch_execute(
            "CREATE SCHEMA kb;
             CREATE TABLE kb.agent_workspaces (id uuid PRIMARY KEY, container_type text NOT NULL, provider text,
                 status text, created_at timestamptz NOT NULL DEFAULT now());
             INSERT INTO kb.agent_workspaces VALUES (gen_random_uuid(), 'mcp_server', 'docker', 'ready');
             INSERT INTO kb.agent_workspaces VALUES ('00000000-0000-0000-0000-000000000001', 'workspace', 'e2b', 'x')",
        )
        .unwrap();
    let mut desk = Desk::open(&conninfo);
    let refusals = |snapshot: &Snapshot| -> Vec<String> {
        snapshot.unfit.iter().map(|row| row.why.message.split_inclusive(": ").take(1).collect()).collect()
    };
    let first = desk.opened(&mut rig).unwrap();
    assert_eq!((first.servers.len(), refusals(&first)), (0, vec!["name: ".to_string()]));
    let (good, bad) = (fresh("good"), fresh("bad"));
    for op in [
        insert(&good),
        insert(&bad),
        StoreOp::DeleteServer { id: ServerId(Uuid::from_u128(1)), volumes: None },
        save(ServerId(Uuid::from_u128(1)), 5),
    ] {
        assert_eq!(desk.ask(&mut rig, op), StoreOutcome::Committed);
    }
    desk.store.close();
    client
        .batch_execute(
            "UPDATE kb.agent_workspaces SET definition = definition - 'cmd' WHERE name = 'bad';
             UPDATE kb.agent_workspaces SET status = 'unheard-of', last_crash = '[]', last_used_at = 'infinity'
             WHERE name = 'good'",
        )
        .unwrap();
    let mut desk = Desk::open(&conninfo);
    let snapshot = desk.opened(&mut rig).unwrap();
    let mut expected = good;
    expected.status.status = Status::Stopped;
    assert_eq!(refusals(&snapshot), ["definition: ", "name: "]);
    assert!(snapshot.unfit[0].why.message.contains("missing field `cmd`"));
    assert_eq!(snapshot.servers, [expected]);
    desk.store.close();
    let row = client
        .query_one(
            "SELECT count(*), count(*) FILTER (WHERE name = 'bad'),
                 count(*) FILTER (WHERE container_type = 'workspace' AND status = 'x' AND restart_count = 0)
             FROM kb.agent_workspaces",
            &[],
        )
        .unwrap();
    assert_eq!([0, 1, 2].map(|i| row.get::<_, i64>(i)), [4, 1, 1]);
    rig.stop();
}
