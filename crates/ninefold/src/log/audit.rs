//! Events of the target `audit` as lines of JSON, for whoever keeps them.
//!
//! In: events, from wherever something is asked for, so nothing here waits. Out: [`to`] takes them, one line each.

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

/// What takes the lines; it must not wait.
pub type Lines = Arc<dyn Fn(String) + Send + Sync>;

static LINES: OnceLock<Lines> = OnceLock::new();

/// From now on these lines go there. Called once.
pub fn to(lines: Lines) {
    let _ = LINES.set(lines);
}

/// A line that is no event: `event`, and a number.
pub fn line(event: &str, key: &str, n: u64) -> String {
    let mut fields = begun();
    fields.insert("event".into(), event.into());
    fields.insert(key.into(), n.into());
    format!("{}\n", Value::Object(fields))
}

/// What sees the events.
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
        // What people read of it is in the others.
        fields.0.remove("message");
        lines(format!("{}\n", Value::Object(fields.0)));
    }
}

fn begun() -> Map<String, Value> {
    let mut time = String::new();
    // A String takes whatever is written to it.
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
