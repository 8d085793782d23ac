//! Calls through the files of a network: dial(2) over any client.
//!
//! In: a directory like Plan 9's `/net`, dial strings. Out: open files. The network may be that of any machine.
//!
//! ```no_run
//! use nine_io::client::{File, Net, Result};
//!
//! # async fn example(root: File) -> Result<()> {
//! let net = Net::new(root.walk("net").await?);
//! let call = net.dial("tcp!127.0.0.1!80").await?;
//! call.data.write(0, b"GET / HTTP/1.0\r\n\r\n").await?;
//! let answer = call.data.read(0, 8192).await?;
//!
//! let served = net.announce("tcp!127.0.0.1!8080").await?;
//! let call = served.listen().await?.accept().await?;
//! # Ok(())
//! # }
//! ```

use bytes::Bytes;
use nine_proto::{Errno, OpenFlags};

use super::error::{Error, Result};
use super::file::File;

/// Maximum number of bytes of a number, an address, or an answer of `cs`.
const DIAL_TEXT_MAX: u32 = 1024;
/// Maximum number of answers of `cs` that are tried.
const ANSWERS: usize = 64;

/// A directory of networks.
pub struct Net(File);

/// An established call. Dropping its files hangs it up.
pub struct Dialled {
    /// The directory of the conversation.
    pub dir: File,
    /// Takes texts: `hangup`, `push MODULE`, and others that the network knows.
    pub ctl: File,
    /// The bytes or messages, at any offset; a read returns 0 bytes at the end.
    pub data: File,
}

/// An announced address, until it is dropped.
pub struct Announced {
    /// The directory of the conversation.
    pub dir: File,
    /// See [`Dialled::ctl`].
    pub ctl: File,
}

/// An incoming call.
pub struct Incoming {
    /// The directory of the conversation.
    pub dir: File,
    ctl: File,
    number: String,
}

impl Net {
    /// A network with this directory, usually called `/net`.
    pub fn new(dir: File) -> Self {
        Self(dir)
    }

    /// Calls `NETWORK!ADDRESS!SERVICE` (`net` is any network), and tries the answers of `cs` in order. Returns the
    /// error of the last one.
    pub async fn dial(&self, to: &str) -> Result<Dialled> {
        let mut last = None;
        for (clone, text) in self.translate(to).await? {
            match self.connect(&clone, &text).await {
                Ok(call) => return Ok(call),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(none))
    }

    /// Accepts calls at `NETWORK!ADDRESS!SERVICE`; the address `*` stands for all addresses of the machine.
    pub async fn announce(&self, at: &str) -> Result<Announced> {
        let first = self.translate(at).await?.into_iter().next();
        let (clone, text) = first.ok_or_else(none)?;
        let (ctl, dir) = self.clone(&clone).await?;
        ctl.write(0, format!("announce {text}").as_bytes()).await?;
        Ok(Announced { dir, ctl })
    }

    async fn connect(&self, clone: &str, text: &str) -> Result<Dialled> {
        let (ctl, dir) = self.clone(clone).await?;
        ctl.write(0, format!("connect {text}").as_bytes()).await?;
        let data = dir.open("data", OpenFlags::RDWR).await?;
        Ok(Dialled { dir, ctl, data })
    }

    async fn clone(&self, clone: &str) -> Result<(File, File)> {
        let ctl = self.0.open(clone, OpenFlags::RDWR).await?;
        let network = clone.rsplit_once('/').map_or("", |(network, _)| network);
        let dir = self.0.walk(format!("{network}/{}", text(&ctl).await?)).await?;
        Ok((ctl, dir))
    }

    /// Returns the files to open, by their paths from here, and the texts to write to them.
    async fn translate(&self, to: &str) -> Result<Vec<(String, String)>> {
        let cs = match self.0.open("cs", OpenFlags::RDWR).await {
            Ok(cs) => cs,
            // Without `cs`, an address is used as it is.
            Err(error) if error.errno() == Errno::ENOENT => {
                let (network, text) = to.split_once('!').ok_or_else(none)?;
                return Ok(vec![(format!("{network}/clone"), text.into())]);
            }
            Err(error) => return Err(error),
        };
        cs.write(0, to.as_bytes()).await?;
        let (mut offset, mut found) = (0, Vec::new());
        while found.len() < ANSWERS {
            let answer = cs.read(offset, DIAL_TEXT_MAX).await?;
            if answer.is_empty() {
                break;
            }
            offset += answer.len() as u64;
            let answer = string(&answer)?;
            let (clone, text) = answer.split_once(' ').unwrap_or((&answer, ""));
            // The answer's path starts at the root of the answering machine; the part after its first name is valid
            // here, too.
            let clone = clone.trim_start_matches('/').split_once('/').map_or(clone, |(_, rest)| rest);
            found.push((clone.into(), text.into()));
        }
        Ok(found)
    }
}

impl Dialled {
    /// Ends the call.
    pub async fn hangup(&self) -> Result<()> {
        self.ctl.write(0, b"hangup").await.map(drop)
    }

    /// The address of this end, as the network writes it.
    pub async fn local(&self) -> Result<String> {
        text(&self.dir.open("local", OpenFlags::READ).await?).await
    }

    /// The address of the other end.
    pub async fn remote(&self) -> Result<String> {
        text(&self.dir.open("remote", OpenFlags::READ).await?).await
    }
}

impl Announced {
    /// Waits for a call.
    pub async fn listen(&self) -> Result<Incoming> {
        let ctl = self.dir.open("listen", OpenFlags::RDWR).await?;
        let number = text(&ctl).await?;
        let dir = self.dir.walk(format!("../{number}")).await?;
        Ok(Incoming { dir, ctl, number })
    }

    /// The address, as the network writes it, with the chosen port if none was named.
    pub async fn local(&self) -> Result<String> {
        text(&self.dir.open("local", OpenFlags::READ).await?).await
    }
}

impl Incoming {
    /// Accepts the call.
    pub async fn accept(self) -> Result<Dialled> {
        // A network without explicit acceptance need not know this text.
        let _ = self.ctl.write(0, format!("accept {}", self.number).as_bytes()).await;
        let data = self.dir.open("data", OpenFlags::RDWR).await?;
        Ok(Dialled { dir: self.dir, ctl: self.ctl, data })
    }

    /// Rejects the call; a network that cannot send a reason just hangs up.
    pub async fn reject(self, cause: &str) -> Result<()> {
        self.ctl.write(0, format!("reject {} {cause}", self.number).as_bytes()).await.map(drop)
    }
}

async fn text(file: &File) -> Result<String> {
    Ok(string(&file.read(0, DIAL_TEXT_MAX).await?)?.trim_end().into())
}

fn string(bytes: &Bytes) -> Result<String> {
    let no_text = |_| nine_proto::Error::new(Errno::EIO, "the network answers what is no text").into();
    String::from_utf8(bytes.to_vec()).map_err(no_text)
}

fn none() -> Error {
    nine_proto::Error::new(Errno::ENOENT, "can't translate address").into()
}
