//! The log: standard error, for people or for machines.

use softdpu_site::{Log, LogFormat, LogLevel};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

mod limit;

use limit::PerDevice;

/// Starts logging as the site says; `SOFTDPU_LOG` (such as `debug` or `softdpu_engine=trace`) overrides the level.
pub fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let filter = EnvFilter::builder().with_default_directive(level.into()).with_env_var("SOFTDPU_LOG").from_env_lossy();
    let filter = filter.and(PerDevice::new(log.format, |line| crate::output::print_error(format_args!("{line}"))));
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // A second start in one process changes nothing.
    let _ = match log.format {
        LogFormat::Text => {
            let layer = layer.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
            tracing_subscriber::registry().with(layer.with_filter(filter)).try_init()
        }
        LogFormat::Json => tracing_subscriber::registry().with(layer.json().with_filter(filter)).try_init(),
    };
}
