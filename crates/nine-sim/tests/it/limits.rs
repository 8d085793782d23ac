//! Compares the page of limits (docs/limits.md) with the constants.

use nine_io::changes::READERS_MAX;
use nine_io::limits::{PrincipalClass, principal_ceiling};
use nine_io::server::locks::{FILE_LOCKS_MAX, LOCKS_MAX};
use nine_io::server::xattr::{XATTR_BYTES_MAX, XATTR_SIZE_MAX};
use nine_io::server::{
    BUDGET, CEILING, FIDS_ALL, FIDS_FLOOR, FLOOR, GREETING, HANDSHAKE, OPENS_FLOOR, OUTSTANDING, SHORT,
    TURN_BYTES, TURN_MESSAGES,
};
use nine_mux::UPSTREAM_FIDS_MAX;
use nine_proto::session::server::Limits;

const PAGE: &str = include_str!("../../../../docs/limits.md");

/// Formats a number as the page does: `1,048,576`.
fn number(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the cells of the row with this name.
fn row(name: &str) -> Vec<&'static str> {
    let rows =
        PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.strip_prefix(name)?.strip_prefix(" | "));
    let [row] = rows.collect::<Vec<_>>()[..] else { panic!("docs/limits.md has not one row `{name}`") };
    row.split('|').map(str::trim).collect()
}

#[test]
fn each_shared_limit_has_the_numbers_of_the_code_on_its_page() {
    let all = [
        ("fids", number(Limits::default().fids), FIDS_ALL),
        ("fids of clients on one connection to a mounted server", String::new(), UPSTREAM_FIDS_MAX),
        ("readers of `#changes`, of one server or one name space", String::new(), READERS_MAX),
        ("record locks on one file", String::new(), FILE_LOCKS_MAX),
        ("record locks of one server", String::new(), LOCKS_MAX),
        ("bytes of extended attributes that fids hold, of one server", String::new(), XATTR_BYTES_MAX),
    ];
    let shared =
        PAGE.split("## ").find(|part| part.starts_with("Shared limits")).expect("the page has this part");
    assert_eq!(shared.lines().filter(|line| line.starts_with("| ")).count(), 1 + all.len());
    for (name, connection, capacity) in all {
        let classes = [PrincipalClass::Unproven, PrincipalClass::Proven, PrincipalClass::Owner];
        let principals = classes.map(|class| number(principal_ceiling(capacity, class))).join("; ");
        assert_eq!(row(name)[..3], [connection, principals, number(capacity)], "{name}");
    }
    assert!(row("fids")[3].contains(&format!(" {FIDS_FLOOR} fids")));
}

#[test]
fn each_limit_of_a_connection_has_the_numbers_of_the_code_on_its_page() {
    const KIB: usize = 1024;
    const MIB: usize = 1024 * KIB;
    for (name, numbers) in [
        ("outstanding requests", vec![number(OUTSTANDING)]),
        (
            "bytes queued or promised",
            vec![
                format!("{} KiB always", FLOOR / KIB),
                format!("{} MiB", CEILING / MIB),
                format!("{} KiB", SHORT as usize / KIB),
            ],
        ),
        ("bytes of all connections above their 192 KiB", vec![format!("{} MiB", BUDGET / MIB)]),
        (
            "open files of servers that have descriptors for them (`disk`)",
            vec![format!("{OPENS_FLOOR} always")],
        ),
        ("one extended attribute", vec![format!("{} KiB", XATTR_SIZE_MAX / KIB)]),
        ("one time slice", vec![format!("{TURN_MESSAGES} messages"), format!("{} KiB", TURN_BYTES / KIB)]),
        (
            "time until Tversion",
            vec![format!("{} s (", GREETING.as_secs()), format!(": {} s", HANDSHAKE.as_secs())],
        ),
    ] {
        let cell = row(name)[0];
        numbers.iter().for_each(|number| assert!(cell.contains(number), "{name}: {number}"));
    }
}
