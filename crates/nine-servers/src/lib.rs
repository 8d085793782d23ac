//! nine-servers
