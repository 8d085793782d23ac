//! `trace`: writes a line for each message that passes to a log, which a file shows.
//!
//! Always holds: the newest [`LINES`] lines are stored, and dropped lines are counted.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use nine_stream::{Chain, Fault, Halves, Module, ModuleKind, Next};

use crate::lock::{Mutex, lock};

/// Maximum number of lines stored: some 40 KiB. They outlive the module.
const LINES: usize = 250;
/// Bytes of a message that its line shows.
const SHOWN: usize = 24;

/// The lines of one connection. Clones share them.
#[derive(Clone, Default)]
pub struct TraceLog(Arc<Mutex<TraceLines>>);

#[derive(Default)]
struct TraceLines {
    lines: VecDeque<String>,
    /// Dropped lines.
    gone: u64,
}

impl TraceLog {
    /// All stored lines, oldest first. If lines were dropped, a line before them gives their number.
    pub fn text(&self) -> String {
        let log = lock(&self.0);
        let mut text = match log.gone {
            0 => String::new(),
            gone => format!("{gone} lines before these have gone\n"),
        };
        for line in &log.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    fn push(&self, line: String) {
        let mut log = lock(&self.0);
        if log.lines.len() == LINES {
            log.lines.pop_front();
            log.gone += 1;
        }
        log.lines.push_back(line);
    }
}

/// The kind of module that writes to a log.
pub struct Trace(pub TraceLog);

impl ModuleKind for Trace {
    fn open(&self, arguments: &str) -> Result<Halves, Fault> {
        if !arguments.is_empty() {
            return Err(Fault::new("trace has no arguments"));
        }
        let half = |arrow| Box::new(TraceHalf { log: self.0.clone(), arrow, seen: 0 });
        Ok(Halves { up: half("<-"), down: half("->") })
    }

    fn is_single(&self) -> bool {
        true
    }
}

struct TraceHalf {
    log: TraceLog,
    arrow: &'static str,
    seen: u64,
}

impl Module for TraceHalf {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let now = next.now();
        self.seen += 1;
        let mut line = format!("{:.6} {} {} bytes", now.as_secs_f64(), self.arrow, chain.len());
        let bytes = chain.iter().flat_map(|block| block.data()).take(SHOWN);
        for (at, byte) in bytes.enumerate() {
            let gap = if at == 0 { ": " } else { "" };
            let _ = write!(line, "{gap}{byte:02x}");
        }
        self.log.push(line);
        next.put(chain);
        Ok(())
    }

    fn status(&self) -> String {
        format!("{} messages", self.seen)
    }
}
