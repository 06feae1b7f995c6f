//! `serve`: configuration, log, and then the loop. Nothing of the daemon itself is here.

use super::Common;
use super::error::Error;

/// The daemon's exit code.
pub fn serve(common: &Common) -> Result<u8, Error> {
    let config = common.load_config()?;
    env_logger::Builder::new()
        .parse_filters(&config.log)
        // The database client logs the parameters of its statements, and those are definitions with their secrets.
        .filter_module("tokio_postgres", log::LevelFilter::Warn)
        .filter_module("postgres", log::LevelFilter::Warn)
        .format_timestamp_millis()
        .format_target(false)
        .init();
    crate::os::boot::serve(config).map(|()| 0).map_err(Error::Fault)
}
