//! `keys` on the command line.

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
        #[command(flatten)]
        lasting: Lasting<3650>,
    },
    /// Make a server's key and certificate
    Server {
        /// Every name and address by which clients dial it; the first is what it is called
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        #[command(flatten)]
        lasting: Lasting<365>,
    },
    /// Make the key and certificate of a person, or of a program
    Client {
        /// Who it is to servers: a user's name, or an e-mail address
        #[arg(value_name = "USER")]
        user: String,
        #[command(flatten)]
        lasting: Lasting<365>,
    },
    /// Make a new key and certificate in the place of one that ends soon; the old one stays good until it ends
    Renew {
        /// Which: NAME, or servers/NAME or clients/NAME where both are there
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        lasting: Lasting<365>,
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

/// How long a certificate is good.
#[derive(Debug, Args)]
pub struct Lasting<const DAYS: u32> {
    /// Days that it is good
    #[arg(long, value_name = "N", default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}
