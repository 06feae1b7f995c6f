//! `serve`: configuration, log, and then the loop. Nothing of the daemon itself is here.

use super::Common;
use super::error::Error;
use crate::os::logs::filter::LogFilter;

/// The daemon's exit code.
pub fn serve(common: &Common) -> Result<u8, Error> {
    let config = common.load_config()?;
    let filter = LogFilter::install(&config.log);
    let _last_lines = filter.flushed_at_the_end();
    crate::os::event_loop::boot::serve(config, common.config_file(), filter).map(|()| 0).map_err(Error::Fault)
}
