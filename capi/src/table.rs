//! Handles: unique numbers that stand for clients, files, streams and so on.
//!
//! Always holds: a number is never used again, not even after a fork: the child has a table of its own. So an invalid
//! handle is never confused with a valid one.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use nine_proto::Errno;

use crate::client::{Client, Dir, File};
use crate::fail::Fail;
use crate::mux::{Con, Mux};
use crate::stream::Stream;

/// The object of a handle.
#[derive(Clone)]
pub enum Object {
    Client(Arc<Client>),
    File(Arc<File>),
    Dir(Arc<Dir>),
    Stream(Arc<Stream>),
    Mux(Arc<Mux>),
    Con(Arc<Con>),
}

/// The handles of one process.
struct Table {
    process: u32,
    objects: Mutex<HashMap<u64, Object>>,
}

static TABLE: ArcSwapOption<Table> = ArcSwapOption::const_empty();
static NEXT: AtomicU64 = AtomicU64::new(1);

fn table() -> Arc<Table> {
    let process = std::process::id();
    loop {
        let now = TABLE.load_full();
        if let Some(table) = now.as_ref().filter(|table| table.process == process) {
            return table.clone();
        }
        // Objects from before a fork are leaked: their locks may be held by threads that do not exist here.
        mem::forget(now.clone());
        let new = Arc::new(Table { process, objects: Mutex::default() });
        TABLE.compare_and_swap(&now, Some(new));
    }
}

/// Creates a handle for an object.
pub fn insert(object: Object) -> u64 {
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    table().objects.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
    handle
}

/// Returns the object of a handle of any kind.
pub fn find(handle: u64) -> Result<Object, Fail> {
    let object = table().objects.lock().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned();
    object.ok_or_else(|| nothing(handle))
}

/// Returns the object and removes its handle.
pub fn remove(handle: u64) -> Result<Object, Fail> {
    let object = table().objects.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    object.ok_or_else(|| nothing(handle))
}

fn nothing(handle: u64) -> Fail {
    let text = match handle {
        0 => "no handle: what should have made it has failed".into(),
        _ if handle >= NEXT.load(Ordering::Relaxed) => format!("{handle} is no handle"),
        _ => format!("handle {handle} was closed, or made before a fork"),
    };
    Fail::new(Errno::EBADF, text)
}

/// The error for a handle of another kind.
pub fn other(handle: u64, wanted: &str) -> Fail {
    Fail::new(Errno::EBADF, format!("handle {handle} is no {wanted}"))
}

macro_rules! finders {
    ($($name:ident $kind:ident $object:ty, $wanted:literal;)*) => {$(
        pub fn $name(handle: u64) -> Result<Arc<$object>, Fail> {
            match find(handle)? {
                Object::$kind(object) => Ok(object),
                _ => Err(other(handle, $wanted)),
            }
        }
    )*};
}

finders! {
    client Client Client, "client";
    file File File, "open file";
    dir Dir Dir, "open directory";
    stream Stream Stream, "stream";
    mux Mux Mux, "mux";
    con Con Con, "connection of a mux";
}
