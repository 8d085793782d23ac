//! Counters for `/metrics`, and the metrics of a mux about its servers: all in Prometheus' text format, 0.0.4.

use std::cell::Cell;
use std::fmt::Write;
use std::time::Duration;

use nine_io::client::{File, Result};
use nine_proto::OpenFlags;

use super::conn::HttpEnd;
use super::status::Status;

/// Counts since the start.
#[derive(Default)]
pub(super) struct HttpCounters {
    /// Answers by the first digit of their status.
    answers: [Cell<u64>; 6],
    sent: Cell<u64>,
    /// Connections: all, and those that ended late, gone, cut.
    calls: Cell<u64>,
    late: Cell<u64>,
    gone: Cell<u64>,
    cut: Cell<u64>,
    /// Answers by their time; the last one counts those above all [`TIMES`]. `time`: the sum, in nanoseconds.
    times: [Cell<u64>; TIMES.len() + 1],
    time: Cell<u64>,
}

/// The upper bounds of the histogram, in nanoseconds.
const TIMES: [(&str, u64); 10] = [
    ("0.0001", 100_000),
    ("0.0005", 500_000),
    ("0.001", 1_000_000),
    ("0.005", 5_000_000),
    ("0.01", 10_000_000),
    ("0.05", 50_000_000),
    ("0.1", 100_000_000),
    ("0.5", 500_000_000),
    ("1", 1_000_000_000),
    ("10", 10_000_000_000),
];
/// Maximum number of bytes read of a mux's file.
const MUX_MAX: usize = 1 << 20;

fn add(count: &Cell<u64>, n: u64) {
    count.set(count.get() + n);
}

impl HttpCounters {
    pub(super) fn called(&self) {
        add(&self.calls, 1);
    }

    /// Connections so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.get()
    }

    pub(super) fn answered(&self, status: Status) {
        add(&self.answers[usize::from(status.number() / 100).min(5)], 1);
    }

    pub(super) fn sent(&self, bytes: u64) {
        add(&self.sent, bytes);
    }

    /// Counts a time from a request's head until its answer was sent, or queued with others.
    pub(super) fn took(&self, time: Duration) {
        let time = time.as_nanos() as u64;
        let at = TIMES.iter().position(|(_, end)| time <= *end).unwrap_or(TIMES.len());
        add(&self.times[at], 1);
        add(&self.time, time);
    }

    pub(super) fn ended(&self, end: &HttpEnd) {
        match end {
            HttpEnd::Closed => {}
            HttpEnd::Late => add(&self.late, 1),
            HttpEnd::Gone(_) => add(&self.gone, 1),
            HttpEnd::Cut(_) => add(&self.cut, 1),
        }
    }

    /// The metrics, with the given numbers of open connections and files.
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
        self.histogram(&mut text);
        text
    }

    fn histogram(&self, text: &mut String) {
        const NAME: &str = "ninefold_http_response_seconds";
        const HELP: &str = "From a request's head to when its answer had left.";
        let _ = writeln!(text, "# HELP {NAME} {HELP}\n# TYPE {NAME} histogram");
        let mut count = 0;
        for (end, answers) in TIMES.iter().map(|(end, _)| *end).chain(["+Inf"]).zip(&self.times) {
            count += answers.get();
            let _ = writeln!(text, "{NAME}_bucket{{le=\"{end}\"}} {count}");
        }
        let sum = Duration::from_nanos(self.time.get()).as_secs_f64();
        let _ = writeln!(text, "{NAME}_sum {sum}\n{NAME}_count {count}");
    }
}

/// Reads the `metrics` file of a mux, or the one in the client's own tree. Returns whole lines.
pub(super) async fn of_mux(own: Option<&File>, mux: &File) -> Result<String> {
    let file = match own {
        Some(root) => root.open("mux/metrics", OpenFlags::READ).await?,
        None => mux.open("metrics", OpenFlags::READ).await?,
    };
    let mut text = Vec::new();
    while text.len() < MUX_MAX {
        let part = file.read(text.len() as u64, (MUX_MAX - text.len()) as u32).await?;
        if part.is_empty() {
            break;
        }
        text.extend_from_slice(&part);
    }
    text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_in_every_count_that_ends_above_its_time() {
        let counts = HttpCounters::default();
        for millis in [0, 1, 2, 700, 60_000] {
            counts.took(Duration::from_millis(millis));
        }
        let text = counts.text(0, 0);
        for line in [
            "bucket{le=\"0.0001\"} 1",
            "bucket{le=\"0.001\"} 2",
            "bucket{le=\"0.5\"} 3",
            "bucket{le=\"1\"} 4",
            "bucket{le=\"10\"} 4",
            "bucket{le=\"+Inf\"} 5",
            "sum 60.703",
            "count 5",
        ] {
            assert!(text.contains(&format!("\nninefold_http_response_seconds_{line}\n")), "{line} in {text}");
        }
    }
}
