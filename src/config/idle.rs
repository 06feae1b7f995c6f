//! `[idle]`: what becomes of servers that nobody uses, where their own definition says nothing. Judges values only, by the
//! rules of a definition.

use super::ConfigError;
use super::source::{Found, Sources};
use crate::limits::IDLE_AFTER_MS;
use crate::model::definition::{Idle, IdleMode, IdleStart};

pub(super) fn idle(sources: &Sources) -> Result<Idle, ConfigError> {
    let Some(table) = sources.idle()? else { return Ok(Idle::default()) };
    let (least, most) = IDLE_AFTER_MS.into_inner();
    let after = format!("milliseconds from {least} to {most}");
    let modes = [IdleMode::Doze, IdleMode::Stop, IdleMode::Off];
    Ok(Idle {
        after_ms: read("after_ms", table.after_ms, &after, |text| {
            text.parse().ok().filter(|ms| IDLE_AFTER_MS.contains(ms))
        })?,
        mode: read("mode", table.mode, "`doze`, `stop` or `off`", |text| {
            modes.into_iter().find(|mode| mode.wire() == text)
        })?,
        start: read("start", table.start, "`boot` or `on_demand`", |text| match text {
            "boot" => Some(IdleStart::Boot),
            "on_demand" => Some(IdleStart::OnDemand),
            _ => None,
        })?,
    })
}

fn read<T>(
    key: &str,
    found: Option<Found<String>>,
    wanted: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, ConfigError> {
    let Some(Found { value, at }) = found else { return Ok(None) };
    match read(&value) {
        Some(read) => Ok(Some(read)),
        None => {
            Err(ConfigError::invalid(at, &format!("idle.{key}"), format!("is `{value}`"), format!("write {wanted}")))
        }
    }
}
