//! The counters of an archive, for people (`stats`) and for monitoring.
//!
//! In: an archive. Out: numbers with names and descriptions.

use std::fmt::Write as _;

use crate::archive::Archive;

/// A measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Words joined by `_`. The name of a counter ends in `_total`.
    pub name: &'static str,
    /// A description for people.
    pub help: &'static str,
    /// The value now.
    pub value: f64,
}

impl Figure {
    /// Returns whether the value only rises.
    pub fn is_counter(&self) -> bool {
        self.name.ends_with("_total")
    }
}

impl Archive {
    /// Returns the name of the archive.
    pub fn name(&self) -> &str {
        &self.0.label.name
    }

    /// Returns all present values.
    pub fn figures(&self) -> Vec<Figure> {
        let (slots, used) = self.0.cw.slots();
        let (free, _) = self.0.cw.room();
        let worm = self.0.cw.worm_blocks();
        let memory = self.cache_stats();
        let state = &*self.state();
        let last = state.dumps.values().next_back().map(|dump| dump.record.time.sec);
        let (changed, freed) = state.fs.mem.changed();
        let number = |value: u64| value as f64;
        let truth = |value: bool| f64::from(u8::from(value));
        let figure = |name, help, value| Figure { name, help, value };
        vec![
            figure("block_bytes", "Bytes of a block.", number(state.fs.block())),
            figure("cache_blocks", "Blocks that the cache device holds.", number(slots)),
            figure("cache_used_blocks", "Of these, not on the worm.", number(used)),
            figure("cache_free_blocks", "Of these, to be had for changes.", number(free)),
            figure("worm_blocks", "Blocks that the worm has room for.", number(worm)),
            figure("worm_written_blocks", "Of these, written.", number(self.0.cw.written(state.next_worm))),
            figure("file_blocks", "Blocks of all files, as they are now.", number(state.fs.blocks)),
            figure("changed_blocks", "Changed in memory, and not durable.", changed as f64),
            figure("freed_blocks", "Freed in memory, and not durable.", freed as f64),
            figure("commits_total", "Moments made durable since the start.", number(state.commits())),
            figure("dumps", "Dumps that there are.", state.dumps.len() as f64),
            figure("dumps_waiting", "Of these, not on the worm.", state.waiting.len() as f64),
            figure("last_dump_seconds", "The newest dump, since 1970; 0: none.", last.unwrap_or(0) as f64),
            figure("memory_blocks", "Blocks in memory.", number(memory.held)),
            figure("memory_hits_total", "Blocks wanted, and in memory.", number(memory.hits)),
            figure("memory_misses_total", "Blocks wanted, and not in memory.", number(memory.misses)),
            figure("ahead_blocks_total", "Blocks read ahead.", number(memory.ahead)),
            figure("ahead_used_blocks_total", "Of these, used.", number(memory.ahead_used)),
            figure(
                "scrub_read_blocks",
                "Read by the scrub under way, or the last.",
                number(state.scrubber.blocks()),
            ),
            figure("hurt_files", "Files that cannot be read whole.", number(state.scrubber.hurt())),
            figure("copying", "1: a dump is on its way to the worm.", truth(state.dumper.is_busy())),
            figure(
                "copy_waits",
                "1: the copy of a dump has failed.",
                truth(state.dumper.why_not().is_some()),
            ),
            figure("stopped", "1: nothing is changed any more.", truth(state.stopped.is_some())),
        ]
    }

    pub(crate) fn stats(&self) -> String {
        let mut text = String::new();
        for Figure { name, help, value } in self.figures() {
            let _ = writeln!(text, "{name:24} {value:<14} {help}");
        }
        text
    }
}
