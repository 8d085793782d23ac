//! nine-io
