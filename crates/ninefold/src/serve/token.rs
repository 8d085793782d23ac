//! The token: 128 random bits in hex. A client that presents it has the rights of the server's own user.
//!
//! The token is new at every start, or is stored in a file that only its owner can read.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use nine_net::Env;

/// Minimum length of a token from a file, characters.
const SHORTEST: usize = 16;

/// Limit of bytes read from a file.
const LONGEST: u64 = 64 << 10;

/// Generates a new token.
pub fn fresh(env: &impl Env) -> Arc<str> {
    let mut bits = [0; 16];
    env.entropy(&mut bits);
    bits.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

/// Reads the token from a file, which is created with a new token if it does not exist.
pub fn kept(env: &impl Env, path: &Path) -> Result<Arc<str>> {
    let token = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            let token = fresh(env);
            writeln!(file, "{token}").map(|()| token)
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return read(path),
        Err(e) => Err(e),
    };
    token.with_context(|| path.display().to_string())
}

/// Reads a file with a secret: only its owner may read it, and only root and the server's own user may replace it.
/// `what` describes the secret in errors.
pub fn private(path: &Path, what: &str) -> Result<String> {
    let name = || path.display().to_string();
    let check = |meta: fs::Metadata| {
        if meta.is_file() && meta.mode() & 0o077 != 0 {
            bail!("{}: others can read {what}; try: chmod 600 {0}", path.display());
        }
        Ok(())
    };
    check(fs::metadata(path).with_context(name)?)?;
    let file = nine_net::open_rights(path).map_err(|why| anyhow!("{}: {why}", path.display()))?;
    // Check again: the opened file may be another one.
    check(file.metadata().with_context(name)?)?;
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).with_context(name)?;
    Ok(text)
}

/// Checks that a text can be a token.
pub fn check(token: &str) -> Result<()> {
    let len = token.chars().count();
    if len < SHORTEST {
        bail!(
            "a token has 32 hexadecimal digits (or at least {SHORTEST} letters and digits, if you chose it); this has \
             {len}"
        );
    }
    if let Some(other) = token.chars().find(|c| !c.is_ascii_alphanumeric()) {
        bail!("a token has letters and digits alone; this has `{}`", other.escape_debug());
    }
    Ok(())
}

fn read(path: &Path) -> Result<Arc<str>> {
    let text = private(path, "the token")?;
    let token = text.trim();
    check(token).with_context(|| format!("{}: remove the file to get a new token", path.display()))?;
    Ok(token.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_token_is_seen_before_it_is_sent() {
        for (token, why) in [
            ("066497ac2c69648c648d71183e68b107", ""),
            ("0123456789abcdef", ""),
            ("hunter2", "a token has 32 hexadecimal digits (or at least 16"),
            ("", "this has 0"),
            ("token:066497ac2c69648c", "this has `:`"),
        ] {
            let said = check(token).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(why) && said.is_empty() == why.is_empty(), "{token}: {said}");
        }
    }
}
