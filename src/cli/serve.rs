//! `serve`: configuration, log, and then the loop. Nothing of the daemon itself is here.

use super::Common;
use super::error::Error;

/// The daemon's exit code.
pub fn serve(common: &Common) -> Result<u8, Error> {
    let config = common.load_config()?;
    env_logger::Builder::new().parse_filters(&config.log).format_timestamp_millis().init();
    Ok(crate::os::reactor::serve(config))
}
