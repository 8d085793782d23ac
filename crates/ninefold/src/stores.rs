//! Devices in object stores, which expressions name as `s3"bucket/prefix"`: worms, and compare-and-swap objects for
//! arbiters.
//!
//! In: the name, and the mode of opening. Out: the device. If the program was built without the feature `s3`, opening
//! fails with an error that says so.

use nine_block::{Arg, Making, Table};

use crate::disks::Open;

/// Registers the letter `s3` in a table of device letters.
pub fn know(table: &mut Table, how: Open) {
    table.letter("s3", move |arg| open(arg, how));
}

#[cfg(feature = "s3")]
fn open(arg: &Arg, how: Open) -> Making {
    use std::sync::Arc;

    use nine_block::{Device, Error, Kind};
    use nine_store::{Options, Patience, Place, S3, Slate, Store};

    use crate::archive::SILENCE;

    let wrong = |text: String| Error::new(Kind::Unsupported, text);
    let name = match arg {
        Arg::Text(name) => Ok(name.clone()),
        _ => Err(wrong("the name of a bucket is expected: s3\"bucket/prefix\"".into())),
    };
    Box::pin(async move {
        let name = name?;
        let mut place: Place = name.parse().map_err(wrong)?;
        if how == Open::Share {
            // A caller that wants to wait longer for an arbiter asks again.
            place.patience.get_or_insert(SILENCE);
        }
        let said = format!("s3\"{}\"", name.split('?').next().unwrap_or_default());
        let objects = Arc::new(S3::new(&place).map_err(|text| wrong(text).of(&said))?);
        let patience = place.patience.map_or_else(Patience::default, Patience);
        if how == Open::Share {
            return Ok(Arc::new(Slate::new(objects, said, patience)) as Arc<dyn Device>);
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let options = Options {
            name: said,
            sectors: place.sectors,
            read_only: how != Open::Write,
            patience,
            who: format!("{host}, process {}", std::process::id()),
        };
        Ok(Arc::new(Store::open(objects, options).await?) as Arc<dyn Device>)
    })
}

#[cfg(not(feature = "s3"))]
fn open(_: &Arg, _: Open) -> Making {
    use nine_block::{Error, Kind};

    let text = "this program was built without object stores: cargo build --features s3";
    Box::pin(async move { Err(Error::new(Kind::Unsupported, text)) })
}
