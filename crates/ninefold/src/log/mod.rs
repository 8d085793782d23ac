//! The log: events to the standard error, as text or as JSON, rate-limited for each call site.
//!
//! In: tracing events of every crate. Out: one line for each event, also buffered for the console ([`next`]). At most
//! [`limit::LINES`] lines a second come from one call site; one more line then counts the suppressed ones. The systemd
//! journal has its own time and level for each line. So if the standard error is the journal, the level is the prefix
//! `<N>` (sd-daemon(3)) and no time is written.

pub mod audit;
mod kept;
mod limit;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::{Format, Json, JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer as _, Registry, reload};

use crate::config::{Level, LogFormat};
pub use kept::next;
use limit::{Limit, Verdict};

/// Starts the log. Must be called once.
pub fn start(level: Level, format: LogFormat) {
    let (filter, handle) = reload::Layer::new(LevelFilter::from(level));
    let _ = LEVEL.set(handle);
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let journal = is_journal(io::stderr());
    let layer = tracing_subscriber::fmt::layer().with_writer(|| Both).with_ansi(colours);
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text if journal => {
            let bare = Format::default().without_time().with_level(false).with_ansi(false);
            let layer = layer.with_ansi(false).event_format(Limited::new(bare, format, journal));
            registry.with(layer.with_filter(filter)).with(audit::layer()).init();
        }
        LogFormat::Text => {
            let layer = layer.event_format(Limited::new(Format::default(), format, journal));
            registry.with(layer.with_filter(filter)).with(audit::layer()).init();
        }
        LogFormat::Json => {
            let json: Format<Json> = Format::default().json().flatten_event(true);
            let layer = layer.fmt_fields(JsonFields::new()).with_ansi(false);
            let layer = layer.event_format(Limited::new(json, format, journal));
            registry.with(layer.with_filter(filter)).with(audit::layer()).init();
        }
    }
}

/// Changes the level from which events are logged.
pub fn set_level(level: Level) {
    if let Some(handle) = LEVEL.get() {
        // This fails only if the subscriber is gone, and then nothing is logged anyway.
        let _ = handle.modify(|filter| *filter = level.into());
    }
}

/// Reports all suppressed lines that were not reported yet.
pub fn end() {
    if let Some(shared) = SHARED.get() {
        shared.tell(Instant::now() + limit::WINDOW);
    }
}

/// Returns whether data written to this descriptor goes to the systemd journal (systemd.exec(5), `JOURNAL_STREAM`).
pub fn is_journal(to: impl AsFd) -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(to).is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Formats lines for the standard error, with a level prefix if it is the journal.
pub fn lines(level: tracing::Level, text: &str) -> String {
    match is_journal(io::stderr()) {
        true => prefixed(level, text),
        false => text.into(),
    }
}

/// Prefixes each line with its level: the journal takes each line as an entry.
fn prefixed(level: tracing::Level, text: &str) -> String {
    let number = match level {
        tracing::Level::ERROR => 3,
        tracing::Level::WARN => 4,
        tracing::Level::INFO => 6,
        _ => 7,
    };
    text.split_inclusive('\n').map(|line| format!("<{number}>{line}")).collect()
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::ERROR,
            Level::Warn => Self::WARN,
            Level::Info => Self::INFO,
            Level::Debug => Self::DEBUG,
            Level::Trace => Self::TRACE,
        }
    }
}

static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();
static SHARED: OnceLock<Arc<Shared>> = OnceLock::new();

/// A call site of a log event.
#[derive(Clone, Copy)]
struct Site(&'static Metadata<'static>);

impl PartialEq for Site {
    fn eq(&self, other: &Site) -> bool {
        self.0.callsite() == other.0.callsite()
    }
}

impl Eq for Site {}

impl Hash for Site {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.callsite().hash(state);
    }
}

/// State shared by the formatter and [`end`].
struct Shared {
    limit: Mutex<Limit<Site>>,
    format: LogFormat,
    /// The standard error is the systemd journal: it adds the time, and the level is a prefix.
    journal: bool,
    /// A thread is waiting for the end of a window.
    awake: AtomicBool,
}

impl Shared {
    /// Reports the lines that were suppressed in windows that ended before `now`.
    fn tell(&self, now: Instant) {
        let told = self.limit().due(now);
        for (site, more) in told {
            let mut line = String::new();
            // Writing to a String cannot fail. An unwritable log is no reason to stop.
            let _ = self.more(&mut Writer::new(&mut line), site, more);
            let _ = Both.write_all(line.as_bytes());
        }
    }

    /// Reports suppressed lines after the window even if nothing more is logged. At most one thread waits for that, and
    /// only while it is needed.
    fn tell_soon(self: &Arc<Self>) {
        if self.awake.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = self.clone();
        let wait = move || {
            std::thread::sleep(limit::WINDOW);
            shared.awake.store(false, Ordering::SeqCst);
            shared.tell(Instant::now());
        };
        if std::thread::Builder::new().name("log".into()).spawn(wait).is_err() {
            self.awake.store(false, Ordering::SeqCst);
        }
    }

    fn limit(&self) -> std::sync::MutexGuard<'_, Limit<Site>> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one line: `more` events from `site` were suppressed.
    fn more(&self, writer: &mut Writer<'_>, site: Site, more: u64) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let text = format!("... and {more} more");
        match self.format {
            LogFormat::Text if self.journal => {
                let line = format!("{}: {text}\n", site.0.target());
                writer.write_str(&prefixed(*site.0.level(), &line))
            }
            LogFormat::Text => writeln!(writer, "{time} {:>5} {}: {text}", site.0.level(), site.0.target()),
            LogFormat::Json => {
                let (level, target) = (site.0.level().to_string(), site.0.target());
                let line = serde_json::json!({
                    "timestamp": time, "level": level, "message": text, "more": more, "target": target
                });
                writeln!(writer, "{line}")
            }
        }
    }
}

/// A writer to both the standard error and the console's buffer.
struct Both;

impl io::Write for Both {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        kept::keep(text);
        io::stderr().write_all(text).map(|()| text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// An event formatter that applies the rate limit.
struct Limited<F> {
    inner: F,
    shared: Arc<Shared>,
}

impl<F> Limited<F> {
    fn new(inner: F, format: LogFormat, journal: bool) -> Self {
        let (limit, awake) = Default::default();
        let shared = Arc::new(Shared { limit, format, journal, awake });
        let _ = SHARED.set(shared.clone());
        Self { inner, shared }
    }
}

impl<F, S, N> FormatEvent<S, N> for Limited<F>
where
    F: FormatEvent<S, N>,
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let site = Site(event.metadata());
        let verdict = self.shared.limit().admit(site, Instant::now());
        match verdict {
            // An empty text writes no line.
            Verdict::Hold => {
                self.shared.tell_soon();
                return Ok(());
            }
            Verdict::Pass { before: 0 } => {}
            Verdict::Pass { before } => self.shared.more(&mut writer, site, before)?,
        }
        if !self.shared.journal {
            return self.inner.format_event(ctx, writer, event);
        }
        let mut text = String::new();
        self.inner.format_event(ctx, Writer::new(&mut text), event)?;
        writer.write_str(&prefixed(*event.metadata().level(), &text))
    }
}
