//! libFuzzer drives `nine_fuzz::script`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::script(data));
