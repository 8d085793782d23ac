//! Fuzzing: any bytes on the disks, with valid sums.
//!
//! In: bytes from a fuzzer. Out: nothing. A panic or an endless loop is a finding.

#[cfg(test)]
mod found;
mod image;

pub use image::image;

pub use crate::lease::fuzz::lease;

use crate::item::{CookieEntry, DumpRecord, FileExtent, InodeAttributes, ItemKey, NameEntry, UserUsage};
use crate::tree::node::{self, NodeMut, NodeRef};

/// Decodes any bytes as each structure on the disks of an archive.
pub fn formats(data: &[u8]) {
    crate::cw::fuzz::formats(data);
    items(data);
    for is_leaf in [true, false] {
        nodes(data, is_leaf);
    }
}

/// A decoded value must encode to the same bytes.
fn items(data: &[u8]) {
    if let Some(it) = InodeAttributes::decode(data) {
        assert_eq!(it.encode(), data);
    }
    if let Some(it) = FileExtent::decode(data) {
        assert_eq!(it.encode(), data);
        assert_eq!(it.split(it.count - 1, 1).count, 1);
    }
    if let Some(it) = NameEntry::decode(data) {
        assert_eq!(it.encode(), data);
    }
    if let Some(it) = CookieEntry::decode(data) {
        assert_eq!(it.encode(), data);
    }
    if let Some(it) = DumpRecord::decode(data) {
        assert_eq!(it.encode(), data);
        assert!(!it.day.dump_name(it.number).is_empty());
    }
    if let Some(it) = UserUsage::decode(data) {
        assert_eq!(it.encode(), data);
    }
    if let Some(what) = ItemKey::parse(data) {
        assert_eq!(&*what.key(), data);
    }
    let _ = crate::users::UserTable::parse(&String::from_utf8_lossy(data));
}

/// A valid node can be read, and each of its keys is found; after a change it is valid again.
fn nodes(data: &[u8], is_leaf: bool) {
    read_node(data, is_leaf);
    // Random bytes are hardly ever a node, so create one and change some of its bytes.
    let Some((edits, cells)) = data.split_first_chunk::<8>() else { return };
    let mut content = vec![0; 1024];
    let mut node = NodeMut::empty(&mut content, u8::from(!is_leaf));
    for cell in cells.chunks(23) {
        let (key, value) = cell.split_at(cell.len() / 2);
        let value = if is_leaf { value } else { &[7; node::POINTER] };
        let key = if is_leaf || node.node().len() > 0 { key } else { &[] };
        match node.node().search(key) {
            Err(i) if node.node().fits(node::size(key, value)) => node.insert(i, key, value),
            _ => {}
        }
    }
    for (n, edit) in edits.chunks(4).enumerate() {
        let at = usize::from(edit[0]) | usize::from(edit[1]) << 8;
        // Mostly in the head and the offsets.
        let most = if edit[2] < 128 { 64 } else { 1024 };
        if n == 0 || edit[2] & 1 == 0 {
            content[at % most] = edit[3];
        }
    }
    read_node(&content, is_leaf);
}

fn read_node(content: &[u8], is_leaf: bool) {
    if node::check(content, is_leaf).is_err() {
        return;
    }
    let it = NodeRef(content);
    assert_eq!(it.used() + it.free(), it.room());
    for (n, (key, value)) in node::cells(content).enumerate() {
        assert_eq!((it.search(key), it.value(n)), (Ok(n), value));
        items(key);
        items(value);
    }
    if !is_leaf {
        assert_eq!(node::children(content).count(), it.len());
    }
    let key = [9; 20];
    let mut changed = content.to_vec();
    let mut node = NodeMut(&mut changed);
    match node.node().search(&key) {
        Err(i) if i > 0 && node.node().fits(node::size(&key, &[3; node::POINTER])) => {
            node.insert(i, &key, &[3; node::POINTER]);
        }
        _ if it.len() > 1 => node.remove(it.len() - 1),
        _ => {}
    }
    node::check(&changed, is_leaf).expect("what is changed is a node still");
}
