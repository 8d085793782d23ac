//! Command line of `keys`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Make an authority of your own, certificates for servers and clients, and the list of those that are revoked
///
/// docs/keys.md has the five minutes that it takes. Keys have mode 0600, their directory 0700, and nothing that is
/// there is overwritten. Keys are not encrypted: what starts by itself has nobody who types a password.
#[derive(Debug, Args)]
pub struct Keys {
    /// The authority's directory [default: ~/.config/ninefold/keys]
    #[arg(long, value_name = "DIR", env = "NINEFOLD_KEYS", global = true)]
    pub dir: Option<PathBuf>,
    #[command(subcommand)]
    pub verb: KeysVerb,
}

#[derive(Debug, Subcommand)]
pub enum KeysVerb {
    /// Make the authority, in a new directory
    Init {
        /// What it is called, as no other authority [default: ninefold- and eight digits]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Days that it is good
        #[arg(long, value_name = "N", default_value_t = 3650, value_parser = days())]
        days: u32,
    },
    /// Make a server's key and certificate
    Server {
        /// Every name and address by which clients dial it; the first is what it is called
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Days that it is good
        #[arg(long, value_name = "N", default_value_t = 365, value_parser = days())]
        days: u32,
    },
    /// Make the key and certificate of a person, or of a program
    Client {
        /// Who it is to servers: a user's name, or an e-mail address
        #[arg(value_name = "USER")]
        user: String,
        /// Days that it is good
        #[arg(long, value_name = "N", default_value_t = 365, value_parser = days())]
        days: u32,
    },
    /// Make a new key and certificate in the place of one that ends soon; the old one stays good until it ends
    Renew {
        /// Which: NAME, or servers/NAME or clients/NAME where both are there
        #[arg(value_name = "NAME")]
        name: String,
        /// Days that it is good
        #[arg(long, value_name = "N", default_value_t = 365, value_parser = days())]
        days: u32,
    },
    /// Put the certificates of somebody on the list of those that are not good any more
    Revoke {
        /// Whose: NAME, or servers/NAME or clients/NAME where both are there
        #[arg(value_name = "NAME")]
        name: String,
        /// Only those that were renewed: the newest one stays good
        #[arg(long)]
        old: bool,
    },
    /// List what was made, until when it is good, and what is revoked
    List {
        /// One JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Show what certificates, keys and lists of revoked certificates say
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
