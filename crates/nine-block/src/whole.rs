//! Split operations: the whole ends when all parts have ended, with the first error.

use std::sync::Arc;

use bytes::Bytes;

use crate::device::{Done, Io};
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// Assembles the data of a read from that of its parts.
type ReadJoin = Box<dyn FnOnce(&Io, Vec<Bytes>) -> Bytes + Send>;

/// The state of a split operation.
struct SplitRequest {
    io: Option<(Io, ReadJoin)>,
    parts: Vec<Bytes>,
    left: usize,
    error: Option<Error>,
}

/// Splits an operation into at least one part. `part` creates each from the whole, its index and its callback.
pub(crate) fn split(
    io: Io,
    parts: usize,
    part: impl Fn(&Io, usize, Done) -> Io,
    join: impl FnOnce(&Io, Vec<Bytes>) -> Bytes + Send + 'static,
) -> Vec<Io> {
    assert!(parts > 0, "an operation of no parts never ends");
    let whole = SplitRequest { io: None, parts: vec![Bytes::new(); parts], left: parts, error: None };
    let whole = Arc::new(Mutex::new(whole));
    let all = (0..parts).map(|number| part(&io, number, told(whole.clone(), number))).collect();
    lock(&whole).io = Some((io, Box::new(join)));
    all
}

/// Returns the callback of a part.
fn told(whole: Arc<Mutex<SplitRequest>>, number: usize) -> Done {
    Box::new(move |result: Result<Bytes>| {
        let mut whole = lock(&whole);
        match result {
            Ok(data) => whole.parts[number] = data,
            Err(error) => whole.error = whole.error.take().or(Some(error)),
        }
        whole.left -= 1;
        if whole.left > 0 {
            return;
        }
        let (error, parts, ended) = (whole.error.take(), std::mem::take(&mut whole.parts), whole.io.take());
        drop(whole);
        let (io, join) = ended.expect("the last part ends once");
        let result = match error {
            Some(error) => Err(error),
            None => Ok(join(&io, parts)),
        };
        io.end(result);
    })
}

/// Concatenates the data of the parts.
pub(crate) fn in_order(_: &Io, parts: Vec<Bytes>) -> Bytes {
    parts.concat().into()
}
