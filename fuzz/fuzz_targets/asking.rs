//! libFuzzer drives `nine_fuzz::asking`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::asking(data));
