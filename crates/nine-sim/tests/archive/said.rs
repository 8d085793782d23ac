//! What the archive has said: warnings are counted, as only they tell that something rare has happened.
//!
//! In: events of tracing, of this thread. Out: numbers.

use std::fmt::{Debug, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// What is listened for.
const NOT_WHOLE: &str = "the last commit is not whole";

/// Listens as long as it is there.
pub struct Said {
    not_whole: Arc<AtomicU64>,
    _listens: DefaultGuard,
}

impl Said {
    pub fn listen() -> Self {
        let not_whole = Arc::<AtomicU64>::default();
        let listens = set_default(Listener(not_whole.clone()));
        Self { not_whole, _listens: listens }
    }

    /// Times that a start has not taken the last commit.
    pub fn not_whole(&self) -> u64 {
        self.not_whole.load(Ordering::Relaxed)
    }
}

struct Listener(Arc<AtomicU64>);

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
            self.0.fetch_add(1, Ordering::Relaxed);
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
