//! libFuzzer drives `nine_fuzz::rmsg`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::rmsg(data));
