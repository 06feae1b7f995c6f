//! Which methods of a client may go to a process that it shares with others. Only words and their meaning; what is done
//! instead of the others is decided where they come in: over the REST API, in a session, or without one.
//! Invariant: whatever is passed on changes nothing for any other client of the process, as far as MCP says what it does.

/// Why a request of this method is not passed on, and what to do instead; none: it is.
pub fn kept_back(method: &str) -> Option<&'static str> {
    match method {
        "initialize" => Some(
            "the daemon has shaken hands with the server for all its clients; `GET /api/v1/mcp/servers/NAME` shows what it \
             said, and an `initialize` at /mcp/NAME opens a session",
        ),
        "logging/setLevel" => {
            Some("it would hold for every client of the server; a session at /mcp/NAME has a level of its own")
        }
        "resources/subscribe" | "resources/unsubscribe" | "subscriptions/listen" => {
            Some("there is no stream on which updates could come; subscribe in a session at /mcp/NAME")
        }
        "tasks/list" => Some("it would list the tasks of every client; ask for each of yours with `tasks/get`"),
        _ if method.starts_with("notifications/") => Some(
            "a notification is no request and has no answer; what a client may tell, it tells in a session at /mcp/NAME",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_what_it_is_about_is_passed_on_and_what_is_about_all_clients_is_not() {
        for method in
            ["tools/call", "tools/list", "ping", "resources/read", "completion/complete", "tasks/get", "x/y", ""]
        {
            assert_eq!(kept_back(method), None, "{method}");
        }
        for method in
            ["initialize", "logging/setLevel", "resources/subscribe", "tasks/list", "notifications/", "notifications/x"]
        {
            assert!(kept_back(method).is_some_and(|why| !why.is_empty()), "{method}");
        }
    }
}
