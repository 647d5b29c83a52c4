//! A limit on what one device may have written to the log: its front end decides how much there is to say.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use softdpu_site::LogFormat;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Filter};

/// Lines of one kind that a device may have at once.
const BURST: u32 = 256;
/// How long until it may have one more.
const PER_LINE: Duration = Duration::from_millis(100);
/// Kinds and devices that are counted; beyond, those with nothing left out are forgotten.
const MOST: usize = 4096;

/// Lets lines of the log pass, or leaves them out: of one kind (one place in the code) and one device [`BURST`] at
/// once, then one each [`PER_LINE`]. When lines of the kind pass again, a line says how many were left out. Lines
/// without a device always pass.
pub(super) struct PerDevice {
    format: LogFormat,
    write: fn(&str),
    lines: Mutex<HashMap<(Identifier, String), Bucket>>,
}

/// A token bucket (RFC 2697) of lines.
struct Bucket {
    tokens: u32,
    since: Instant,
    left_out: u64,
}

impl Bucket {
    fn new(now: Instant) -> Bucket {
        Bucket { tokens: BURST, since: now, left_out: 0 }
    }

    /// Whether a line passes at `now`; if so, how many were left out before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let gained =
            (now.saturating_duration_since(self.since).as_nanos() / PER_LINE.as_nanos()).min(BURST.into()) as u32;
        if gained > 0 {
            self.tokens = (self.tokens + gained).min(BURST);
            self.since = now;
        }
        match self.tokens.checked_sub(1) {
            Some(left) => {
                self.tokens = left;
                Some(std::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out += 1;
                None
            }
        }
    }
}

impl PerDevice {
    pub(super) fn new(format: LogFormat, write: fn(&str)) -> PerDevice {
        PerDevice { format, write, lines: Mutex::default() }
    }

    /// Whether a line of this kind about `device` passes at `now`.
    fn passes(&self, kind: Identifier, device: String, now: Instant) -> bool {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= MOST {
            lines.retain(|_, bucket| bucket.left_out > 0);
        }
        if lines.len() >= MOST {
            lines.clear();
        }
        let bucket = lines.entry((kind, device.clone())).or_insert_with(|| Bucket::new(now));
        let left_out = bucket.take(now);
        drop(lines);
        if let Some(count) = left_out.filter(|count| *count > 0) {
            (self.write)(&self.line(&device, count));
        }
        left_out.is_some()
    }

    /// The line that says how many were left out, as the log's other lines are: none can be made within a filter.
    fn line(&self, device: &str, lines: u64) -> String {
        let mut time = String::new();
        // Writing to a String cannot fail.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        let message = "lines like the next one were left out of the log";
        let target = module_path!();
        match self.format {
            LogFormat::Text => format!("{time}  WARN {target}: {message} device={device:?} lines={lines}\n"),
            LogFormat::Json => {
                let fields = json!({"message": message, "device": device, "lines": lines});
                format!("{}\n", json!({"timestamp": time, "level": "WARN", "fields": fields, "target": target}))
            }
        }
    }
}

impl<S: Subscriber> Filter<S> for PerDevice {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let mut device = Device(None);
        event.record(&mut device);
        device.0.is_none_or(|device| self.passes(event.metadata().callsite(), device, Instant::now()))
    }
}

/// The field `device` of a line.
struct Device(Option<String>);

impl Visit for Device {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "device" {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "device" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn a_bucket_lets_a_burst_pass_and_then_a_line_now_and_then() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        assert!((0..BURST).all(|_| bucket.take(start) == Some(0)));
        assert!((0..1000).all(|_| bucket.take(start).is_none()));
        assert_eq!(bucket.take(start + PER_LINE), Some(1000));
        assert_eq!(bucket.take(start + PER_LINE), None);
        assert!((0..BURST).filter(|_| bucket.take(start + PER_LINE * 10_000).is_some()).count() == BURST as usize);
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_device_that_floods_the_log_leaves_others_their_lines() {
        let written = Written::default();
        let to = written.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || to.clone());
        let limit = PerDevice::new(LogFormat::Text, |_| {});
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(limit));
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..10_000 {
                tracing::warn!(device = "hostile", "refused");
            }
            tracing::warn!(device = "other", "refused");
            tracing::warn!("about no device");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert!((BURST as usize..2 * BURST as usize).contains(&count("hostile")), "{} lines", count("hostile"));
        assert_eq!((count("other"), count("about no device")), (1, 1));
    }

    #[test]
    fn what_was_left_out_is_said_in_the_logs_format() {
        let text = PerDevice::new(LogFormat::Text, |_| {}).line("disk", 7);
        assert!(text.contains("WARN") && text.ends_with("device=\"disk\" lines=7\n"), "{text}");
        let json = PerDevice::new(LogFormat::Json, |_| {}).line("disk", 7);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["fields"]["lines"], &json["level"]), (&json!(7), &json!("WARN")));
    }
}
