//! Every bound of the program, in one place. A queue, buffer or wait that is not bounded here is a bug.

mod agreement;

use crate::allowance::Rate;
use crate::shares::Caps;
use std::ops::RangeInclusive;
use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

// --- HTTP, what a client may send -----------------------------------------------------------------------------

/// Request line and headers together.
pub const HEAD_MAX: usize = 32 * KIB;
/// The request target alone; longer is 414.
pub const TARGET_MAX: usize = 8 * KIB;
/// The request line: the target, with room for any method there is and the version.
pub const REQUEST_LINE_MAX: usize = TARGET_MAX + 64;
pub const HEADERS_MAX: usize = 64;
/// A head that is compared with the next one of its connection, so that the same is not parsed again.
pub const KNOWN_HEAD_MAX: usize = 2 * KIB;
/// `Host`, or the authority of an absolute target.
pub const HOST_MAX: usize = 255;
/// Empty lines before a request line; RFC 9112 asks to be patient with at least one.
pub const EMPTY_LINES_MAX: usize = 4;
/// A request body; longer is 413.
pub const BODY_MAX: usize = 8 * MIB;
/// One chunk-size line with its extensions.
pub const CHUNK_LINE_MAX: usize = 256;
/// What may follow the last chunk; it is read and thrown away.
pub const TRAILERS_MAX: usize = 8 * KIB;
/// What a connection between two requests may keep of a large buffer.
pub const BUFFER_KEPT_MAX: usize = 32 * KIB;
/// Freed memory that the daemon keeps for its next large answer, and the size from which on a buffer goes back at once.
pub const MALLOC_KEPT_MAX: usize = 8 * MIB;
pub const MALLOC_MMAP_MIN: usize = 4 * MIB;
/// What the kernel holds of a server's stdout; it takes memory only for what is in it.
pub const STDOUT_PIPE: usize = 256 * KIB;
/// From this size on bytes that go out are not gathered with others, but written from the buffer they are in.
pub const PART_MIN: usize = 16 * KIB;
/// Parts in one write: a head, its body, what ends it, and the beginning of the next.
pub const PARTS_PER_WRITE: usize = 4;
/// The same where an answer is put together from what many have in common.
pub const SHARED_PARTS_PER_WRITE: usize = 64;
/// When whoever found no room may come back.
pub const OVERLOAD_RETRY: Duration = Duration::from_secs(5);
/// Client connections open at once; the next gets a canned 503.
pub const CONNECTIONS_MAX: usize = 16 * KIB;
/// Descriptors that no connection may take, kept for launches, pipes and the store.
pub const DESCRIPTORS_RESERVED: u64 = 256;
/// Descriptors that the kernel's table has room for from the start (8 bytes each); beyond them it grows as they come.
pub const DESCRIPTORS_FORESEEN: u64 = 4 * KIB as u64;
/// As many more may be on their way out with that 503; those beyond are closed without a word.
pub const CONNECTIONS_REFUSED_MAX: usize = 256;
/// After an accept that failed: for want of descriptors, most likely.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections taken from one listener before everybody else has a turn: a turn costs less than one of them, and a caller
/// must not wait for all that have queued up.
pub const ACCEPTS_AT_ONCE: usize = 2;
/// A unix socket's path: `sun_path` holds 108 bytes with its final zero.
pub const UNIX_PATH_MAX: usize = 107;
/// Connections to a unix socket that wait to be accepted; the kernel may keep fewer.
pub const LISTEN_BACKLOG: i32 = 1024;
/// What a client may leave unread before it is dropped (answers to one call may be larger: they are one message).
pub const STREAM_BACKLOG_MAX: usize = MIB;
/// Bytes taken from one source before the next has its turn. An answer that is larger is a large one.
pub const BYTES_AT_ONCE: usize = 80 * KIB;
/// Pieces in which a large answer moves: when nobody else is being answered, and among others. Measured beside large ones: a
/// small call's p99 is 1.85 times its own alone with 32 KiB, 1.70 with 16, 1.61 with 8; each half as large makes the large
/// answer take twice as long. Alone, 1 MiB at once takes a fifth less of the CPU than four pieces: its client is woken once.
pub const PIECE_ALONE: usize = MIB;
pub const PIECE_AMONG_OTHERS: usize = 16 * KIB;
/// For so long a large answer waits for a small one; it is one step of the clock.
pub const HOLD: Duration = Duration::from_millis(1);

/// From the first byte of a request (or the accept) to the end of its head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Between the end of the head and the last byte of the body, however large it is.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// A kept-alive connection with no request.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// A client that takes nothing of its answer for so long is dropped.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// From the first byte of an answer to its last, however steadily it trickles; streams of events have no last byte,
/// and are bounded by `STREAM_BACKLOG_MAX`.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// After its last answer a client that is still sending is listened to, or the kernel would throw the answer away: for
/// so many bytes, so long in all, and so long in silence.
pub const LINGER_BYTES_MAX: usize = 256 * MIB;
pub const LINGER_TIME_MAX: Duration = Duration::from_secs(15);
pub const LINGER_SILENCE_MAX: Duration = Duration::from_secs(2);

// --- TLS ------------------------------------------------------------------------------------------------------------

/// Bytes of a peer that bring nothing to read, in one go: a whole chain of certificates fits twice. More is no handshake.
pub const TLS_SILENT_BYTES_MAX: usize = 160 * KIB;
/// What is encrypted at once: four records. No more of an answer than that waits in clear text's place.
pub const TLS_WRITE_AT_ONCE: usize = 64 * KIB;
/// A file with certificates or a key.
pub const TLS_FILE_MAX: u64 = MIB as u64;
pub const CERTIFICATE_RULES_MAX: usize = 1024;

// --- the audit log --------------------------------------------------------------------------------------------------

/// Of each of its two files.
pub const AUDIT_BYTES_DEFAULT: u64 = 16 * MIB as u64;
pub const AUDIT_BYTES_MIN: u64 = 64 * KIB as u64;
/// Lines between the loop and the thread that writes them. Those that do not fit are counted, and the log tells how many.
pub const AUDIT_CHANNEL: usize = 8 * KIB;
/// Lines that wait for a disk which does not take them.
pub const AUDIT_WAITING_MAX: usize = 8 * KIB;
/// Between two attempts to write to it.
pub const AUDIT_RETRY: Duration = Duration::from_secs(1);
/// A path, or anything else of a client's own words, in one line.
pub const AUDIT_WORD_MAX: usize = 256;
/// Lines that one question may get.
/// Fields of a change that are named.
pub const AUDIT_FIELDS_MAX: usize = 64;
pub const AUDIT_LIMIT_DEFAULT: usize = 100;
pub const AUDIT_LIMIT_MAX: usize = 1000;
/// Questions for it that wait for the thread.
pub const AUDIT_QUESTIONS_MAX: usize = 32;
/// Between two looks of `stdiod audit -f`.
pub const AUDIT_FOLLOW_EVERY: Duration = Duration::from_millis(500);

// --- rates and tokens -----------------------------------------------------------------------------------------------

/// Asks a second, and at once.
pub const RATE_MAX: u32 = 1_000_000;
/// A token lives no longer than this if it has an end, and an old one goes on beside the new one no longer than that.
pub const TOKEN_LIFE_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
pub const TOKEN_GRACE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Tokens are looked at at least so often while one of them has an end: clocks are set, and machines sleep.
pub const TOKEN_LOOK_EVERY: Duration = Duration::from_secs(10);

// --- OAuth ----------------------------------------------------------------------------------------------------------

/// An access token, as it is shown; a head has room for one and a half.
pub const OAUTH_TOKEN_MAX: usize = 20 * KIB;
/// The header of one, and how many fields it may have.
pub const OAUTH_HEADER_MAX: usize = 2 * KIB;
pub const OAUTH_HEADER_FIELDS_MAX: usize = 32;
/// Objects and lists in one another, in a header or in claims.
pub const OAUTH_DEPTH_MAX: usize = 16;
/// Of a key id, or a subject.
pub const OAUTH_WORD_MAX: usize = 256;
/// Audiences of one token, and values of one claim that are looked at.
pub const OAUTH_VALUES_MAX: usize = 256;
/// Clocks of two machines differ by less.
pub const OAUTH_LEEWAY: Duration = Duration::from_secs(60);
pub const OAUTH_RULES_MAX: usize = 1024;
pub const TRUSTED_PROXIES_MAX: usize = 64;
/// Tokens that were found good and need not be verified again.
pub const OAUTH_TOKENS_KEPT: usize = 4 * KIB;
/// Keys of one issuer, and those that are tried for a token that names none.
pub const OAUTH_KEYS_MAX: usize = 64;
pub const OAUTH_KEYS_TRIED: usize = 8;
/// A document of the authorization server: its metadata, or its keys.
pub const OAUTH_DOCUMENT_MAX: u64 = 256 * KIB as u64;
/// For one such document, from the connection to its last byte.
pub const OAUTH_FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Keys are asked for again unasked, so that one that was withdrawn is not good for ever.
pub const OAUTH_KEYS_EVERY: Duration = Duration::from_secs(600);
/// For a key that is not known they are asked for no sooner than this after the last time, and sooner where that has failed.
pub const OAUTH_KEYS_PAUSE: Duration = Duration::from_secs(30);
pub const OAUTH_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Requests that wait for keys, and for how long.
pub const OAUTH_WAITING_MAX: usize = 1024;
pub const OAUTH_KEYS_WAIT: Duration = Duration::from_secs(15);

// --- the bridge -------------------------------------------------------------------------------------------------

/// One line of a server's stdout; a longer one is discarded to its end.
pub const LINE_MAX: usize = 16 * MIB;
/// What is kept of a line that is discarded, to tell whose answer it was.
pub const LINE_HEAD_KEPT: usize = 4 * KIB;
pub const LINE_TAIL_KEPT: usize = 256;
/// A buffer for lines of this size is never too large; a larger one is given back after so many times it was not needed.
pub const LINE_BUFFER_KEPT: usize = 4 * KIB;
pub const LINE_BUFFER_ROOMY_MAX: u8 = 8;
/// The head of a message with `Content-Length` framing.
pub const FRAME_HEAD_MAX: usize = KIB;
/// Its fields. Two are known; every line that could begin a head is followed by so many more that are looked at.
pub const FRAME_FIELDS_MAX: usize = 8;
/// Bytes that may wait for a server's stdin before calls to it are refused.
pub const STDIN_BACKLOG_MAX: usize = 4 * BODY_MAX;
pub const MAX_IN_FLIGHT_DEFAULT: u32 = 1;
pub const MAX_IN_FLIGHT_MAX: u32 = 1024;
pub const QUEUE_DEFAULT: u32 = 256;
pub const QUEUE_LIMIT: u32 = 16 * 1024;
/// A call with more time than its server's definition gives has at least this long once somebody else waits.
pub const CONTENDED_CALL_GRACE: Duration = Duration::from_secs(1);
pub const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
pub const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
pub const STARTUP_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Of what an install said before it failed: so many lines, and so many characters, are in `last_error`.
pub const INSTALL_ERROR_LINES: usize = 3;
pub const INSTALL_ERROR_MAX: usize = 1024;
/// For one attempt to fetch the packages of a server.
pub const INSTALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(600);
/// From its start until it is ready, of a program that fetches what it runs. Measured: 45 to 80 s for one of npm with hundreds of files, in
/// gVisor with half a core.
pub const FETCH_STARTUP_TIMEOUT_DEFAULT: Duration = Duration::from_secs(300);
/// For the daemon's own `tools/list` after the handshake.
pub const TOOL_LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// For the answer of a server that is asked whether it knows the version without sessions.
pub const DISCOVER_TIMEOUT: Duration = Duration::from_secs(15);
/// Pages of one list.
pub const LIST_PAGES_MAX: usize = 64;
/// A tool list (or one of prompts or resources) that is larger is not cached.
pub const TOOL_LIST_MAX: usize = 4 * MIB;
/// Items of one list; one that has more is not cached either.
pub const LIST_ITEMS_MAX: usize = 16 * KIB;
/// A server that says again and again that a list has changed is asked for it no sooner than this after the last time, and
/// one millisecond later for each KiB of it. Clients hear of a list no more often.
pub const LIST_PAUSE: Duration = Duration::from_millis(500);
/// Where all servers are offered at once a list that is longer comes in pages. Long enough for all that a client can make use
/// of: many do not ask for a second page.
pub const LIST_PAGE_MAX: usize = 16 * MIB;
/// `instructions` and the rest of an `initialize` result that is larger is not kept.
pub const SERVER_INFO_MAX: usize = 64 * KIB;

// --- what a server's words cost -----------------------------------------------------------------------------------

/// The work that one server may cause by each of its outputs, beyond the answers that clients wait for. A unit is about a
/// third of a microsecond of the loop, so that this is two hundredths of a core; and a turn's worth is what another
/// server's caller may have to wait for.
pub const SERVER_WORK: Rate = Rate { per_ms: 64, most: 16 * 1024, at_once: 256 };
/// With every call a client pays for that much of what its server says besides the answer: a few notifications.
pub const WORK_PER_CALL: u32 = 64;
/// A turn of the loop that brings no answer: a wait, a read, a look at what is due.
pub const WORK_PER_READ: usize = 32;
pub const WORK_PER_LINE: usize = 1;
/// Bytes that cost as much as a short line.
pub const BYTES_PER_WORK: usize = 512;
/// An event or an answer to one client; an entry of the server's log; a message to its stdin.
pub const WORK_PER_EVENT: usize = 16;
pub const WORK_PER_LOG_ENTRY: usize = 8;
pub const WORK_PER_WRITE: usize = 8;
/// Sessions and streams that are looked at for a unit.
pub const LOOKS_PER_WORK: usize = 64;
/// Bytes of stderr that are cut into lines before their cost is looked at.
pub const STDERR_AT_ONCE: usize = 4 * KIB;
/// What a dead server said last is read in any case, so much of it in a turn.
pub const LAST_WORK_AT_ONCE: usize = 1024;
/// Bytes of the daemon's own replies that a server may leave unread; with more it is not listened to until it has read them.
pub const STDIN_OWED_MAX: usize = 64 * KIB;

// --- MCP over HTTP ------------------------------------------------------------------------------------------------

/// Sessions of all servers; beyond that the one that has been idle longest makes room.
pub const SESSIONS_MAX: usize = 4096;
/// A session without a request and without an open stream.
pub const SESSION_IDLE: Duration = Duration::from_secs(30 * 60);
/// Messages of one batch (2025-03-26 only).
pub const BATCH_MAX: usize = 64;
/// Requests of one session that wait or are in flight.
pub const SESSION_CALLS_MAX: usize = 256;
pub const SUBSCRIPTIONS_MAX: usize = 64;
/// The URIs of all subscriptions together.
pub const SUBSCRIBED_BYTES_MAX: usize = 32 * MIB;
pub const SUBSCRIBED_BYTES_PER_OWNER: usize = SUBSCRIBED_BYTES_MAX / 4;
/// A resource's URI, and any other word of the protocol that is kept.
pub const URI_MAX: usize = 8 * KIB;
/// Events kept for `Last-Event-ID`: per session, the newest whatever its size.
pub const EVENT_LOG_BYTES: usize = 256 * KIB;
pub const EVENT_LOG_COUNT: usize = 1024;
/// An answer that takes longer than this becomes a stream, so that it can be kept open and resumed.
pub const STREAM_AFTER: Duration = Duration::from_millis(300);
/// Between two signs of life on a quiet stream.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// When a client that lost its stream should come back.
pub const STREAM_RETRY: Duration = Duration::from_millis(1000);
/// A person may have to answer what a server asks in mid-call.
pub const QUESTION_TIMEOUT: Duration = Duration::from_secs(600);
/// As above for a client without a session, which may never come back, while others wait for the place of its call.
pub const CONTENDED_QUESTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Answers to calls whose client was asked for input and has not come back for them yet; the oldest make room.
pub const KEPT_ANSWERS_MAX: usize = 1024;
pub const KEPT_ANSWERS_BYTES_MAX: usize = 64 * MIB;
/// Instances that belong to one session each, of all servers; beyond that the idlest such session makes room.
pub const PRIVATE_INSTANCES_MAX: usize = 128;
/// How often one request may come back for more input.
pub const INPUT_ROUNDS_MAX: u32 = 16;
/// Calls of one instance that ended without its answer and are remembered, so that what it says for them reaches nobody else;
/// with more of them nothing that names no call of its own reaches anybody, until the next instance.
pub const UNANSWERED_MAX: usize = 64;
/// Questions of one instance that wait for an answer.
pub const QUESTIONS_MAX: usize = 64;
/// One that is kept until its client comes for it.
pub const QUESTION_BYTES_MAX: usize = MIB;
/// Open `subscriptions/listen` streams.
pub const LISTENERS_MAX: usize = 4096;
pub const LISTENERS_PER_OWNER: usize = LISTENERS_MAX / 4;

// --- logs -----------------------------------------------------------------------------------------------------

/// One stderr line; the rest of a longer one becomes the next line.
pub const LOG_LINE_MAX: usize = 4 * KIB;
/// Lines and bytes kept per server.
pub const LOG_LINES_KEPT: usize = 1000;
pub const LOG_BYTES_KEPT: usize = 256 * KIB;
/// Lines of stderr and noise of one server that are kept: a thousand a second, and first a file full of them. Others are
/// counted, and told of so often.
pub const SERVER_LOG: Rate = Rate { per_ms: 1, most: 8 * 1024, at_once: 1 };
pub const LOG_UNKEPT_EVERY: Duration = Duration::from_secs(1);
/// Lines of stderr shown in `last_crash`.
pub const CRASH_TAIL_LINES: usize = 20;
/// Entries shown when a client does not say how many.
pub const LOG_TAIL_DEFAULT: usize = 100;
/// Clients that may follow one server's log at once.
pub const FOLLOWERS_MAX: usize = 64;
/// Clients that may follow the events of all servers at once.
pub const WATCHERS_MAX: usize = 256;
/// A server's log on disk: the file that is written, and the one before it.
pub const LOG_FILE_MAX: u64 = MIB as u64;
/// Entries between the loop and the thread that writes them; more are dropped and counted.
pub const LOG_CHANNEL: usize = 8 * KIB;
/// Lines of the daemon's own log that wait to be written; more are dropped and counted.
pub const OWN_LOG_CHANNEL: usize = 4 * KIB;
/// At the daemon's end, for what is still in the channel.
pub const LOG_CLOSE_WAIT: Duration = Duration::from_secs(2);
/// Files that thread keeps open at once.
pub const LOG_FILES_OPEN: usize = 64;
/// What is read back of a server's log at boot, from its end.
pub const LOG_RESTORED_BYTES: u64 = 64 * KIB as u64;

// --- lifecycle --------------------------------------------------------------------------------------------------

/// Starts under way at once. A start is mostly the runtime's CPU time, so more than a few per core only makes all of
/// them late.
pub const STARTS_AT_ONCE: usize = 16;
/// As above when servers that ran have died: each only takes back the place it had, and its callers wait.
pub const RESTARTS_AT_ONCE: usize = 64;
/// Launchers that do their work at once; all others are started already and wait for the word, but no longer than this:
/// a few that hang must not keep everybody else down.
pub const LAUNCHES_PER_CORE: usize = 2;
pub const LAUNCH_TURN_WAIT: Duration = Duration::from_secs(1);
/// At the very end, for clients to take the last bytes of their answers.
pub const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Between SIGTERM and the end of stdin.
pub const STDIN_GRACE: Duration = Duration::from_secs(1);
/// Between SIGTERM and SIGKILL: one server stopped or restarted, and the whole daemon.
pub const STOP_GRACE: Duration = Duration::from_secs(10);
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(30);
/// At shutdown calls in flight may finish within this part of the grace, before SIGTERM.
pub const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// A launcher that takes longer is killed, and the launch has failed.
pub const LAUNCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Between the end of a server's stdout and its SIGKILL, if it does not exit by itself.
pub const STDOUT_CLOSED_GRACE: Duration = Duration::from_secs(2);
/// Between SIGTERM and SIGKILL for a server that is restarted because it is unresponsive: it hardly listens.
pub const UNRESPONSIVE_GRACE: Duration = Duration::from_secs(2);
/// While a server is unresponsive it is asked again after twice the time, so often.
pub const HEARTBEAT_DOUBLINGS: u32 = 6;
/// What a launcher may say to the daemon.
pub const REPORT_MAX: usize = 64 * KIB;
/// What is kept of a runtime's own words about a launch that failed.
pub const LAUNCH_MESSAGE_MAX: usize = 2 * KIB;
/// Clean-ups under way at once (a crash of everything must not become a fork bomb), and while launchers wait for their
/// turn.
pub const CHORES_AT_ONCE: usize = 16;
pub const CHORES_DURING_LAUNCHES: usize = 1;
/// How many children may be killed over one clean-up, sweep or probe, before it is given up; and how long the next clean-up
/// waits: what kills (the host's OOM killer, most likely) may not have its fill yet. A boot does not wait.
pub const CHORE_TRIES: u32 = 5;
pub const CHORE_PAUSE: Duration = Duration::from_millis(500);
/// When a clean-up that ran out of time is tried again: what it waits for is a process that the kernel does not let go.
pub const CHORE_LATER: Duration = Duration::from_secs(60);
/// For the end of all processes of a discarded instance, after SIGKILL.
pub const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);
/// For the lock of the data directory, if somebody still has it.
pub const LOCK_WAIT: Duration = Duration::from_secs(1);
/// For the trivial container that shows whether a provider works.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// An idle sandbox is looked at so often, each time for so long, and polls if it has always taken more than this part of it.
pub const IDLE_LOOKS: u32 = 4;
pub const IDLE_LOOK: Duration = Duration::from_millis(60);
pub const IDLE_POLLS_PART: u64 = 100;
/// What is kept of its reason why not.
pub const PROBE_REASON_MAX: u64 = 2 * KIB as u64;

/// Users of one container: every number that passwd files are made with.
pub const CONTAINER_USERS: u32 = 1 << 20;
/// Users and groups of servers that see the host's files: lower ones are the host's root and its services, who can read
/// there what others cannot.
pub const HOST_VIEW_IDS: RangeInclusive<u32> = 1000..=CONTAINER_USERS - 1;
/// So many containers have users that no other one has.
pub const CONTAINER_USER_RANGES: u32 = 1 << 10;

/// Loop devices tried for one instance: each one lost went to another launcher, which then needs no more.
pub const LOOP_ATTEMPTS_MAX: usize = 4 * STARTS_AT_ONCE;

// --- numbers ------------------------------------------------------------------------------------------------------

/// Samples of one server: ten minutes of them, or longer ones where there are very many instances.
pub const SAMPLES_KEPT: usize = 120;
/// Looks at everything that is counted, on their way to text at once; a further one is told to come back.
pub const SCRAPES_AT_ONCE: usize = 4;
/// An instance's use is looked at this often, its disk more rarely; with very many instances each later.
pub const METER_EVERY: Duration = Duration::from_secs(5);
pub const METER_DISK_EVERY: Duration = Duration::from_secs(30);
/// The same for one that has used no millisecond of CPU since.
pub const METER_IDLE_EVERY: Duration = Duration::from_secs(300);
/// Instances looked at per second, and entries of a directory tree that are counted.
pub const METER_LOOKS_MAX: usize = 64;
/// Kept back on the disk of the data directory, for the database and the daemon itself: no server is started, and none
/// goes on growing, where less is free. More than what one server can have in memory on its way to the disk; on a small
/// disk a part of it, or nothing could be hosted there.
pub const DISK_RESERVE_DEFAULT: u64 = 1024 * MIB as u64;
pub const DISK_RESERVE_DISK_PART: u64 = 8;
/// Below so many reserves the disk is looked at more often: what a server writes in between must fit into one.
pub const DISK_LOW_FACTOR: u64 = 4;
pub const DISK_LOOK_EVERY: Duration = Duration::from_secs(1);
pub const DISK_LOOK_LOW_EVERY: Duration = Duration::from_millis(100);
/// Entries of a volume that `stdiod volume` counts, and levels of a tree that a walk has open at once.
pub const VOLUME_ENTRIES_MAX: usize = 1_000_000;
pub const WALK_OPEN_MAX: usize = 256;
/// A plain directory that is larger is not moved into its server's image: a start has to end.
pub const VOLUME_MOVE_BYTES_MAX: u64 = 4096 * MIB as u64;
pub const VOLUME_MOVE_ENTRIES_MAX: usize = 200_000;
/// For the last instance that had the volumes to be gone from the kernel's books.
pub const VOLUME_MOUNT_TRIES: u32 = 100;
pub const VOLUME_MOUNT_PAUSE: Duration = Duration::from_millis(20);
/// Processes of a sandbox in which its volumes are looked for.
pub const METER_PIDS_MAX: usize = 64;
pub const METER_ENTRIES_MAX: usize = 20_000;
/// The longest file of a cgroup's accounts, several times over.
pub const CGROUP_FILE_MAX: u64 = 16 * KIB as u64;
/// How long the answer about one server waits for a look at what it uses, before an older look must do.
pub const USAGE_WAIT: Duration = Duration::from_millis(100);
/// Questions to the disk that are on their way to the thread that looks; more of them wait in the loop.
pub const LOOK_UPS_AT_ONCE: usize = 256;
/// How long a client waits for a disk to say whether an image or a network is there.
pub const LOOK_UP_WAIT: Duration = Duration::from_secs(10);
/// For how long, and of how many images at most, it is remembered that a registration has seen them.
pub const LOOK_UP_KEPT: Duration = Duration::from_secs(10);
pub const LOOK_UP_KEPT_MAX: usize = 1024;
/// Messages between the loop and the thread that looks at what instances use.
pub const METER_CHANNEL: usize = 8 * KIB;
/// How often systemd is told how the daemon is.
pub const NOTIFY_EVERY: Duration = Duration::from_secs(10);
/// The loop never sleeps longer; the kernel counts in 31 bits of milliseconds.
pub const SLEEP_MAX: Duration = Duration::from_secs(3600);

// --- definitions ------------------------------------------------------------------------------------------------

pub const SERVERS_MAX: usize = 4096;
pub const NAME_MAX: usize = 63;
pub const CMD_ARGS_MAX: usize = 256;
pub const ENV_MAX: usize = 256;
pub const VOLUMES_MAX: usize = 32;
/// One name in a path, as file systems have it.
pub const FILE_NAME_MAX: usize = 255;
pub const PORTS_MAX: usize = 32;
pub const EGRESS_MAX: usize = 64;
pub const PATH_MAX: usize = 1024;
pub const FILES_MAX: usize = 64;
/// All `files` of a definition together.
pub const FILES_BYTES_MAX: usize = MIB;
/// Files that a bundle's archive may list: more than can be taken, so that pictures and directories are no obstacle.
pub const BUNDLE_ENTRIES_MAX: usize = 4096;
/// A document that `stdiod import` reads; what it makes of it is sent to the daemon, and is a body like others.
pub const IMPORT_MAX: usize = 256 * MIB;
/// Documents that the daemon reads at once, each as long as a body may be.
pub const IMPORTS_AT_ONCE: usize = 4;
/// Values in a body that is read as a whole, those within others counted; a definition with all it may have is a third.
pub const BODY_VALUES_MAX: usize = 4096;
/// Any other string of a definition.
pub const STRING_MAX: usize = 32 * KIB;
pub const IMAGE_REFERENCE_MAX: usize = 255;
/// Any time of a definition, in milliseconds.
pub const WAIT_MS: RangeInclusive<u64> = 1..=REQUEST_TIMEOUT_MAX.as_millis() as u64;
/// More often, and the heartbeats of a few hundred servers would be the main work of the loop.
pub const HEARTBEAT_MS: RangeInclusive<u64> = 100..=*WAIT_MS.end();
/// How long nobody uses a server before it is idle, and what holds where nothing is said of it.
pub const IDLE_AFTER_MS: RangeInclusive<u64> = 100..=30 * 24 * 3600 * 1000;
pub const IDLE_AFTER_DEFAULT_MS: u64 = 60_000;
/// The same where nobody has asked that anything becomes of it.
pub const IDLE_AFTER_UNASKED_MS: u64 = 300_000;
/// A delay of a crash loop's schedule, how many there may be, and the least for the last one, which repeats.
pub const BACKOFF_MS: RangeInclusive<u64> = 0..=*WAIT_MS.end();
pub const BACKOFF_STEPS_MAX: usize = 32;
pub const BACKOFF_LAST_MS_MIN: u64 = 10;
pub const CRASH_THRESHOLD_MAX: u32 = 1000;
pub const CRASH_ATTEMPTS_MAX: u32 = 1_000_000;
pub const CPU_MILLI: RangeInclusive<u32> = 10..=1024 * 1000;
pub const MEMORY_BYTES: RangeInclusive<u64> = 16 * MIB as u64..=64 * 1024 * 1024 * MIB as u64;
/// The least that a file system can be made in.
pub const DISK_BYTES: RangeInclusive<u64> = 4 * MIB as u64..=64 * 1024 * 1024 * MIB as u64;
/// The kernel's own ceiling for pids.
pub const PIDS: RangeInclusive<u32> = 1..=1 << 22;

// --- networks -----------------------------------------------------------------------------------------------------

/// A CNI configuration, and what a plugin may say.
pub const CNI_CONF_MAX: u64 = MIB as u64;
pub const CNI_ANSWER_MAX: u64 = MIB as u64;
/// Addresses of one sandbox, and name servers that it may ask. A program reads three of a `resolv.conf`.
pub const CABLE_ADDRESSES_MAX: usize = 16;
pub const RESOLVERS_MAX: usize = 8;
/// Ranges in the `allow_private` of a network.
pub const ALLOW_PRIVATE_MAX: usize = 256;
/// Addresses that one name of an egress list may stand for.
pub const EGRESS_ADDRESSES_MAX: usize = 32;
/// Pairs of connections (published ports, and requests that are passed on), over all servers; what is read of one side
/// before it is written to the other, and what each side may hold without being counted, so that nobody stands still.
pub const PORT_CONNECTIONS_MAX: usize = 4096;
pub const PORT_BUFFER: usize = 64 * KIB;
/// What all pairs together move in one turn of the loop; those whose turn has not come are the first of the next.
pub const PAIRS_BYTES_AT_ONCE: usize = 8 * BYTES_AT_ONCE;
pub const PORT_BUFFER_FREE: usize = 4 * KIB;
/// Connections taken from one published port before the next source has its turn.
pub const PORT_ACCEPTS_AT_ONCE: usize = 32;
/// Between two words to the log about connections that one published port refused.
pub const PORT_REFUSED_LOG_EVERY: Duration = Duration::from_secs(10);
/// Interim (1xx) answers before the real one: so many, and so many bytes of them together. Servers that send any send one
/// or two.
pub const INTERIM_ANSWERS_MAX: usize = 16;
pub const INTERIM_BYTES_MAX: usize = HEAD_MAX;
/// To connect to a server's port, which is on this host: a server that takes longer does not accept at all. From the request
/// to the head of its answer it has its own `timeouts.request_ms`, as for a call on stdio; from the head to the last byte
/// `ANSWER_TIMEOUT`; and a side that takes nothing of what waits for it has `WRITE_TIMEOUT`.
pub const RELAY_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest silence in the middle of an answer.
pub const RELAY_SILENCE_MAX: Duration = Duration::from_secs(60);
/// The same in a stream of events, and the whole life of one. Many servers send no sign of life on a quiet stream, so it is
/// as long as a session may be idle; afterwards the client comes back and goes on.
pub const RELAY_EVENTS_SILENCE_MAX: Duration = Duration::from_secs(30 * 60);
pub const RELAY_EVENTS_MAX: Duration = Duration::from_secs(24 * 3600);
/// The longest silence on a connection to a published port; what it carries is nobody's business here, so it has no other
/// clock. When one side has ended, the other has less time to say its last words.
pub const PORT_SILENCE_MAX: Duration = Duration::from_secs(3600);
pub const PORT_HALF_CLOSED_MAX: Duration = Duration::from_secs(30);
/// Between two looks whether a server's port answers, and for one look.
pub const KNOCK_PAUSE: Duration = Duration::from_millis(100);
pub const KNOCK_WAIT: Duration = Duration::from_secs(1);

// --- images -------------------------------------------------------------------------------------------------------

pub const IMAGE_BYTES_MAX: u64 = 64 * 1024 * MIB as u64;
pub const IMAGE_ENTRIES_MAX: u64 = 2_000_000;
pub const IMAGE_LAYERS_MAX: usize = 128;
pub const MANIFEST_MAX: u64 = 4 * MIB as u64;
/// A layer may unpack to `IMAGE_RATIO_FREE` bytes in any case, and beyond that to so many times its packed size.
pub const IMAGE_RATIO_MAX: u64 = 200;
pub const IMAGE_RATIO_FREE: u64 = 512 * MIB as u64;
/// An index of indexes of indexes is nobody's image.
pub const INDEX_DEPTH_MAX: u32 = 4;
/// A path in a layer, and the parts it has.
pub const IMAGE_PATH_MAX: usize = 4 * KIB;
/// A tar header with its extensions (long names, pax records), which the tar reader holds in memory.
pub const TAR_HEADER_MAX: u64 = MIB as u64;
/// Links in an archive, one to the next.
pub const ARCHIVE_LINKS_MAX: u32 = 4;
/// One small file of the host that is copied into its view, and an image's `/etc/passwd`.
pub const HOST_FILE_MAX: u64 = MIB as u64;
pub const PASSWD_MAX: u64 = MIB as u64;
pub const IMAGE_DEPTH_MAX: usize = 256;

// --- registries ---------------------------------------------------------------------------------------------------

/// To reach a registry, and the longest silence of one that was reached.
pub const REGISTRY_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
pub const REGISTRY_STALL_TIMEOUT: Duration = Duration::from_secs(30);
pub const HTTP_REDIRECTS_MAX: usize = 5;
/// What is read of a token service's answer or of a registry's complaint, and what is shown of the latter.
pub const TOKEN_ANSWER_MAX: u64 = 64 * KIB as u64;
pub const REGISTRY_WORDS_MAX: usize = 300;
pub const AUTH_FILE_MAX: u64 = MIB as u64;
/// A whole pull, however it trickles; what has come is kept.
pub const PULL_TIME_MAX: Duration = Duration::from_secs(2 * 3600);
/// Connections in a row that bring nothing of a blob.
pub const FETCH_ATTEMPTS: u32 = 4;
/// Rounds of a pull whose layers are removed under it.
pub const PULL_ATTEMPTS: u32 = 3;
/// Layers of one image that come at once, and pulls of the daemon.
pub const DOWNLOADS_AT_ONCE: usize = 3;
pub const PULLS_AT_ONCE: usize = 3;
/// Between two words about the same layer.
pub const PULL_PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// One word of a puller.
pub const PULL_LINE_MAX: usize = 64 * KIB;
/// Parts of a blob that nobody comes back for.
pub const PARTS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Signatures of one image that are looked at, and one document that was signed.
pub const SIGNATURES_MAX: usize = 32;
pub const SIGNATURE_BYTES_MAX: u64 = 16 * KIB as u64;
/// Of `allowed_images`, and of `image_keys`. A pull is told all of them in one argument.
pub const ALLOWED_IMAGES_MAX: usize = 256;
pub const IMAGE_KEYS_MAX: usize = 16;
/// How long a client that waits for a start waits for its image; afterwards it is told how far the pull is.
pub const PULL_WAIT: Duration = Duration::from_secs(600);

// --- shares -------------------------------------------------------------------------------------------------------

// What there is of each thing that peers can make the daemon hold, and what one owner may have of it (`shares.rs`).
/// Bytes in buffers beyond what each holder may keep anyway. The core and the shell have so much each; with both used up
/// the daemon still stays below `MEMORY_BUDGET`.
pub const SHARE_MEMORY: Caps = Caps { whole: 176 * MIB, principal: 64 * MIB, server: 40 * MIB, address: 8 * MIB };
/// What waits for servers' stdin, and the lines that they are in the middle of. Not of the same whole as what clients hold,
/// so that neither takes the other's room; a little of both is not counted, for each instance.
pub const SHARE_UNREAD: Caps = Caps { whole: 80 * MIB, principal: 0, server: STDIN_BACKLOG_MAX, address: 0 };
pub const SHARE_LINES: Caps = Caps { whole: 80 * MIB, principal: 0, server: 40 * MIB, address: 0 };
pub const PIPE_BUFFER_FREE: usize = 8 * KIB;
/// Where there is no room for what waits for servers, the one for which most waits is ended, if it has been behind for so long.
pub const STDIN_BEHIND_MAX: Duration = WRITE_TIMEOUT;
/// The memory of the whole daemon (RSS), whatever its peers do; a share for each ledger, and the rest for what is not
/// counted: the tables, the program, what every connection keeps. `memory_budget` may say more or less: then the shares of
/// memory follow it, but what one server may have stays, so that the largest answer still passes.
pub const MEMORY_BUDGET: usize = 768 * MIB;
pub const MEMORY_BUDGETS: RangeInclusive<usize> = 512 * MIB..=64 * 1024 * MIB;
pub const SHARE_CONNECTIONS: Caps = Caps { whole: CONNECTIONS_MAX, principal: 12 * KIB, server: 0, address: 256 };
/// One server has more room than one principal or one address can take.
pub const SHARE_RELAYS: Caps = Caps { whole: PORT_CONNECTIONS_MAX, principal: 512, server: 1024, address: 256 };
pub const SHARE_SESSIONS: Caps = Caps { whole: SESSIONS_MAX, principal: 1024, server: 0, address: 0 };
pub const SHARE_STREAMS: Caps = Caps { whole: 8 * KIB, principal: 2 * KIB, server: 0, address: 0 };
pub const SHARE_PRIVATE_INSTANCES: Caps = Caps { whole: PRIVATE_INSTANCES_MAX, principal: 48, server: 64, address: 0 };
/// As a server told them and as they are told on, and what slow clients still read of older ones.
pub const SHARE_LISTS: Caps = Caps { whole: 160 * MIB, principal: 0, server: 20 * MIB, address: 0 };
pub const SHARE_WATCHERS: Caps = Caps { whole: WATCHERS_MAX, principal: 32, server: 0, address: 0 };

// --- the store ----------------------------------------------------------------------------------------------------

/// Operations between the loop and the store thread.
pub const STORE_CHANNEL: usize = 1024;
/// A write that a client waits for; afterwards 503.
pub const STORE_WAIT: Duration = Duration::from_secs(5);
/// Operations taken from the channel at once; status writes among them share a transaction.
pub const STORE_BATCH: usize = 64;
/// One statement, as the database counts it.
pub const STORE_STATEMENT_WAIT: Duration = Duration::from_secs(4);
/// One migration, and the wait for another daemon's.
pub const STORE_MIGRATION_WAIT: Duration = Duration::from_secs(60);
/// To reach the database at all, and for its first byte.
pub const STORE_CONNECT_WAIT: Duration = Duration::from_secs(2);
/// A connection idle for this long is asked whether it lives, and has this long to say so.
pub const STORE_PROBE_IDLE: Duration = Duration::from_secs(1);
pub const STORE_PROBE_WAIT: Duration = Duration::from_secs(2);
/// What the driver needs for one connection, and a few to spare.
pub const STORE_DRIVER_DESCRIPTORS: usize = 8;
/// Between two attempts to connect: the first few, and the longest.
pub const STORE_RETRY_MIN: Duration = Duration::from_millis(50);
pub const STORE_RETRY_MAX: Duration = Duration::from_secs(1);
pub const STORE_RETRY_YOUNG: u32 = 20;
/// A database that another daemon works on: how often it is looked whether that is over, and for how long by a daemon that
/// does not stand by; the session of one that was killed may live a moment longer.
pub const STORE_LOCK_EVERY: Duration = Duration::from_millis(250);
pub const STORE_LOCK_WAIT: Duration = Duration::from_secs(5);
/// For so long a standby leaves a database alone whose daemon is gone: one that has only lost its connection is back by then
/// (`STORE_RETRY_MAX`).
pub const STANDBY_PATIENCE: Duration = Duration::from_secs(4);
/// When the server gives up a session whose host says nothing: so many seconds of silence, then so many questions, a second
/// apart.
pub const STORE_HOST_SILENT_SECS: u64 = 2;
pub const STORE_HOST_QUESTIONS: u64 = 3;
/// At the daemon's end, for what is still in the channel.
pub const STORE_CLOSE_WAIT: Duration = Duration::from_secs(5);

/// Decisions (stop, delete, revoke) that the database does not have are kept on disk: for so long somebody waits for that,
/// and so long after a failure, of the disk or of the database, it is tried again.
pub const DECISION_DISK_WAIT: Duration = Duration::from_secs(2);
pub const DECISION_RETRY: Duration = Duration::from_secs(10);
/// So many fit; the file has two places for them, made at boot, so that a full disk has room.
pub const DECISIONS_KEPT_MAX: usize = 4096;
pub const DECISIONS_BYTES_MAX: usize = MIB;
/// Volumes of a deleted server that could not be removed.
pub const VOLUMES_RETRY: Duration = Duration::from_secs(30);
/// What is read of a row: its definition (with what JSON adds to a body), and the last crash and error.
pub const STORED_DEFINITION_MAX: usize = 2 * BODY_MAX;
/// What a server offers, as it is kept: its lists escaped once more.
pub const STORED_CATALOGUE_MAX: usize = 8 * TOOL_LIST_MAX;
pub const STORED_CRASH_MAX: usize = MIB;
pub const STORED_ERROR_MAX: usize = 8 * KIB;
/// A token's scopes, and its servers, as text.
pub const STORED_TOKEN_MAX: usize = 64 * KIB;
pub const SCOPES_MAX: usize = 64;

/// Between two starts of the private PostgreSQL when it dies: the first, and the longest.
pub const CLUSTER_RETRY_MIN: Duration = Duration::from_millis(100);
pub const CLUSTER_RETRY_MAX: Duration = Duration::from_secs(5);
/// Up for this long, its earlier deaths are forgotten.
pub const CLUSTER_STABLE: Duration = Duration::from_secs(10);
/// To stop: after SIGINT, after SIGQUIT, and (a leftover only) after SIGKILL.
pub const CLUSTER_STOP_FAST: Duration = Duration::from_secs(10);
pub const CLUSTER_STOP_QUIT: Duration = Duration::from_secs(5);
pub const CLUSTER_STOP_KILL: Duration = Duration::from_secs(2);
pub const TOKENS_MAX: usize = 4096;
/// Servers that one token may be limited to.
pub const TOKEN_SERVERS_MAX: usize = 256;

// --- external servers -----------------------------------------------------------------------------------------------

/// The head of an upstream's answer, and its first line.
pub const UPSTREAM_HEAD_MAX: usize = 64 * KIB;
pub const UPSTREAM_STATUS_LINE_MAX: usize = 4 * KIB;
/// One event of an upstream's stream: it holds one message, as a line of a hosted server does.
pub const UPSTREAM_EVENT_MAX: usize = LINE_MAX;
/// An event's id is sent back in a header; from a longer one nothing can be resumed.
pub const EVENT_ID_MAX: usize = KIB;
/// One message of an upstream over a WebSocket.
pub const UPSTREAM_MESSAGE_MAX: usize = LINE_MAX;
/// What may wait to be written to one upstream.
pub const UPSTREAM_BACKLOG_MAX: usize = STDIN_BACKLOG_MAX;
/// What TLS holds of that beside it.
pub const UPSTREAM_TLS_BUFFER: usize = 32 * KIB;
/// Connections to upstreams, those under way included.
pub const OUTGOING_MAX: usize = 4096;
/// What is read of one at once.
pub const OUTGOING_SCRATCH: usize = 64 * KIB;
/// From the name to the end of the TLS handshake, and for one of several addresses.
pub const OUTGOING_CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
pub const ADDRESS_TIMEOUT: Duration = Duration::from_secs(4);
/// Names that are looked up at once, each by a thread of its own, and those that wait for one. More threads than silent
/// name servers usually leave hanging.
pub const LOOKUPS_AT_ONCE: usize = 64;
pub const LOOKUPS_WAITING_MAX: usize = OUTGOING_MAX;
pub const LOOKUP_STACK: usize = 512 * KIB;
/// Connections of one link at once: one for each call that is being answered, and one to listen on.
pub const LINK_CONNECTIONS_MAX: usize = 32;
/// Those of them that are kept for the next call, and for how long: less than the five seconds after which common servers
/// close them, so that a call seldom goes to a connection that is being closed.
pub const LINK_IDLE_CONNECTIONS_MAX: usize = 4;
pub const LINK_IDLE_CONNECTION: Duration = Duration::from_secs(4);
/// For the answer to a notification, and to the end of a session.
pub const LINK_ANSWER_WAIT: Duration = Duration::from_secs(15);
pub const LINK_GOODBYE_WAIT: Duration = Duration::from_secs(2);
/// Redirects of one message, within the origin.
pub const LINK_REDIRECTS_MAX: u8 = 3;
/// Before a stream is resumed, where the server does not say; the longest wait it may ask for; and how often in a row without
/// an event in between.
pub const LINK_RESUME: Duration = Duration::from_secs(1);
pub const LINK_RESUME_MAX: Duration = Duration::from_secs(60);
pub const LINK_RESUMES_MAX: u32 = 5;
/// What is read of an answer that says no.
pub const LINK_REFUSAL_MAX: usize = 64 * KIB;
pub const LINK_SESSION_MAX: usize = KIB;
pub const LINK_RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
/// A stream whose call is answered is to end by itself in this time.
pub const LINK_STREAM_END: Duration = Duration::from_secs(1);
/// A token that a link shows: for its answer, the size of that and of the token, how long it is believed where nothing is
/// said, and at most. One that is refused although it is younger than the last of these is not fetched again.
pub const LINK_TOKEN_WAIT: Duration = Duration::from_secs(15);
pub const LINK_TOKEN_ANSWER_MAX: usize = 64 * KIB;
pub const LINK_TOKEN_MAX: usize = 8 * KIB;
pub const LINK_TOKEN_LIFE_ASSUMED: Duration = Duration::from_secs(300);
pub const LINK_TOKEN_LIFE_MAX: Duration = Duration::from_secs(24 * 3600);
pub const LINK_TOKEN_YOUNG: Duration = Duration::from_secs(10);
/// Tokens that are kept for the next connection, of all links.
pub const LINK_TOKENS_MAX: usize = 1024;
/// A file of authorities.
pub const TLS_CA_MAX: u64 = MIB as u64;
/// Before the attempts to bring a link up again; the last one again and again.
pub const LINK_SCHEDULE_MS: [u64; 7] = [0, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];
/// A link that was up for so long has its schedule from the start. Many proxies close what is silent for half a minute.
pub const LINK_STABLE: Duration = Duration::from_secs(10);

/// What is told of a tool's error: its own words, its code, and the raw result where there are no words, in characters.
pub const TOOL_MESSAGE_MAX: usize = 16 * KIB;
pub const TOOL_CODE_MAX: usize = 200;
pub const TOOL_ERROR_RAW_MAX: usize = 2000;
/// A result as YAML: levels that are indented, the longest key (YAML allows 1024), and how much longer than the JSON it may be.
pub const YAML_DEPTH_MAX: usize = 20;
pub const YAML_KEY_MAX: usize = 1000;
pub const YAML_GROWTH_MAX: usize = 4;
pub const YAML_GROWTH_FREE: usize = 64 * KIB;

// --- projects -----------------------------------------------------------------------------------------------------------

/// External servers of all projects, and of one.
pub const EXTERNALS_MAX: usize = 4096;
pub const EXTERNALS_PER_PROJECT: usize = 256;
pub const EXTERNAL_IN_FLIGHT_DEFAULT: u32 = 16;
pub const DESCRIPTION_MAX: usize = 4 * KIB;
pub const URL_MAX: usize = 4 * KIB;
pub const EXTERNAL_HEADERS_MAX: usize = 32;
pub const HEADER_VALUE_MAX: usize = 8 * KIB;
pub const BREAKER_ATTEMPTS: RangeInclusive<u32> = 1..=1000;
/// The configuration of one external server, as JSON.
pub const STORED_EXTERNAL_MAX: usize = BODY_MAX;
/// Secrets of all projects, and of one; a name, and a value.
pub const SECRETS_MAX: usize = 16 * 1024;
pub const SECRETS_PER_PROJECT: usize = 1024;
pub const SECRET_NAME_MAX: usize = 128;
pub const SECRET_VALUE_MAX: usize = 64 * KIB;
/// A sealed value, as text.
pub const STORED_SECRET_MAX: usize = 2 * SECRET_VALUE_MAX;
/// One text with its secrets filled in.
pub const FILLED_MAX: usize = 128 * KIB;
/// A tool's name, and the id of a run.
pub const TOOL_NAME_MAX: usize = KIB;
pub const RUN_ID_MAX: usize = 256;
/// Arguments that are recorded; longer ones are left out, and their length is kept.
pub const RECORD_ARGUMENTS_MAX: usize = 64 * KIB;
/// Records that wait for the store, and what they may hold; those beyond are dropped and counted. Ten seconds of as many calls
/// as there can be: a database that is slow for a moment costs none.
pub const RECORDS_WAITING_MAX: usize = 64 * 1024;
pub const RECORDS_WAITING_BYTES: usize = 32 * MIB;
/// Records of one write.
pub const RECORDS_BATCH: usize = 256;
pub const RECORDS_BATCH_BYTES: usize = 4 * MIB;
/// How long the first of a batch waits for more to come.
pub const RECORDS_PAUSE: Duration = Duration::from_millis(250);
pub const RECORDS_KEEP_DAYS_DEFAULT: u32 = 30;
pub const RECORDS_KEEP_DAYS_MAX: u32 = 36_500;
/// Between two looks for records that are too old.
pub const RECORDS_CLEAN_PAUSE: Duration = Duration::from_secs(60 * 60);
/// Records of one answer, and the arguments that are shown in it.
pub const CALLS_LIMIT_DEFAULT: usize = 100;
pub const CALLS_LIMIT_MAX: usize = 1000;
pub const CALLS_SHOWN_ARGUMENTS_MAX: usize = 8 * MIB;

// --- sealing ----------------------------------------------------------------------------------------------------------

/// One value that is sealed: an environment, at most.
pub const SEALED_MAX: usize = BODY_MAX;
pub const KEY_FILE_MAX: u64 = KIB as u64;

// --- a daemon that hands itself over ----------------------------------------------------------------------------------

/// All that the core knows, as bytes: what all may hold together, and what is known of servers beside it.
pub const FROZEN_BYTES_MAX: usize = 1024 * MIB;
/// For the new binary to read the state, in a child.
pub const UPGRADE_CHECK_WAIT: Duration = Duration::from_secs(20);
/// What that child may say.
pub const UPGRADE_CHECK_SAID_MAX: usize = 4 * KIB;
/// For what cannot be handed over to come to rest: TLS connections, questions to threads, calls to external servers.
pub const UPGRADE_QUIET_WAIT: Duration = Duration::from_secs(15);
/// The path of a binary, as a client names it.
pub const UPGRADE_PATH_MAX: usize = 4 * KIB;
/// For the last lines of logs to be in their files, with nobody served meanwhile.
pub const HANDOVER_DISK_WAIT: Duration = Duration::from_millis(100);

// --- the client subcommands -----------------------------------------------------------------------------------------

pub const CLIENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For an answer that the daemon gives at once.
pub const CLIENT_QUICK_WAIT: Duration = Duration::from_secs(30);
/// For an answer that waits for a server to start or stop.
pub const CLIENT_LIFECYCLE_WAIT: Duration = Duration::from_secs(900);
/// How much longer than the daemon the client waits for the end of a call.
pub const CLIENT_CALL_MARGIN: Duration = Duration::from_secs(15);
/// An answer's head, and one that is read whole.
pub const CLIENT_HEAD_MAX: usize = 64 * KIB;
pub const CLIENT_ANSWER_MAX: usize = 64 * MIB;
/// What is read of an answer that should be a proof, from somebody who may be anybody.
pub const CLIENT_PROOF_MAX: usize = KIB;
/// Interim answers before the one that counts.
pub const CLIENT_INTERIM_MAX: usize = 16;
/// The longest silence on a connection of `connect`: a daemon that is at work on an answer says so every `KEEP_ALIVE`.
pub const CLIENT_SILENCE_MAX: Duration = Duration::from_secs(120);
/// How often an answer whose stream broke is looked for again.
pub const CLIENT_RESUMES_MAX: usize = 5;
/// For the end of a session, when the program wants to end too.
pub const CLIENT_GOODBYE_WAIT: Duration = Duration::from_secs(2);
/// Between two pictures of `top`.
pub const CLIENT_TOP_EVERY: Duration = Duration::from_secs(2);
/// Levels of JSON that are shown each further to the right.
pub const CLIENT_INDENT_MAX: usize = 20;
/// One attempt of `doctor`, such as a sandbox that runs `true`.
pub const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);
