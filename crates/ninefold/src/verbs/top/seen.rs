//! Samples of `/mux/load` and `/mux/clients`, and the activity between two samples.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use nine_io::client::File;
use nine_text::show_name;
use serde_json::{Value, json};

/// A sample.
#[derive(Debug, Default)]
pub struct Look {
    /// Time by the clock of this process.
    pub at: Duration,
    servers: Vec<Row>,
    clients: Vec<Row>,
}

type Row = HashMap<String, String>;

/// The activity between two samples; rates are per second.
#[derive(Debug, Default)]
pub struct Seen {
    /// Servers, the one with the most requests first.
    pub servers: Vec<Server>,
    /// Clients, in the same order.
    pub clients: Vec<Client>,
}

/// The activity of an upstream server.
#[derive(Debug)]
pub struct Server {
    pub name: String,
    pub dialect: String,
    pub connections: u64,
    /// Requests that it has not answered.
    pub in_flight: u64,
    /// Requests that wait for a reconnect.
    pub waiting: u64,
    pub requests: f64,
    /// Bytes to it, and from it, per second.
    pub sent: f64,
    pub received: f64,
    /// Upper bounds of the median and of the 99th percentile of response times, microseconds.
    /// `None` without answers.
    pub half: Option<u64>,
    pub most: Option<u64>,
    /// The reason why it is disconnected.
    pub away: Option<String>,
}

/// The activity of a client.
#[derive(Debug)]
pub struct Client {
    pub id: u64,
    pub address: String,
    pub user: String,
    pub dialect: String,
    pub in_flight: u64,
    pub fids: u64,
    pub requests: f64,
    /// Bytes from it, and to it, per second.
    pub received: f64,
    pub sent: f64,
}

impl Look {
    /// Takes a sample; `mux` is the directory of the files.
    pub async fn at(mux: &File, at: Duration) -> Result<Self> {
        let servers = rows(&super::super::text(mux, "load").await?);
        let clients = rows(&super::super::text(mux, "clients").await?);
        Ok(Self { at, servers, clients })
    }

    /// Returns the activity since an earlier sample.
    pub fn since(&self, before: &Self) -> Seen {
        let seconds = self.at.saturating_sub(before.at).as_secs_f64().max(1e-3);
        let servers = of_both(&before.servers, &self.servers, |then, now| {
            let rate = |key| count(now, key).saturating_sub(count(then, key)) as f64 / seconds;
            let [then, times] = [then, now].map(times);
            let times: Vec<u64> =
                times.iter().enumerate().map(|(n, all)| all.saturating_sub(at(&then, n))).collect();
            Server {
                name: word(now, "name"),
                dialect: word(now, "dialect"),
                connections: count(now, "connections"),
                in_flight: count(now, "in-flight"),
                waiting: count(now, "waiting"),
                requests: rate("requests"),
                sent: rate("sent"),
                received: rate("received"),
                half: within(&times, 50),
                most: within(&times, 99),
                away: Some(word(now, "away")).filter(|why| why != "-"),
            }
        });
        let clients = of_both(&before.clients, &self.clients, |then, now| {
            let rate = |key| count(now, key).saturating_sub(count(then, key)) as f64 / seconds;
            Client {
                id: count(now, "id"),
                address: word(now, "address"),
                user: word(now, "user"),
                dialect: word(now, "dialect"),
                in_flight: count(now, "in-flight"),
                fids: count(now, "fids"),
                requests: rate("requests"),
                received: rate("received"),
                sent: rate("sent"),
            }
        });
        let mut seen = Seen { servers, clients };
        // The sort is stable, so rows with equal rates keep their order.
        seen.servers.sort_by(|a, b| b.requests.total_cmp(&a.requests));
        seen.clients.sort_by(|a, b| b.requests.total_cmp(&a.requests));
        seen
    }
}

impl Seen {
    pub fn json(&self) -> Value {
        let servers = self.servers.iter().map(|server| {
            json!({
                "name": server.name, "dialect": server.dialect, "connections": server.connections,
                "in-flight": server.in_flight, "waiting": server.waiting, "requests": server.requests,
                "sent": server.sent, "received": server.received, "p50-us": server.half,
                "p99-us": server.most, "away": server.away,
            })
        });
        let clients = self.clients.iter().map(|client| {
            json!({
                "id": client.id, "address": client.address, "user": client.user, "dialect": client.dialect,
                "in-flight": client.in_flight, "fids": client.fids, "requests": client.requests,
                "received": client.received, "sent": client.sent,
            })
        });
        json!({ "servers": servers.collect::<Vec<_>>(), "clients": clients.collect::<Vec<_>>() })
    }
}

/// Parses a table: cells separated by tabs, below a line with column names.
fn rows(text: &str) -> Vec<Row> {
    let mut lines = text.lines().map(|line| line.split('\t').map(String::from));
    let columns: Vec<String> = lines.next().map(Iterator::collect).unwrap_or_default();
    lines.map(|line| columns.iter().cloned().zip(line).collect()).collect()
}

/// Calls `of` for each row of now, with the earlier row of the same id or an empty one.
fn of_both<T>(then: &[Row], now: &[Row], of: impl Fn(&Row, &Row) -> T) -> Vec<T> {
    let id = |row: &Row| row.get("id").cloned().unwrap_or_default();
    let then: HashMap<String, &Row> = then.iter().map(|row| (id(row), row)).collect();
    let nothing = Row::new();
    now.iter().map(|row| of(then.get(&id(row)).copied().unwrap_or(&nothing), row)).collect()
}

fn count(row: &Row, key: &str) -> u64 {
    row.get(key).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns a cell, escaped: it must not move the cursor.
fn word(row: &Row, key: &str) -> String {
    row.get(key).map_or("-".into(), |text| show_name(text.as_bytes()).to_string())
}

/// Returns a histogram of response times: bucket n counts answers below 2^n microseconds that are
/// not in a lower bucket.
fn times(row: &Row) -> Vec<u64> {
    row.get("times").map_or(Vec::new(), |text| text.split(',').filter_map(|n| n.parse().ok()).collect())
}

fn at(times: &[u64], n: usize) -> u64 {
    times.get(n).copied().unwrap_or(0)
}

/// Returns a bound below which `percent` of the answers are, in microseconds: a power of two.
fn within(times: &[u64], percent: u64) -> Option<u64> {
    let all: u64 = times.iter().fold(0, |sum, n| sum.saturating_add(*n));
    let mut left = u128::from(all) * u128::from(percent);
    let most = times.iter().position(|n| {
        let these = u128::from(*n) * 100;
        let is_there = these > 0 && these >= left;
        left = left.saturating_sub(these);
        is_there
    });
    most.map(|n| 1u64.checked_shl(n as u32).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at: u64, load: &str, clients: &str) -> Look {
        Look { at: Duration::from_secs(at), servers: rows(load), clients: rows(clients) }
    }

    #[test]
    fn what_has_gone_on_is_the_difference_of_two_looks() {
        let head = "id\tname\trequests\tsent\treceived\ttimes\taway\tin-flight\tnews\n";
        let before = look(5, &format!("{head}1\ta\t10\t0\t100\t0,0,5\t-\t0\t?\n"), "id\trequests\n9\t100\n");
        let after = look(
            7,
            &format!("{head}2\tb\x1b[2J\t50\t8\t8\t1\tgone\t3\t?\n1\ta\t30\t20\t2100\t0,98,5,0,2\t-\t1\t?\n"),
            "id\trequests\tuser\n9\t90\tglenda\n10\t4\tann\n",
        );
        let seen = after.since(&before);
        let [b, a] = &seen.servers[..] else { panic!("{seen:?}") };
        assert_eq!((a.requests, a.sent, a.received, a.in_flight), (10.0, 10.0, 1000.0, 1));
        assert_eq!((a.half, a.most, &a.away), (Some(2), Some(16), &None));
        assert_eq!((b.requests, b.half, b.away.as_deref()), (25.0, Some(1), Some("gone")));
        assert!(!b.name.contains('\x1b'));
        // A client whose counters restarted must not get a negative rate.
        let requests: Vec<_> = seen.clients.iter().map(|client| (client.id, client.requests)).collect();
        assert_eq!(requests, [(10, 2.0), (9, 0.0)]);
        assert_eq!(seen.json()["servers"][0]["p50-us"], 1);
    }

    #[test]
    fn whatever_a_server_says_is_shown() {
        let head = "id\ttimes\trequests\n";
        for load in ["", "\n", "\t\n\t\t\t\n", &format!("{head}\t{}", "18446744073709551615,".repeat(90))] {
            let seen = look(1, load, load).since(&look(1, "id", ""));
            assert!(seen.servers.len() < 3, "{seen:?}");
        }
        assert_eq!(
            (within(&[], 50), within(&[0, 0], 99), within(&[1; 70], 99)),
            (None, None, Some(u64::MAX))
        );
    }
}
