//! Tells the linker of an image where `machine.ld` is.

fn main() {
    println!("cargo::rerun-if-changed=machine.ld");
    if let Some(here) = std::env::var_os("CARGO_MANIFEST_DIR").filter(|_| cfg!(feature = "machine")) {
        println!("cargo::rustc-link-search=native={}", here.display());
    }
}
