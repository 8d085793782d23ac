//! What the archive has said: warnings are counted, as only they tell that something rare has happened.
//!
//! In: events of tracing, of this thread. Out: numbers.
//!
//! One listens for all threads: which events are of interest to nobody, tracing asks once, in the thread that meets one
//! first, and a listener of another thread would never hear of it.

use std::cell::Cell;
use std::fmt::{Debug, Write};
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Level, Metadata, Subscriber};

/// What is listened for.
const NOT_WHOLE: &str = "the last commit is not whole";

thread_local! {
    static HEARD: Cell<u64> = const { Cell::new(0) };
}

/// Listens from now on.
pub struct Said {
    before: u64,
}

impl Said {
    pub fn listen() -> Self {
        static BEGUN: Once = Once::new();
        BEGUN.call_once(|| set_global_default(Listener).expect("nobody else listens"));
        Self { before: HEARD.get() }
    }

    /// Times that a start has not taken the last commit, in this thread.
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
