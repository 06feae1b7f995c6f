//! The rows of the documents that say who gives tokens for an endpoint (RFC 9728). Every name has one, whether there is
//! anything behind it or not.

use super::{Media, Path, Reader, Row, Success};
use crate::api::rest::asks;
use crate::model::fault::Code;
use crate::model::principal::Need;
use crate::wire::http_in::Method;

pub const OF_SHORT: &[Path] = &[Path { rest: "", rows: OF_ONE }, Path { rest: "/sse", rows: OF_ONE }];
pub const OF_SERVER: &[Path] = &[Path { rest: "/mcp", rows: OF_ONE }, Path { rest: "/sse", rows: OF_ONE }];
pub const OF_PROJECT: &[Path] = &[Path { rest: "/mcp", rows: &[row(Reader::OfProject(asks::project_metadata))] }];
pub const OF_ALL: &[Row] = &[row(Reader::Plain(asks::metadata))];
const OF_ONE: &[Row] = &[row(Reader::OfServer(asks::server_metadata))];

const fn row(reader: Reader) -> Row {
    Row {
        method: Method::Get,
        needs: Need::Nothing,
        query: &[],
        reader,
        summary: "Who gives tokens for this address (RFC 9728)",
        body: None,
        answers: &[Success {
            status: 200,
            about: "The address as clients know it, and its authorization server.",
            content: &[Media::Json("ResourceMetadata")],
        }],
        faults: &[Code::NotFound],
    }
}
