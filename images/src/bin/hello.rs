//! Says hello, and the words that it was started with: `hello WORD...`.

#![no_std]
#![no_main]

use core::fmt::Write;

use nine_guest::machine::Partition;

nine_guest::partition!(main);

fn main(part: &mut Partition) -> core::fmt::Result {
    write!(part.stdout, "hello from a machine:")?;
    for word in &part.args {
        write!(part.stdout, " {word}")?;
    }
    writeln!(part.stdout)
}
