//! The rows of the routes of the page, and nothing else: one for each of `api::page::FILES`.

use super::{Media, Reader, Row, Success};
use crate::api::page::{self, HTML};
use crate::model::principal::Need;
use crate::wire::http_in::Method::Get;

pub(super) const DOCUMENT: &[Row] = &[row("The page of whoever runs the daemon", DOCUMENTS)];
pub(super) const SCRIPT: &[Row] = &[row("A script of the page", SCRIPTS)];
pub(super) const STYLE: &[Row] = &[row("How the page looks", STYLES)];
pub(super) const ICON: &[Row] = &[row("The sign of the page", ICONS)];

const DOCUMENTS: &[Success] = &[Success { status: 200, about: ABOUT, content: &[Media::File(HTML)] }, SAME];
const SCRIPTS: &[Success] = &[Success { status: 200, about: ABOUT, content: &[Media::File(page::SCRIPT)] }, SAME];
const STYLES: &[Success] = &[Success { status: 200, about: ABOUT, content: &[Media::File(page::STYLE)] }, SAME];
const ICONS: &[Success] = &[Success { status: 200, about: ABOUT, content: &[Media::File(page::ICON)] }, SAME];

const ABOUT: &str = "It is part of the program, and needs no token: it shows nothing before it is given one.";
const SAME: Success = Success { status: 304, about: "The one of `If-None-Match` is still the same.", content: &[] };

const fn row(summary: &'static str, answers: &'static [Success]) -> Row {
    Row {
        method: Get,
        needs: Need::Nothing,
        query: &[],
        reader: Reader::Plain(page::serve),
        summary,
        body: None,
        answers,
        faults: &[],
    }
}
