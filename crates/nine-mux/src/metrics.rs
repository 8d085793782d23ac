//! Formats `/mux/metrics` in the text format of Prometheus, version 0.0.4.
//!
//! In: the present state of the servers, and the number of connected clients. Out: lines of text. Those of a server
//! have its name as the label `server`.

use std::fmt::Write;

use crate::show::UpstreamStatus;

/// Returns the text of the file.
pub(crate) fn text(clients: usize, servers: &[UpstreamStatus]) -> String {
    let mut text = String::new();
    head(&mut text, "clients", "gauge", "Clients that are connected.");
    line(&mut text, "clients", "", clients);
    let mut each = |name: &str, kind: &str, help: &str, value: &dyn Fn(&UpstreamStatus) -> String| {
        head(&mut text, name, kind, help);
        for server in servers {
            line(&mut text, name, &labels(server, ""), value(server));
        }
    };
    for (name, help, value) in GAUGES {
        each(name, "gauge", help, &|server| value(server).to_string());
    }
    each("server_rtt_seconds", "gauge", "How long the latest attach took; 0: not known.", &|server| {
        (server.rtt_us() as f64 / 1e6).to_string()
    });
    each("server_dials_total", "counter", "Connections that were tried.", &|server| server.dials.to_string());
    let name = "server_ahead_bytes_total";
    head(&mut text, name, "counter", "Bytes asked for before they were read: served, or in vain.");
    for server in servers {
        for (end, bytes) in [("served", server.ahead_served), ("dropped", server.ahead_dropped)] {
            line(&mut text, name, &labels(server, &format!(",end=\"{end}\"")), bytes);
        }
    }
    head(&mut text, "server_info", "gauge", "What is spoken with it, what is pushed, why it is not there.");
    for server in servers {
        let (dialect, modules) = (server.dialect().unwrap_or_default(), server.modules.join(", "));
        let more = format!(
            ",dialect=\"{dialect}\",modules=\"{}\",away=\"{}\"",
            escape(&modules),
            escape(server.away().unwrap_or_default())
        );
        line(&mut text, "server_info", &labels(server, &more), 1);
    }
    text
}

type UpstreamGauge = (&'static str, &'static str, fn(&UpstreamStatus) -> usize);

const GAUGES: &[UpstreamGauge] = &[
    ("server_connections", "Connections that are there.", |server| server.live().count()),
    ("server_in_flight", "Requests under way.", |server| server.live().map(|c| c.calls).sum()),
    ("server_orphans", "Requests that were flushed and are not yet settled.", |server| {
        server.live().map(|c| c.orphans).sum()
    }),
    ("server_fids", "Fids that the server has for us.", |server| {
        server.live().map(|c| c.fids as usize).sum()
    }),
    ("server_kept_fids", "Fids that come back with a connection.", |server| {
        server.connections.iter().map(|c| c.kept).sum()
    }),
    ("server_waiting", "Requests that wait until a connection is back.", |server| {
        server.connections.iter().map(|c| c.waiting).sum()
    }),
];

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP ninefold_mux_{name} {help}\n# TYPE ninefold_mux_{name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "ninefold_mux_{name}{labels} {value}");
}

fn labels(server: &UpstreamStatus, more: &str) -> String {
    format!("{{server=\"{}\"{more}}}", escape(&server.name))
}

/// Escapes the value of a label.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::ConnectionStatus;

    #[test]
    fn every_server_has_a_line_of_each_kind_whatever_it_is_called() {
        let connection = ConnectionStatus {
            dialect: Some("9P2000.L"),
            calls: 3,
            orphans: 1,
            fids: 7,
            rtt_us: 1500,
            kept: 2,
            waiting: 0,
            away: None,
        };
        let gone = ConnectionStatus {
            dialect: None,
            waiting: 5,
            away: Some("no\nroute".into()),
            ..connection.clone()
        };
        let server = UpstreamStatus {
            id: 1,
            name: "tcp!h!1 \"a\\b\"\n".into(),
            modules: vec!["tls".into(), "zstd".into()],
            dials: 4,
            ahead_served: 10,
            ahead_dropped: 20,
            connections: vec![connection, gone],
        };
        let text = text(9, &[server]);
        let server = r#"server="tcp!h!1 \"a\\b\"\n""#;
        for line in [
            "clients 9",
            &format!("server_connections{{{server}}} 1"),
            &format!("server_in_flight{{{server}}} 3"),
            &format!("server_fids{{{server}}} 7"),
            &format!("server_kept_fids{{{server}}} 4"),
            &format!("server_waiting{{{server}}} 5"),
            &format!("server_rtt_seconds{{{server}}} 0.0015"),
            &format!("server_dials_total{{{server}}} 4"),
            &format!("server_ahead_bytes_total{{{server},end=\"dropped\"}} 20"),
            &format!(
                "server_info{{{server},dialect=\"9P2000.L\",modules=\"tls, zstd\",away=\"no\\nroute\"}} 1"
            ),
        ] {
            assert!(text.contains(&format!("\nninefold_mux_{line}\n")), "{line} in {text}");
        }
        assert!(
            text.lines().all(|line| line.starts_with("# ") || line.starts_with("ninefold_mux_")),
            "{text}"
        );
    }
}
