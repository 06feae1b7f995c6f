//! The rows of the routes about tokens.

use super::{Media, Path, Reader, Row, Success};
use crate::api::rest::asks;
use crate::model::fault::Code;
use crate::model::principal::Need;
use crate::wire::http_in::Method::{Delete, Get, Post};

pub const ALL: &[Row] = &[
    Row {
        method: Get,
        needs: Need::TokensRead,
        query: &[],
        reader: Reader::Plain(asks::token_list),
        summary: "All tokens, without their secrets",
        body: None,
        answers: &[Success { status: 200, about: "By name.", content: &[Media::Json("TokenList")] }],
        faults: &[],
    },
    Row {
        method: Post,
        needs: Need::TokensWrite,
        query: &[],
        reader: Reader::Plain(asks::token_create),
        summary: "Make a token",
        body: Some("NewToken"),
        answers: &[Success {
            status: 201,
            about: "The only time that the token itself is shown.",
            content: &[Media::Json("TokenCreated")],
        }],
        faults: &[Code::NameTaken, Code::Unavailable, Code::StoreUnavailable],
    },
];

pub const OF_TOKEN: &[Path] = &[
    Path {
        rest: "",
        rows: &[Row {
            method: Delete,
            needs: Need::TokensWrite,
            query: &[],
            reader: Reader::OfToken(asks::token_revoke),
            summary: "Revoke a token",
            body: None,
            answers: &[Success { status: 204, about: "It opens nothing any more.", content: &[] }],
            faults: &[Code::NotFound, Code::StoreUnavailable],
        }],
    },
    Path {
        rest: "/rotate",
        rows: &[Row {
            method: Post,
            needs: Need::TokensWrite,
            query: &[],
            reader: Reader::OfToken(asks::token_rotate),
            summary: "Give a token a new secret",
            body: Some("Rotation"),
            answers: &[Success {
                status: 200,
                about: "The only time that the new secret is shown.",
                content: &[Media::Json("TokenCreated")],
            }],
            faults: &[Code::NotFound, Code::StoreUnavailable],
        }],
    },
];
