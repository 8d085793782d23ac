//! The rules of a [`Device`], as a function that checks any device.
//!
//! In: a device, and eight of its sectors that may be written. Out: nothing, or a message about the first violated
//! rule. The rules are those of [`Device`], [`Op`] and [`Proof`].

use bytes::Bytes;

#[cfg(doc)]
use crate::device::Op;
use crate::device::{Device, Proof, SECTOR};
use crate::error::{Kind, Result};

/// Sectors that [`check`] reads and, unless the device is read-only, writes.
pub const SECTORS: u64 = 8;

/// Checks a device by its sectors from `at` on. On a write-once device they must be unwritten; on a read-only one they
/// must be readable.
///
/// # Errors
/// The violated rule, and the answer that was seen instead.
pub async fn check(device: &dyn Device, at: u64) -> std::result::Result<(), String> {
    let name = device.name();
    let fails = |rule: &str, seen: String| Err(format!("{name}: {rule}; seen: {seen}"));
    let shape = device.shape();
    let pattern: Bytes =
        (0..SECTORS * SECTOR).map(|n| (n / SECTOR * 31 + n + at) as u8).collect::<Vec<_>>().into();

    let written = device.write(at, pattern.clone()).await;
    match (shape.read_only, &written) {
        (false, Ok(_)) | (true, Err(_)) => {}
        _ => return fails("a device is written unless it is read only", format!("{:?}", written.map(drop))),
    }
    if let Err(error) = device.flush().await {
        return fails("a flush of a healthy device succeeds", error.to_string());
    }
    let there = match device.read(at, SECTORS).await {
        Ok(there) if shape.read_only || there == pattern => there,
        Ok(_) => return fails("what was written is read", "other bytes".into()),
        Err(error) => return fails("what was written is read", error.to_string()),
    };

    let whole = there.clone();
    let one = move |n: u64, sector: &[u8]| *sector == whole[(n * SECTOR) as usize..][..SECTOR as usize];
    for (rule, proof) in [
        ("a proof that holds changes nothing", Proof::new(1, one)),
        ("a proof that holds nowhere is no error: the bytes come", Proof::new(1, |_, _| false)),
        ("the same of all copies", Proof::new(1, |_, _| false).everywhere()),
        ("a proof of blocks larger than the read is no error", Proof::new(2 * SECTORS, |_, _| false)),
    ] {
        match device.read_proven(at, SECTORS, Some(proof)).await {
            Ok(bytes) if bytes == there => {}
            answer => return fails(rule, shown(answer)),
        }
    }

    match device.read(at, 0).await {
        Ok(bytes) if bytes.is_empty() => {}
        answer => return fails("a read of nothing is nothing", shown(answer)),
    }
    for (from, count) in [(shape.sectors, 1), (shape.sectors - 1, 2), (u64::MAX, 1), (1, u64::MAX)] {
        match device.read(from, count).await {
            Err(error) if error.kind == Kind::Range => {}
            answer => return fails("sectors that it does not have are out of range", shown(answer)),
        }
    }
    match device.look().await {
        Ok(_) if device.shape().sectors >= shape.sectors => Ok(()),
        Ok(_) => fails("a look does not make it smaller", format!("{} sectors", device.shape().sectors)),
        Err(error) => fails("a look at a healthy device succeeds", error.to_string()),
    }
}

fn shown(answer: Result<Bytes>) -> String {
    match answer {
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(error) => error.to_string(),
    }
}
