//! Wireshark's check of our messages: its dissector must read each message, in each dialect, to its last byte.
//!
//! Two captures per dialect: the messages of `golden/`, which cover all types, and a session of the command with the
//! server. A deliberately corrupt message must be found, or the check itself fails.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::guest::{Scratch, scratch};
use crate::packages;
use crate::recorder::{HEADS, Message, Recorder, capture};
use crate::served::{Program, Served};
use crate::steps::{Failed, Steps};

pub fn run(steps: &mut Steps, program: &Program) -> Result<(), Failed> {
    if packages::program("tshark").is_none() {
        return Ok(()); // reported when the packages were looked up
    }
    steps.call("wireshark's dissector", "cargo xtask dissector", || match all(program) {
        Ok(count) => {
            println!("{count} messages read to their last byte");
            true
        }
        Err(why) => {
            eprintln!("{why}");
            false
        }
    })
}

fn all(program: &Program) -> Result<usize, String> {
    let place = scratch("dissector")?;
    let mut count = 0;
    for (dialect, short) in [("9P2000.L", "L"), ("9P2000.u", "u"), ("9P2000", "9P2000")] {
        let golden = golden(dialect)?;
        bent_is_found(&place.0, dialect, &golden)?;
        count += check(&place.0, dialect, "golden", &golden)?;
        let live = live(program, &place, short)?;
        let kinds: std::collections::BTreeSet<u8> = live.iter().map(|message| message.bytes[4]).collect();
        if kinds.len() < LEAST_KINDS {
            return Err(format!(
                "{dialect}: the command said only {} kinds of messages: {kinds:?}",
                kinds.len()
            ));
        }
        count += check(&place.0, dialect, "command and server", &live)?;
    }
    Ok(count)
}

/// Returns all golden messages of a dialect. Version messages come first, and the last of them selects the dialect.
fn golden(dialect: &str) -> Result<Vec<Message>, String> {
    let path = crate::root().join("golden/messages.txt");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lines = text.lines().filter_map(|line| line.split_once(' ')).filter(|(of, _)| *of == dialect);
    let mut messages = Vec::new();
    for (_, hex) in lines {
        let digits = (0..hex.len()).step_by(2).map(|at| hex.get(at..at + 2));
        let bytes = digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect::<Option<Vec<u8>>>();
        let bytes = bytes.filter(|bytes| bytes.len() >= 7);
        messages.push(bytes.ok_or_else(|| format!("golden/messages.txt: {hex}"))?);
    }
    messages.extend([version(100, dialect), version(101, dialect)]);
    // 9P2000.L has no Rerror.
    messages.retain(|bytes| bytes[4] != 107 || dialect != "9P2000.L");
    messages.sort_by_key(|bytes| ![100, 101].contains(&bytes[4]));
    let message = |bytes: Vec<u8>| Message { connection: 0, from_client: bytes[4].is_multiple_of(2), bytes };
    Ok(messages.into_iter().map(message).collect())
}

/// `size[4] Tversion tag[2] msize[4] version[s]`
fn version(kind: u8, dialect: &str) -> Vec<u8> {
    let mut bytes = (13 + dialect.len() as u32).to_le_bytes().to_vec();
    bytes.extend([kind, 0xff, 0xff, 0, 0x20, 0, 0, dialect.len() as u8, 0]);
    bytes.extend(dialect.as_bytes());
    bytes
}

/// Records a session in which the command uses all operations of a dialect.
fn live(program: &Program, place: &Scratch, dialect: &str) -> Result<Vec<Message>, String> {
    let (disk, local) = (place.0.join(format!("disk-{dialect}")), place.0.join(format!("local-{dialect}")));
    for dir in [&disk, &local] {
        fs::create_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let served = Served::start(program, &format!("disk:{}", disk.display()), &[])?;
    let recorder = Recorder::start(served.port).map_err(|e| e.to_string())?;
    let script = WORK.replace("LINK", if dialect == "9P2000" { "true" } else { "ln -s target tree/link" });
    let mut shell = Command::new("sh");
    shell.args(["-euc", &script]).current_dir(&local);
    shell.env("ninefold", &program.0).env("NINEFOLD_SERVER", format!("tcp!127.0.0.1!{}", recorder.port));
    shell.env("NINEFOLD_DIALECT", dialect).env("NINEFOLD_MSIZE", "8192").env("NINEFOLD_CONFIG", "/dev/null");
    let output = shell.output().map_err(|e| format!("sh: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the command's work in {dialect}: {}\n{said}", output.status));
    }
    Ok(recorder.take())
}

/// Checks that wireshark reads each message as that message, to its last byte, without complaint. Returns the number of
/// messages.
fn check(place: &Path, dialect: &str, what: &str, messages: &[Message]) -> Result<usize, String> {
    let found = dissect(place, dialect, messages)?;
    let complaints: Vec<String> =
        found.iter().flatten().map(|complaint| format!("  {complaint}\n")).collect();
    if complaints.is_empty() {
        return Ok(messages.len());
    }
    Err(format!(
        "{dialect}, {what}: {} of {} messages\n{}",
        complaints.len(),
        messages.len(),
        complaints.concat()
    ))
}

/// Checks the check: of two corrupt messages both must be found, and nothing else.
fn bent_is_found(place: &Path, dialect: &str, golden: &[Message]) -> Result<(), String> {
    let mut bent: Vec<Message> = Vec::new();
    for message in golden.iter().filter(|message| [110, 120].contains(&message.bytes[4])) {
        let mut bytes = message.bytes.clone();
        match bytes[4] {
            110 => bytes[15] += 1, // a Twalk that announces one name more than it has
            _ => {
                // a Tclunk with an extra byte after its fid
                bytes.push(0);
                bytes[0] += 1;
            }
        }
        bent.push(Message { bytes, ..*message });
    }
    let found = dissect(place, dialect, &bent)?;
    if found.len() >= 2 && found.iter().all(Option::is_some) {
        return Ok(());
    }
    Err(format!("bent messages were not all found: {found:?}"))
}

/// Returns wireshark's complaint, if any, about each message.
fn dissect(place: &Path, dialect: &str, messages: &[Message]) -> Result<Vec<Option<String>>, String> {
    let file = place.join("capture.pcap");
    fs::write(&file, capture(messages)).map_err(|e| format!("{}: {e}", file.display()))?;
    let tshark = packages::program("tshark").ok_or("tshark is not there")?;
    let output = Command::new(tshark).arg("-r").arg(&file).args(["-T", "pdml"]).output();
    let output = output.map_err(|e| format!("tshark: {e}"))?;
    if !output.status.success() {
        return Err(format!("tshark: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let packets: Vec<&str> = text.split("<packet>").skip(1).collect();
    if packets.len() != messages.len() {
        return Err(format!("tshark has read {} of {} packets", packets.len(), messages.len()));
    }
    Ok(packets
        .iter()
        .zip(messages)
        .map(|(packet, message)| complaint(packet, dialect, &message.bytes))
        .collect())
}

/// Returns the complaint about a message, from wireshark's tree of the packet.
fn complaint(packet: &str, dialect: &str, bytes: &[u8]) -> Option<String> {
    let kind = bytes[4];
    if UNKNOWN.contains(&kind) {
        return None;
    }
    let says = |what: &str| Some(format!("message {kind} of {} bytes: {what}: {}", bytes.len(), hex(bytes)));
    let Some((_, fields)) = packet.split_once("<proto name=\"9p\"") else { return says("not read as 9P") };
    let shown = |name: &str| {
        let (_, rest) = fields.split_once(&format!("<field name=\"9p.{name}\""))?;
        attribute(rest.split('>').next()?, "show")?.parse().ok()
    };
    if (shown("msglen"), shown("msgtype")) != (Some(bytes.len()), Some(usize::from(kind))) {
        return says("read as another");
    }
    if packet.contains("_ws.malformed") || packet.contains("_ws.expert") {
        return if faulty(dialect, bytes) { None } else { says("malformed") };
    }
    // For lengths of strings wireshark counts the header twice.
    let fields = fields.split("<field ").skip(1).filter(|field| !field.contains("name=\"9p.paramsz\""));
    let (mut end, mut left) = (HEADS, 0);
    for field in fields.filter_map(|field| field.split('>').next()) {
        let number = |name: &str| attribute(field, name).and_then(|digits| digits.parse().ok()).unwrap_or(0);
        if field.contains("name=\"9p.message_data\"") {
            left += number("size");
        }
        end = end.max(number("pos") + number("size"));
    }
    let short = extension(dialect, bytes).map_or(0, |length| length.saturating_sub(4));
    let whole = HEADS + bytes.len();
    if end != whole && end + short != whole {
        return says(&format!("read to byte {}", end - HEADS));
    }
    if Some(left) == unread(dialect, bytes) {
        None
    } else {
        says(&format!("{left} bytes are not of this message"))
    }
}

/// Returns how many bytes at the end of a message wireshark 4.0 does not parse, although they belong there, and shows
/// as raw data.
fn unread(dialect: &str, bytes: &[u8]) -> Option<usize> {
    let extended = dialect == "9P2000.u";
    match bytes[4] {
        7 | 50 => Some(4),                       // Rlerror: ecode[4]; Tfsync: datasync[4]
        108 => Some(2),                          // Tflush: oldtag[2]
        102 if dialect != "9P2000" => Some(4),   // Tauth: n_uname[4]
        107 if extended => Some(4),              // Rerror: errno[4]
        125 if extended => behind(bytes, 50, 4), // Rstat: extension[s] n_uid[4] n_gid[4] n_muid[4]
        126 if extended => behind(bytes, 54, 4), // Twstat: the same
        _ => Some(0),
    }
}

/// Whether wireshark 4.0 reports this valid message as malformed. In Tgetlock and Rgetlock it expects the flags of a
/// Tlock, which these messages do not have. In a Tcreate of .u it assumes that every extension is four bytes long.
fn faulty(dialect: &str, bytes: &[u8]) -> bool {
    [54, 55].contains(&bytes[4]) || extension(dialect, bytes).is_some_and(|length| length < 4)
}

/// Returns the length of the extension of a Tcreate in .u: `fid[4] name[s] perm[4] mode[1] extension[s]`.
fn extension(dialect: &str, bytes: &[u8]) -> Option<usize> {
    let create = dialect == "9P2000.u" && bytes[4] == 114;
    if create { behind(bytes, 11, 1)?.checked_sub(4 + 1 + 2) } else { None }
}

/// Returns the number of bytes after `count` strings, the first of which starts at `at`.
fn behind(bytes: &[u8], mut at: usize, count: usize) -> Option<usize> {
    for _ in 0..count {
        at += 2 + usize::from(u16::from_le_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    }
    bytes.len().checked_sub(at)
}

fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = element.split_once(&format!(" {name}=\""))?;
    rest.split('"').next()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(80).map(|byte| format!("{byte:02x}")).collect()
}

/// Message types of our streaming extension.
const UNKNOWN: &[u8] = &[128, 129, 130, 131, 132, 133];

/// Minimum number of message types. In 9P2000 nearly all messages concern files.
const LEAST_KINDS: usize = 20;

/// A script that uses all operations of the command. `LINK` creates a link in dialects that have links.
const WORK: &str = "
mkdir -p tree/below
echo small >tree/below/small
head -c 100000 /dev/zero >tree/large
LINK
$ninefold put -r tree :/
$ninefold ls -l :/tree
$ninefold tree :/
$ninefold stat :/tree/large
$ninefold cat :/tree/large | cmp - tree/large
$ninefold get -r :/tree back
diff -r --no-dereference tree back
$ninefold mkdir -p :/new/dir
echo more | $ninefold write --create :/new/dir/file
$ninefold mv :/new/dir/file :/new/dir/moved
$ninefold cp :/new/dir/moved :/new/dir/copy
! $ninefold cat :/none 2>/dev/null
$ninefold rm :/new/dir/copy
$ninefold rm -r :/new :/tree
test -z \"$($ninefold ls :/)\"
";
