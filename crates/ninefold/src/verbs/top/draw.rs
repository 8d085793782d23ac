//! The display of `top` on a terminal, and as tables.

use nine_text::show_name;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};

use super::seen::Seen;
use crate::output::table;

/// Text around the tables.
pub struct Around<'a> {
    pub address: &'a str,
    /// The reason why the server is away, if it is.
    pub away: Option<&'a str>,
    pub is_paused: bool,
}

const SERVERS: [&str; 10] =
    ["SERVER", "9P", "CONNS", "REQ/s", "HALF <", "99 % <", "IN FLIGHT", "WAITING", "TO/s", "FROM/s"];
const CLIENTS: [&str; 8] = ["CLIENT", "USER", "9P", "REQ/s", "IN FLIGHT", "FIDS", "FROM/s", "TO/s"];

/// Formats tables as text, for output to a file or pipe.
pub fn tables(seen: &Seen) -> String {
    let with = |head: &[&str], rows: Vec<Vec<String>>| {
        let head = head.iter().map(|cell| (*cell).to_string()).collect();
        table(&[vec![head], rows].concat())
    };
    format!("{}\n{}", with(&SERVERS, servers(seen)), with(&CLIENTS, clients(seen)))
}

/// Draws the tables. Rows that do not fit are left out: those with the fewest requests.
pub fn draw(frame: &mut Frame<'_>, seen: &Seen, around: &Around<'_>) {
    let half = (frame.area().height.saturating_sub(4) / 2).max(1);
    let wanted = seen.servers.len().min(1000) as u16 + 1;
    let parts = [
        Constraint::Length(2),
        Constraint::Length(wanted.min(half.max(frame.area().height / 2))),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [top, above, _, below, foot] = Layout::vertical(parts).areas(frame.area());
    let total = |of: fn(&super::seen::Client) -> f64| seen.clients.iter().map(of).fold(0.0, |sum, n| sum + n);
    let said = match around.away {
        Some(why) => format!("away, tried again each second: {}", show_name(why.as_bytes())),
        None => format!(
            "{} clients, {} servers; {} requests/s, {} B/s from clients, {} B/s to them",
            seen.clients.len(),
            seen.servers.len(),
            short(total(|client| client.requests)),
            short(total(|client| client.received)),
            short(total(|client| client.sent)),
        ),
    };
    frame.render_widget(Line::from(format!("{}: {said}", around.address)), top);
    let widths =
        |columns: usize| [vec![Constraint::Min(12)], vec![Constraint::Length(9); columns - 1]].concat();
    let shown = |head: &[&'static str], rows: Vec<Vec<String>>| {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let rows = rows.into_iter().map(Row::new);
        Table::new(rows, widths(head.len())).header(Row::new(head.to_vec()).style(bold))
    };
    frame.render_widget(shown(&SERVERS, servers(seen)), above);
    frame.render_widget(shown(&CLIENTS, clients(seen)), below);
    let keys = if around.is_paused { "PAUSED   space: go on   q: quit" } else { "space: pause   q: quit" };
    frame.render_widget(Line::from(keys), foot);
}

fn servers(seen: &Seen) -> Vec<Vec<String>> {
    let row = |server: &super::seen::Server| {
        let name = match &server.away {
            Some(why) => format!("{}: {why}", server.name),
            None => server.name.clone(),
        };
        vec![
            name,
            server.dialect.clone(),
            server.connections.to_string(),
            short(server.requests),
            server.half.map_or("-".into(), time),
            server.most.map_or("-".into(), time),
            server.in_flight.to_string(),
            server.waiting.to_string(),
            short(server.sent),
            short(server.received),
        ]
    };
    seen.servers.iter().map(row).collect()
}

fn clients(seen: &Seen) -> Vec<Vec<String>> {
    let row = |client: &super::seen::Client| {
        vec![
            client.address.clone(),
            client.user.clone(),
            client.dialect.clone(),
            short(client.requests),
            client.in_flight.to_string(),
            client.fids.to_string(),
            short(client.received),
            short(client.sent),
        ]
    };
    seen.clients.iter().map(row).collect()
}

/// Formats a number with at most six characters, in powers of 1000.
fn short(mut number: f64) -> String {
    for unit in ["", "k", "M", "G", "T"] {
        if number < 999.95 {
            let digits = usize::from(number < 99.95 && number.fract() > 0.0);
            return format!("{number:.digits$}{unit}");
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

fn time(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros}us"),
        1000..1_000_000 => format!("{}ms", short(micros as f64 / 1e3)),
        _ => format!("{}s", short(micros as f64 / 1e6)),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::seen::{Client, Server};
    use super::*;

    fn seen(many: u64) -> Seen {
        let server = Server {
            name: "tcp!fs!564".into(),
            dialect: "9P2000.L".into(),
            connections: 1,
            in_flight: 3,
            waiting: 0,
            requests: 1234.5,
            sent: 0.0,
            received: 5e7,
            half: Some(256),
            most: Some(4096),
            away: None,
        };
        let client = |id| Client {
            id,
            address: format!("unix {id}"),
            user: "glenda".into(),
            dialect: "9P2000.L".into(),
            in_flight: 1,
            fids: 7,
            requests: 9.25,
            received: 100.0,
            sent: 2e6,
        };
        Seen { servers: vec![server], clients: (0..many).map(client).collect() }
    }

    fn drawn(width: u16, height: u16, seen: &Seen, around: &Around<'_>) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, seen, around)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn servers_stand_above_clients_with_short_numbers() {
        let around = Around { address: "unix:/run/x", away: None, is_paused: false };
        let text = drawn(110, 12, &seen(2), &around);
        let has = |words: &[&str]| {
            text.lines()
                .any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ").contains(&words.join(" ")))
        };
        assert!(
            has(&["tcp!fs!564", "9P2000.L", "1", "1.2k", "256us", "4.1ms", "3", "0", "0", "50M"]),
            "{text}"
        );
        assert!(has(&["unix", "1", "glenda", "9P2000.L", "9.2", "1", "7", "100", "2M"]), "{text}");
        assert!(
            text.contains("2 clients, 1 servers; 18.5 requests/s, 200 B/s from clients, 4M B/s to them"),
            "{text}"
        );
        assert!(text.contains("q: quit"), "{text}");
    }

    #[test]
    fn any_terminal_is_large_enough_and_who_is_away_is_said() {
        let around = Around { address: "unix:/run/x", away: Some("no\x1broute"), is_paused: true };
        for (width, height) in [(1, 1), (3, 2), (20, 5), (300, 4), (80, 200)] {
            drawn(width, height, &seen(1000), &around);
        }
        let text = drawn(120, 20, &Seen::default(), &around);
        assert!(
            text.contains(r"away, tried again each second: no\u{1b}route") && text.contains("PAUSED"),
            "{text}"
        );
    }

    #[test]
    fn numbers_stay_short() {
        for (number, text) in [
            (0.0, "0"),
            (0.04, "0.0"),
            (7.0, "7"),
            (12.34, "12.3"),
            (999.0, "999"),
            (999.96, "1.0k"),
            (99_940.0, "99.9k"),
            (1e6, "1M"),
            (3.3e15, "3P"),
        ] {
            assert_eq!(short(number), text);
        }
        assert_eq!([1, 2048, 33_554_432].map(time), ["1us", "2.0ms", "33.6s"]);
    }
}
