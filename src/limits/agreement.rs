//! What the bounds owe each other: a bound that another one needs, and the sums that must fit. Owns no number; whoever changes
//! one is told here by the compiler what else has to change.

use super::*;

const _: () = assert!(LINE_HEAD_KEPT + LINE_TAIL_KEPT < LINE_MAX);
const _: () = assert!(REQUEST_LINE_MAX < HEAD_MAX);
const _: () = assert!(HEAD_MAX <= u16::MAX as usize, "spans within a head are kept as u16");
const _: () = assert!(BODY_MAX + HEAD_MAX < STDIN_BACKLOG_MAX, "one call must always fit the pipe's backlog");
const _: () = assert!(FILES_BYTES_MAX < BODY_MAX, "a definition must fit a request body");
const _: () = assert!(LINE_MAX >= TOOL_LIST_MAX);
const _: () = assert!(8 * LAUNCH_MESSAGE_MAX < REPORT_MAX, "the message fits even if every byte is escaped");
const _: () = assert!(SHARE_MEMORY.principal >= 4 * BODY_MAX, "a few large requests can always come in at once");
const _: () = assert!(SHARE_MEMORY.principal >= 2 * LINE_MAX && SHARE_MEMORY.whole >= 2 * SHARE_MEMORY.principal);
const _: () = assert!(WRITE_TIMEOUT.as_secs() < ANSWER_TIMEOUT.as_secs());
const _: () = assert!(LINGER_SILENCE_MAX.as_secs() < LINGER_TIME_MAX.as_secs());
const _: () = assert!(2 * LAUNCH_TURN_WAIT.as_secs() < LAUNCH_TIMEOUT.as_secs());
const _: () = assert!(DRAIN_GRACE.as_secs() < SHUTDOWN_GRACE.as_secs());
const _: () = assert!(LOG_CHANNEL >= 2 * SERVERS_MAX, "every log can be asked for at boot");
const _: () = assert!(EVENT_LOG_BYTES < LINE_MAX);
const _: () = assert!(STREAM_AFTER.as_millis() < KEEP_ALIVE.as_millis());
const _: () = assert!(LINE_MAX < KEPT_ANSWERS_BYTES_MAX, "any one answer can be kept");
const _: () = assert!(CONTENDED_QUESTION_TIMEOUT.as_millis() < QUESTION_TIMEOUT.as_millis());
const _: () = assert!(PRIVATE_INSTANCES_MAX < SESSIONS_MAX);
const _: () = assert!(LOG_TAIL_DEFAULT <= LOG_LINES_KEPT);
const _: () = assert!(LOG_RESTORED_BYTES <= LOG_FILE_MAX && LOG_RESTORED_BYTES as usize <= LOG_BYTES_KEPT);
const _: () = assert!(CLIENT_SILENCE_MAX.as_secs() > 2 * KEEP_ALIVE.as_secs());
const _: () = assert!(CLIENT_ANSWER_MAX > LINE_MAX, "the client can take whatever a server may answer");
const _: () = assert!(CLIENT_LIFECYCLE_WAIT.as_secs() > FETCH_STARTUP_TIMEOUT_DEFAULT.as_secs() + STOP_GRACE.as_secs());
const _: () = assert!(CLIENT_LIFECYCLE_WAIT.as_secs() > PULL_WAIT.as_secs() + STARTUP_TIMEOUT_DEFAULT.as_secs());
const _: () = assert!(8 * LAUNCH_MESSAGE_MAX < PULL_LINE_MAX, "the message fits even if every byte is escaped");
const _: () = assert!(STORE_STATEMENT_WAIT.as_millis() < STORE_WAIT.as_millis(), "the database gives up first");
const _: () = assert!(STORE_CONNECT_WAIT.as_millis() < STORE_WAIT.as_millis());
const _: () = assert!(DECISIONS_KEPT_MAX * 250 < DECISIONS_BYTES_MAX, "each is shorter than that, as text");
const _: () = assert!(
    2 * SHARE_MEMORY.whole + SHARE_LISTS.whole + SHARE_UNREAD.whole + SHARE_LINES.whole <= MEMORY_BUDGET / 8 * 7
);
const _: () =
    assert!(SHARE_LINES.server >= 2 * (LINE_MAX + BYTES_AT_ONCE) && SHARE_LINES.whole >= 2 * SHARE_LINES.server);
const _: () = assert!(SHARE_UNREAD.server >= STDIN_BACKLOG_MAX && SHARE_UNREAD.whole >= 2 * SHARE_UNREAD.server);
const _: () = assert!(
    SHARE_LINES.whole / 768 * (*MEMORY_BUDGETS.start() / MIB) > SHARE_LINES.server && MEMORY_BUDGET == 768 * MIB,
    "with the smallest budget no server takes all the room for lines"
);
const _: () = assert!(SERVERS_MAX * 2 * PIPE_BUFFER_FREE <= MEMORY_BUDGET / 12, "what is not counted is little");
const _: () = assert!(4 * TOOL_LIST_MAX < SHARE_LISTS.server && TOOL_LIST_MAX < LIST_PAGE_MAX);
const _: () = assert!(PORT_BUFFER_FREE < PORT_BUFFER);
const _: () =
    assert!(PORT_CONNECTIONS_MAX * 3 * PORT_BUFFER_FREE <= MEMORY_BUDGET / 16, "what is not counted is little");
const _: () = assert!(SHARE_RELAYS.principal < SHARE_RELAYS.server, "one token leaves room at a server for others");
const _: () = assert!(SHARE_RELAYS.address < SHARE_RELAYS.server);
const _: () = assert!(RELAY_SILENCE_MAX.as_secs() < ANSWER_TIMEOUT.as_secs());
const _: () = assert!(SHARE_MEMORY.server > LINE_MAX + 2 * BODY_MAX, "one call in and one answer out always fit");
const _: () = assert!(SERVER_WORK.at_once < SERVER_WORK.most && SERVER_LOG.at_once <= SERVER_LOG.most);
const _: () = assert!(STDIN_OWED_MAX < STDIN_BACKLOG_MAX);
const _: () = assert!(RECORD_ARGUMENTS_MAX < RECORDS_BATCH_BYTES && RECORDS_BATCH_BYTES < RECORDS_WAITING_BYTES);
const _: () = assert!(SECRET_VALUE_MAX < SEALED_MAX && SECRET_VALUE_MAX < FILLED_MAX);
