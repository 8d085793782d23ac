//! Operations that are split: the whole ends when all its parts have, with the first error.

use std::sync::Arc;

use bytes::Bytes;

use crate::device::{Done, Io};
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// Makes what was read of what the parts have read.
type Join = Box<dyn FnOnce(&Io, Vec<Bytes>) -> Bytes + Send>;

/// What of an operation is under way.
struct Whole {
    io: Option<(Io, Join)>,
    parts: Vec<Bytes>,
    left: usize,
    error: Option<Error>,
}

/// The parts of an operation, at least one: each made by `part` from the whole, its number and whoever is told.
pub(crate) fn split(
    io: Io,
    parts: usize,
    part: impl Fn(&Io, usize, Done) -> Io,
    join: impl FnOnce(&Io, Vec<Bytes>) -> Bytes + Send + 'static,
) -> Vec<Io> {
    assert!(parts > 0, "an operation of no parts never ends");
    let whole = Whole { io: None, parts: vec![Bytes::new(); parts], left: parts, error: None };
    let whole = Arc::new(Mutex::new(whole));
    let all = (0..parts).map(|number| part(&io, number, told(whole.clone(), number))).collect();
    lock(&whole).io = Some((io, Box::new(join)));
    all
}

/// Whoever is told of a part.
fn told(whole: Arc<Mutex<Whole>>, number: usize) -> Done {
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

/// One behind the other.
pub(crate) fn in_order(_: &Io, parts: Vec<Bytes>) -> Bytes {
    parts.concat().into()
}
