//! `serve`: configuration, log, and then the loop. Nothing of the daemon itself is here.

use super::Common;
use super::error::Error;
use crate::os::event_loop::signals;
use crate::os::logs::filter::LogFilter;
use crate::os::upgrade::Started;
use std::os::fd::RawFd;

/// The daemon's exit code.
pub fn serve(common: &Common, started: Started, state: Option<RawFd>) -> Result<u8, Error> {
    let config = common.load_config()?;
    // Before there is a thread beside this one.
    signals::hold_back().map_err(|e| Error::Fault(format!("signals: {e}")))?;
    let filter = LogFilter::install(&config.log);
    let _last_lines = filter.flushed_at_the_end();
    crate::os::event_loop::boot::serve(config, common.config_file(), filter, started, state)
        .map(|()| 0)
        .map_err(Error::Fault)
}
