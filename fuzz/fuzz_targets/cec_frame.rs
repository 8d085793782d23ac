//! libFuzzer drives `nine_fuzz::cec_frame`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::cec_frame(data));
