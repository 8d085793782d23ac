//! The audit log: events of the target `audit` as lines of JSON.
//!
//! In: events from any thread that serves a request, so nothing here waits. Out: one line for each event, to the
//! consumer set by [`to`].

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// A consumer of audit lines; it must not block.
pub type Lines = Arc<dyn Fn(String) + Send + Sync>;

static LINES: OnceLock<Lines> = OnceLock::new();

/// Sets the consumer of all later lines. Must be called once.
pub fn to(lines: Lines) {
    let _ = LINES.set(lines);
}

/// Formats an audit line that does not come from an event: the event's name and a number.
pub fn line(event: &str, key: &str, n: u64) -> String {
    let mut fields = begun();
    fields.insert("event".into(), event.into());
    fields.insert(key.into(), n.into());
    format!("{}\n", Value::Object(fields))
}

/// Returns the tracing layer that receives audit events.
pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    let is_ours = filter_fn(|metadata| metadata.target() == nine_io::audit::TARGET);
    Audit.with_filter(is_ours.with_max_level_hint(LevelFilter::INFO))
}

struct Audit;

impl<S: Subscriber> Layer<S> for Audit {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(lines) = LINES.get() else { return };
        let mut fields = Fields(begun());
        event.record(&mut fields);
        // The message is text for people; its content is in the other fields, too.
        fields.0.remove("message");
        lines(format!("{}\n", Value::Object(fields.0)));
    }
}

fn begun() -> Map<String, Value> {
    let mut time = String::new();
    // Writing to a String cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    Map::from_iter([("time".into(), time.into())])
}

struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().into(), value.into());
    }
}

impl Visit for Fields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format!("{value:?}"));
    }
}
