//! The archive's log: it counts warnings, because only they show that certain rare events have happened.
//!
//! In: tracing events of this thread. Out: counts.
//!
//! There is one subscriber for all threads. tracing asks only once per call site whether anyone is interested, in the
//! first thread that reaches it, so a subscriber of another thread would miss events.

use std::cell::Cell;
use std::fmt::{Debug, Write};
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Level, Metadata, Subscriber};

/// The counted warning.
const NOT_WHOLE: &str = "the last commit is not whole";

thread_local! {
    static HEARD: Cell<u64> = const { Cell::new(0) };
}

/// A count that starts now.
pub struct Said {
    before: u64,
}

impl Said {
    pub fn listen() -> Self {
        static BEGUN: Once = Once::new();
        BEGUN.call_once(|| set_global_default(Listener).expect("nobody else listens"));
        Self { before: HEARD.get() }
    }

    /// Returns how often a start in this thread has rejected the last commit.
    pub fn not_whole(&self) -> u64 {
        HEARD.get() - self.before
    }
}

struct Listener;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

impl Subscriber for Listener {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        of.is_event() && *of.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        if text.0.contains(NOT_WHOLE) {
            HEARD.set(HEARD.get() + 1);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
