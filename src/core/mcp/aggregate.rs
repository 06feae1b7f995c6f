//! Lists at the endpoints that offer several servers at once, as answers: put together from what each server's part of them was made
//! into when it came (`peers/listings.rs`). Never waits for a server to make one, so one that is dead, hung or large costs the
//! others nothing.

use crate::core::mcp::responses::Replies;
use crate::core::mcp::wording::{INVALID_PARAMS, rpc_error};
use crate::core::peers::listings::Listing;
use crate::ids::PostId;
use crate::limits::{LIST_PAGE_MAX, NAME_MAX, STREAM_BACKLOG_MAX};
use crate::wire::backlog::Shared;
use crate::wire::json::Json;
use serde_json::json;

/// May a request still wait for links to come up?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Patience {
    Left,
    Over,
}

impl Replies<'_> {
    /// A page of all that this client may see, from its cursor on; `page` puts it together. A stream has smaller ones: there they are copied.
    pub fn finish_list(
        &mut self,
        page: impl FnOnce(Listing, Option<&str>, usize) -> (Vec<Shared>, Option<String>),
        post: PostId,
        id: Json<'_>,
        list: Listing,
        params: Option<Json<'_>>,
        hints: &str,
    ) {
        let after = match params.map_or(Ok(None), cursor) {
            Ok(after) => after,
            Err(message) => {
                return self.finish(post, None, 200, rpc_error(id.get(), INVALID_PARAMS, &message));
            }
        };
        let most = if self.is_streamed(post) { STREAM_BACKLOG_MAX } else { LIST_PAGE_MAX };
        let (items, last) = page(list, after.as_deref(), most);
        let next = last.map_or(String::new(), |last| format!(r#","nextCursor":{}"#, json!(last)));
        let before = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{{hints}"{}":["#, id.get(), list.keys().0);
        self.finish_shared(post, before, items, format!("]{next}}}}}"));
    }
}

/// Where the next page begins: behind the server that the last one ended with.
fn cursor(params: Json<'_>) -> Result<Option<String>, String> {
    match params.member("cursor") {
        None => Ok(None),
        Some(raw) if raw.get() == "null" => Ok(None),
        Some(raw) => match raw.text().filter(|text| text.len() <= NAME_MAX) {
            Some(text) => Ok(Some(text.into_owned())),
            None => Err("cursor: is none of this endpoint's; begin without one".to_string()),
        },
    }
}
