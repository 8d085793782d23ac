//! The fuzz targets: plain functions of bytes, one per decoder and one per state machine.
//!
//! In: any bytes. A target must return: a panic, an overflow or an endless loop is a finding. A decoded value must also
//! be printable, and must be the same after it is encoded and decoded again. Two drivers feed the targets: ours
//! (`main.rs`), and libFuzzer (`fuzz_targets/`).

#![forbid(unsafe_code)]

mod acl;
mod aoe;
mod block;
mod cec;
mod certificate;
mod changes;
mod channel;
mod client;
mod control;
mod http;
mod il;
mod modules;
mod nonet;
mod part;
mod script;
mod server;

use nine_proto::frame::{self, HEADER, MSIZE_MAX, Split};
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Dialect, DirBuf, Dirent, Entries, Errno, Numeric, Tag};

/// A name, the function, and a divisor: when all targets run, a slow target gets so many times fewer inputs.
pub type Target = (&'static str, fn(&[u8]), u64);

/// Every target.
pub const TARGETS: &[Target] = &[
    ("tmsg", tmsg, 1),
    ("rmsg", rmsg, 1),
    ("entries", entries, 1),
    ("text", text, 1),
    ("certificate", certificate, 1),
    ("changes", changes, 1),
    ("script", script, 1),
    ("server", server, 1),
    ("client", client, 1),
    ("control", control, 20),
    ("frame9p", frame9p, 1),
    ("zstd", zstd, 50),
    ("tls", tls, 200),
    ("il", il, 4),
    ("nonet", nonet, 4),
    ("http", http, 1),
    ("expr", expr, 1),
    ("part", part, 1),
    ("labels", labels, 20),
    ("acl", acl, 1),
    ("archive-formats", archive_formats, 4),
    ("archive-image", archive_image, 500),
    ("archive-lease", archive_lease, 20),
    ("aoe-frame", aoe_frame, 1),
    ("aoe-target", aoe_target, 1),
    ("aoe-initiator", aoe_initiator, 4),
    ("cec-frame", cec_frame, 1),
    ("cec", cec, 4),
    ("ring", ring, 4),
    ("serving", serving, 50),
    ("asking", asking, 50),
    ("guest", guest, 10),
];

pub use acl::acl;
pub use aoe::{aoe_frame, aoe_initiator, aoe_target};
pub use block::{expr, labels};
pub use cec::{cec, cec_frame};
pub use certificate::certificate;
pub use changes::changes;
pub use channel::{asking, guest, ring, serving};
pub use client::client;
pub use control::control;
pub use http::http;
pub use il::il;
pub use modules::{frame9p, tls, zstd};
pub use nonet::nonet;
pub use part::part;
pub use script::script;
pub use server::server;

pub use nine_fs::fuzz::{formats as archive_formats, image as archive_image, lease as archive_lease};

/// A byte stream of T-messages, split into frames as by a transport, in every dialect.
pub fn tmsg(data: &[u8]) {
    each_frame(data, |frame, dialect| {
        let Ok((tag, message)) = Tmsg::decode(frame, dialect) else { return };
        let mut again = Vec::new();
        message.encode(tag, dialect, &mut again);
        let back = Tmsg::decode(&again, dialect).expect("what we encode, we decode");
        same(&again, back.0, &back.1.with_tag(tag), tag, &message.with_tag(tag));
    });
}

/// The same for R-messages, as a client receives them.
pub fn rmsg(data: &[u8]) {
    each_frame(data, |frame, dialect| {
        let Ok((tag, message)) = Rmsg::decode(frame, dialect) else { return };
        let mut again = Vec::new();
        message.encode(tag, dialect, &mut again);
        let back = Rmsg::decode(&again, dialect).expect("what we encode, we decode");
        same(&again, back.0, &back.1.with_tag(tag), tag, &message.with_tag(tag));
    });
}

/// Directory data after the header of an Rread or Rreaddir: parsed, and encoded again.
pub fn entries(data: &[u8]) {
    let Some(data) = data.get(HEADER + 4..) else { return };
    for dialect in DIALECTS {
        let mut dir = DirBuf::new(dialect, data.len(), std::sync::Arc::new(Numeric));
        let mut here = Vec::new();
        for (entry, stat) in Entries::new(data, dialect).map_while(Result::ok) {
            let attr = stat.map(|stat| stat.to_attr(dialect, &Numeric));
            if entry.cookie != 0 || !dialect.is_l() {
                let entry = Dirent { cookie: entry.cookie.max(1), ..entry };
                let full = !dir.push(&entry, attr.as_ref());
                here.push(entry.name);
                if full {
                    return;
                }
            }
        }
        here.retain(|name| dialect.is_l() || !matches!(*name, b"." | b".."));
        let back: Vec<&[u8]> = Entries::new(dir.bytes(), dialect).map(|e| e.expect("ours").0.name).collect();
        assert_eq!(back, here);
    }
}

/// Strings with a meaning: versions, error texts.
pub fn text(data: &[u8]) {
    let offered = [Dialect::L, Dialect::U, Dialect::P2000];
    if let Some(dialect) = Dialect::negotiate(data, &offered) {
        assert!(offered.contains(&dialect) && data.starts_with(b"9P2000"));
    }
    let _ = Errno::from_text(&String::from_utf8_lossy(data));
}

fn each_frame(data: &[u8], f: impl Fn(&[u8], Dialect)) {
    for dialect in DIALECTS {
        let mut rest = data;
        while let Ok(Split::Whole(size)) = frame::split(rest, MSIZE_MAX) {
            assert!((HEADER..=rest.len()).contains(&size), "a frame outside its bytes");
            f(&rest[..size], dialect);
            rest = &rest[size..];
        }
    }
}

fn same(frame: &[u8], back: Tag, again: &dyn std::fmt::Display, tag: Tag, message: &dyn std::fmt::Display) {
    assert_eq!(frame::split(frame, u32::MAX), Ok(Split::Whole(frame.len())), "size[4] is not the length");
    assert_eq!(back, tag);
    assert_eq!(again.to_string(), message.to_string());
}

const DIALECTS: [Dialect; 3] = [Dialect::P2000, Dialect::U, Dialect::L];
