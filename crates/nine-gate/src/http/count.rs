//! What is counted, for `/metrics`.

use std::cell::Cell;
use std::fmt::Write;

use super::conn::End;
use super::status::Status;

/// Since the start.
#[derive(Default)]
pub(super) struct Counts {
    /// Answers by the first digit of their status.
    answers: [Cell<u64>; 6],
    sent: Cell<u64>,
    /// Conversations: all, and those that ended late, gone, cut.
    calls: Cell<u64>,
    late: Cell<u64>,
    gone: Cell<u64>,
    cut: Cell<u64>,
}

fn add(count: &Cell<u64>, n: u64) {
    count.set(count.get() + n);
}

impl Counts {
    pub(super) fn called(&self) {
        add(&self.calls, 1);
    }

    pub(super) fn answered(&self, status: Status) {
        add(&self.answers[usize::from(status.number() / 100).min(5)], 1);
    }

    pub(super) fn sent(&self, bytes: u64) {
        add(&self.sent, bytes);
    }

    pub(super) fn ended(&self, end: &End) {
        match end {
            End::Closed => {}
            End::Late => add(&self.late, 1),
            End::Gone(_) => add(&self.gone, 1),
            End::Cut(_) => add(&self.cut, 1),
        }
    }

    /// In the text format of Prometheus, version 0.0.4.
    pub(super) fn text(&self, open: usize, files: usize) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let answers: Vec<_> =
            (1..6).map(|n| (format!("{{class=\"{n}xx\"}}"), self.answers[n].get())).collect();
        let answers: Vec<_> = answers.iter().map(|(labels, value)| (&**labels, *value)).collect();
        family("ninefold_http_responses_total", "counter", "Answers by the class of their status.", &answers);
        let sent = [("", self.sent.get())];
        family("ninefold_http_sent_bytes_total", "counter", "Bytes of answers, heads and bodies.", &sent);
        let calls = [("", self.calls.get())];
        family(
            "ninefold_http_connections_total",
            "counter",
            "Conversations that have been accepted.",
            &calls,
        );
        family("ninefold_http_connections", "gauge", "Conversations that are open.", &[("", open as u64)]);
        let ends = [
            ("{why=\"late\"}", self.late.get()),
            ("{why=\"gone\"}", self.gone.get()),
            ("{why=\"cut\"}", self.cut.get()),
        ];
        let help = "Conversations that did not end in good order: too slow, lost, or cut in an answer.";
        family("ninefold_http_broken_total", "counter", help, &ends);
        family("ninefold_http_open_files", "gauge", "Files that are kept open.", &[("", files as u64)]);
        text
    }
}
