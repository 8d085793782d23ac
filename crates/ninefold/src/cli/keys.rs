//! Command line of `keys`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Create a certificate authority, certificates, and a revocation list
///
/// docs/keys.md is a guide of five minutes. Keys have mode 0600, their directory 0700, and no existing key or
/// certificate is overwritten. Keys are not encrypted: when a server starts by itself, nobody is there to type a
/// password.
#[derive(Debug, Args)]
pub struct Keys {
    /// Directory of the authority [default: ~/.config/ninefold/keys]
    #[arg(long, value_name = "DIR", env = "NINEFOLD_KEYS", global = true)]
    pub dir: Option<PathBuf>,
    #[command(subcommand)]
    pub verb: KeysVerb,
}

#[derive(Debug, Subcommand)]
pub enum KeysVerb {
    /// Create the authority, in a new directory
    Init {
        /// Name of the authority, which no other has [default: ninefold- and eight digits]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Lifetime in days
        #[arg(long, value_name = "N", default_value_t = 3650, value_parser = days())]
        days: u32,
    },
    /// Create the key and certificate of a server
    Server {
        /// All names and addresses by which clients dial it; the first one names the certificate
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Lifetime in days
        #[arg(long, value_name = "N", default_value_t = 365, value_parser = days())]
        days: u32,
    },
    /// Create the key and certificate of a user or a program
    Client {
        /// Name of the user on servers: a user name or an e-mail address
        #[arg(value_name = "USER")]
        user: String,
        /// Lifetime in days
        #[arg(long, value_name = "N", default_value_t = 365, value_parser = days())]
        days: u32,
    },
    /// Renew a key and certificate; the old certificate stays valid until it expires
    Renew {
        /// NAME, or servers/NAME or clients/NAME if both exist
        #[arg(value_name = "NAME")]
        name: String,
        /// Lifetime in days
        #[arg(long, value_name = "N", default_value_t = 365, value_parser = days())]
        days: u32,
    },
    /// Revoke the certificates of a server or a client
    Revoke {
        /// NAME, or servers/NAME or clients/NAME if both exist
        #[arg(value_name = "NAME")]
        name: String,
        /// Revoke only renewed certificates: the newest one stays valid
        #[arg(long)]
        old: bool,
    },
    /// List the certificates, with expiry and revocation
    List {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Show the contents of certificates, keys and revocation lists
    Show {
        /// PEM files
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
}

/// Parses the days that a certificate is valid. Each verb sets its own default: the default of a generic struct is one
/// static for all its instances, so the first verb's default would apply to all.
fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=36_500)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct KeysLine {
        #[command(subcommand)]
        verb: KeysVerb,
    }

    #[test]
    fn each_verb_has_a_lifetime_of_its_own() {
        let days = |line: &str| match KeysLine::try_parse_from(line.split(' ')).unwrap().verb {
            KeysVerb::Init { days, .. }
            | KeysVerb::Server { days, .. }
            | KeysVerb::Client { days, .. }
            | KeysVerb::Renew { days, .. } => days,
            other => panic!("{other:?} has no lifetime"),
        };
        for (line, expected) in [
            ("keys init", 3650),
            ("keys server localhost", 365),
            ("keys client glenda", 365),
            ("keys renew glenda", 365),
            ("keys renew glenda --days 30", 30),
        ] {
            assert_eq!(days(line), expected, "{line}");
        }
    }
}
