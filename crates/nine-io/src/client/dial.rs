//! Calls, made and taken by reading and writing the files of a network: dial(2) over any client.
//!
//! In: a directory as `/net` of Plan 9 is, dial strings. Out: open files. Whose machine the network is of, the client
//! need not know.
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

/// Bytes of a number, an address, or an answer of `cs`.
const TEXT: u32 = 1024;
/// Answers of `cs` that are tried.
const ANSWERS: usize = 64;

/// A directory of networks.
pub struct Net(File);

/// A call that stands. It is hung up when its files are dropped.
pub struct Dialled {
    /// The directory of the conversation.
    pub dir: File,
    /// Takes texts: `hangup`, `push MODULE`, what the network knows.
    pub ctl: File,
    /// The bytes or messages, whatever the offset; a read finds 0 bytes at the end.
    pub data: File,
}

/// A place where calls are taken, until it is dropped.
pub struct Announced {
    /// The directory of the conversation.
    pub dir: File,
    /// See [`Dialled::ctl`].
    pub ctl: File,
}

/// Somebody calls.
pub struct Incoming {
    /// The directory of the conversation.
    pub dir: File,
    ctl: File,
    number: String,
}

impl Net {
    /// Of the directory that others call `/net`.
    pub fn new(dir: File) -> Self {
        Self(dir)
    }

    /// Calls `NETWORK!ADDRESS!SERVICE` (`net` is any network): what `cs` answers is tried in turn. An error: what the
    /// last one came to.
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

    /// Takes calls at `NETWORK!ADDRESS!SERVICE`; the address `*` is every one of the machine.
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

    /// What is to be opened, by its path from here, and what is to be written there.
    async fn translate(&self, to: &str) -> Result<Vec<(String, String)>> {
        let cs = match self.0.open("cs", OpenFlags::RDWR).await {
            Ok(cs) => cs,
            // Without it an address is taken as it is.
            Err(error) if error.errno() == Errno::ENOENT => {
                let (network, text) = to.split_once('!').ok_or_else(none)?;
                return Ok(vec![(format!("{network}/clone"), text.into())]);
            }
            Err(error) => return Err(error),
        };
        cs.write(0, to.as_bytes()).await?;
        let (mut offset, mut found) = (0, Vec::new());
        while found.len() < ANSWERS {
            let answer = cs.read(offset, TEXT).await?;
            if answer.is_empty() {
                break;
            }
            offset += answer.len() as u64;
            let answer = string(&answer)?;
            let (clone, text) = answer.split_once(' ').unwrap_or((&answer, ""));
            // It is told as from the root of the one who answers: what is behind the first name is here, too.
            let clone = clone.trim_start_matches('/').split_once('/').map_or(clone, |(_, rest)| rest);
            found.push((clone.into(), text.into()));
        }
        Ok(found)
    }
}

impl Dialled {
    /// Ends it.
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

    /// The address, as the network writes it: where no port was named there is one now.
    pub async fn local(&self) -> Result<String> {
        text(&self.dir.open("local", OpenFlags::READ).await?).await
    }
}

impl Incoming {
    /// Takes the call.
    pub async fn accept(self) -> Result<Dialled> {
        // A network in which nothing is to be accepted need not know the word.
        let _ = self.ctl.write(0, format!("accept {}", self.number).as_bytes()).await;
        let data = self.dir.open("data", OpenFlags::RDWR).await?;
        Ok(Dialled { dir: self.dir, ctl: self.ctl, data })
    }

    /// Refuses it; a network that cannot say why hangs up.
    pub async fn reject(self, cause: &str) -> Result<()> {
        self.ctl.write(0, format!("reject {} {cause}", self.number).as_bytes()).await.map(drop)
    }
}

async fn text(file: &File) -> Result<String> {
    Ok(string(&file.read(0, TEXT).await?)?.trim_end().into())
}

fn string(bytes: &Bytes) -> Result<String> {
    let no_text = |_| nine_proto::Error::new(Errno::EIO, "the network answers what is no text").into();
    String::from_utf8(bytes.to_vec()).map_err(no_text)
}

fn none() -> Error {
    nine_proto::Error::new(Errno::ENOENT, "can't translate address").into()
}
