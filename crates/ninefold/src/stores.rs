//! Worms in object stores: what `s3"bucket/prefix"` stands for in an expression.
//!
//! In: the name. Out: the device; or, where this program was built without the feature `s3`, words that say so.

use nine_block::{Arg, Making, Table};

/// Makes the word known.
pub fn know(table: &mut Table, read_only: bool) {
    table.letter("s3", move |arg| open(arg, read_only));
}

#[cfg(feature = "s3")]
fn open(arg: &Arg, read_only: bool) -> Making {
    use std::sync::Arc;

    use nine_block::{Device, Error, Kind};
    use nine_store::{Options, Patience, Place, S3, Store};

    let wrong = |text: String| Error::new(Kind::Unsupported, text);
    let name = match arg {
        Arg::Text(name) => Ok(name.clone()),
        _ => Err(wrong("the name of a bucket is expected: s3\"bucket/prefix\"".into())),
    };
    Box::pin(async move {
        let name = name?;
        let place: Place = name.parse().map_err(wrong)?;
        let said = format!("s3\"{}\"", name.split('?').next().unwrap_or_default());
        let objects = S3::new(&place).map_err(|text| wrong(text).of(&said))?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let options = Options {
            name: said,
            sectors: place.sectors,
            read_only,
            patience: place.patience.map_or_else(Patience::default, Patience),
            who: format!("{host}, process {}", std::process::id()),
        };
        Ok(Arc::new(Store::open(Arc::new(objects), options).await?) as Arc<dyn Device>)
    })
}

#[cfg(not(feature = "s3"))]
fn open(_: &Arg, _: bool) -> Making {
    use nine_block::{Error, Kind};

    let text = "this program was built without object stores: cargo build --features s3";
    Box::pin(async move { Err(Error::new(Kind::Unsupported, text)) })
}
