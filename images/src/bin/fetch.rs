//! Prints what is at a place of the web: `fetch http://HOST[:PORT]/PATH`.

#![no_std]
#![no_main]

use nine_guest::Result;
use nine_guest::machine::Partition;

nine_guest::partition!(main);

fn main(part: &mut Partition) -> Result<()> {
    let [_, url] = &part.args[..] else { return Err(images::usage("fetch http://HOST[:PORT]/PATH")) };
    let url = url.clone();
    images::http::get(part, &url, |part, bytes| part.stdout.write(bytes))
}
