//! `[ceilings]`: how much those who are limited to some servers or projects may give one of them. Judges values only; what is
//! not said has the default of a server that asks for nothing.

use super::ConfigError;
use super::source::{Found, Sources};
use crate::api::definition::{quantity, reach};
use crate::model::ceilings::Ceilings;
use std::ops::RangeInclusive;

pub(super) fn ceilings(sources: &Sources) -> Result<Ceilings, ConfigError> {
    let mut ceilings = Ceilings::default();
    let Some(table) = sources.ceilings()? else { return Ok(ceilings) };
    let bytes = |text: &str| quantity::bytes(&text.into());
    set(&mut ceilings.cpu_milli, "cpu", table.cpu, "cores, as in `0.5`", |text| quantity::cpu_milli(&text.into()))?;
    set(&mut ceilings.memory_bytes, "memory", table.memory, "bytes, as in `\"512M\"`", bytes)?;
    set(&mut ceilings.disk_bytes, "disk", table.disk, "bytes, as in `\"1G\"`", bytes)?;
    set(&mut ceilings.pids, "pids", table.pids, "a number", |text| text.parse().ok())?;
    let (addresses, ports) = (&mut ceilings.host_addresses, &mut ceilings.host_ports);
    set_all(addresses, "host_addresses", table.host_addresses, "addresses, as in `127.0.0.1`", |text| {
        text.parse().ok()
    })?;
    set_all(ports, "host_ports", table.host_ports, "ports or ranges, as in `\"8000-8999\"`", range)?;
    set_all(&mut ceilings.networks, "networks", table.networks, "names of networks", |text| reach::network(text).ok())?;
    Ok(ceilings)
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first > 0 && first <= last).then_some(first..=last)
}

fn set<T>(
    place: &mut T,
    key: &str,
    found: Option<Found<String>>,
    wanted: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<(), ConfigError> {
    let Some(Found { value, at }) = found else { return Ok(()) };
    *place = read(&value).ok_or_else(|| {
        ConfigError::invalid(at, &format!("ceilings.{key}"), format!("is `{value}`"), format!("write {wanted}"))
    })?;
    Ok(())
}

fn set_all<T>(
    place: &mut Vec<T>,
    key: &str,
    found: Option<Found<Vec<String>>>,
    wanted: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<(), ConfigError> {
    let Some(Found { value, at }) = found else { return Ok(()) };
    let mut all = Vec::new();
    for item in &value {
        all.push(read(item).ok_or_else(|| {
            let problem = format!("holds `{item}`");
            ConfigError::invalid(at.clone(), &format!("ceilings.{key}"), problem, format!("write {wanted}"))
        })?);
    }
    *place = all;
    Ok(())
}
