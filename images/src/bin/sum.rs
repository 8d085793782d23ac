//! A computation: `sum FILE RESULT` multiplies two matrices of whole numbers. In the file each line is a row, and an
//! empty line stands between both; the result is written the same way.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use nine_guest::machine::Partition;
use nine_guest::{Errno, Error, Result};

nine_guest::partition!(main);

/// Rows, all of them as long.
type Matrix = Vec<Vec<i64>>;

/// Bytes of a file, and numbers of a result: as many as 32 MiB hold, however they stand there.
const MOST: usize = 128 << 10;
const NUMBERS: usize = 128 << 10;

fn main(part: &mut Partition) -> Result<()> {
    let [_, from, to] = &part.args[..] else { return Err(images::usage("sum FILE RESULT")) };
    let text = part.space.read(from, MOST)?;
    let text = core::str::from_utf8(&text).map_err(|_| wrong("it is no text"))?;
    let (left, right) =
        text.split_once("\n\n").ok_or_else(|| wrong("no empty line stands between two matrices"))?;
    let product = product(&matrix(left)?, &matrix(right)?)?;
    let mut text = String::new();
    for row in &product {
        for (n, number) in row.iter().enumerate() {
            let blank = if n == 0 { "" } else { " " };
            // A String takes everything.
            let _ = write!(text, "{blank}{number}");
        }
        text.push('\n');
    }
    part.space.write(to, text.as_bytes())
}

fn matrix(text: &str) -> Result<Matrix> {
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<i64>>>();
    let rows =
        text.lines().map(numbers).collect::<Option<Matrix>>().ok_or_else(|| wrong("a word is no number"))?;
    match rows.first().map(Vec::len) {
        Some(len) if len > 0 && rows.iter().all(|row| row.len() == len) => Ok(rows),
        _ => Err(wrong("not all rows are as long")),
    }
}

fn product(left: &Matrix, right: &Matrix) -> Result<Matrix> {
    if left[0].len() != right.len() {
        return Err(wrong("a row of the first matrix is not as long as a column of the second one"));
    }
    if left.len() * right[0].len() > NUMBERS {
        return Err(Error::new(Errno::EFBIG, "the result is too large"));
    }
    let number = |row: &[i64], column: usize| {
        let terms = row.iter().zip(right).map(|(a, b)| a.checked_mul(b[column]));
        terms.reduce(|sum, term| sum?.checked_add(term?)).flatten()
    };
    let row = |row: &Vec<i64>| (0..right[0].len()).map(|column| number(row, column)).collect();
    left.iter().map(row).collect::<Option<Matrix>>().ok_or_else(|| wrong("a number is too large"))
}

fn wrong(why: &str) -> Error {
    Error::new(Errno::EINVAL, why)
}
