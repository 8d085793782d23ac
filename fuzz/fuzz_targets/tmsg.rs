//! libFuzzer drives `nine_fuzz::tmsg`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::tmsg(data));
