//! The daemon's own log, with a filter that can be changed while it runs (SIGHUP). Everything else about a line — its time,
//! its form — is `env_logger`'s.

use log::{Log, Metadata, Record};
use std::sync::RwLock;

pub struct LogFilter {
    logger: RwLock<env_logger::Logger>,
}

impl LogFilter {
    /// Installs the process's logger; there is one, and it is never removed.
    pub fn install(filter: &str) -> &'static LogFilter {
        let logger: &'static LogFilter = Box::leak(Box::new(LogFilter { logger: RwLock::new(build(filter)) }));
        // Fails only if there is a logger already; whoever installed it wins.
        _ = log::set_logger(logger);
        logger.adjust();
        logger
    }

    pub fn set(&self, filter: &str) {
        *self.logger.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = build(filter);
        self.adjust();
    }

    /// What no filter lets through is not even formatted.
    fn adjust(&self) {
        log::set_max_level(self.logger.read().unwrap_or_else(|poisoned| poisoned.into_inner()).filter());
    }
}

impl Log for LogFilter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.logger.read().unwrap_or_else(|poisoned| poisoned.into_inner()).enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        self.logger.read().unwrap_or_else(|poisoned| poisoned.into_inner()).log(record);
    }

    fn flush(&self) {
        self.logger.read().unwrap_or_else(|poisoned| poisoned.into_inner()).flush();
    }
}

fn build(filter: &str) -> env_logger::Logger {
    env_logger::Builder::new()
        .parse_filters(filter)
        // The database client logs the parameters of its statements, and those are definitions with their secrets.
        .filter_module("tokio_postgres", log::LevelFilter::Warn)
        .filter_module("postgres", log::LevelFilter::Warn)
        .format_timestamp_millis()
        .format_target(false)
        .build()
}
