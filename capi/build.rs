//! Sets the soname of the shared library to the first interface version. An incompatible version will get another name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libninefold.so.0");
}
