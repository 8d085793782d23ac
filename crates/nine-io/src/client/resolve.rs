//! Paths with symbolic links in them: a 9P server leads to a link, and its client follows it.
//!
//! In: the root of a tree, a path. Out: the file there, and the names that lead to it, none of them a link or "..".
//! Absolute links begin at the root again, and none leads out of it.

use nine_proto::msg::MAXWELEM;
use nine_proto::{Base, Errno};

use super::error::{Error, Result};
use super::file::File;

/// Links followed for one path, as in Linux; one more is ELOOP.
const LINKS: usize = 40;

impl File {
    /// The file at `path` below this root, links on the way followed, at the end too if `follow`, and the names that
    /// lead there: one walk where there are no links. In 9P2000, which has none, it is a walk.
    pub async fn resolve(&self, path: impl AsRef<[u8]>, follow: bool) -> Result<(Self, Vec<Vec<u8>>)> {
        let path = path.as_ref();
        let plain = || names(path).map(<[u8]>::to_vec).collect::<Vec<_>>();
        // Where ".." leads from a link is known only once the link has been read.
        let dotted = names(path).any(|name| name == b"..");
        let first = match self.walk(path).await {
            Ok(file) if !(dotted || follow && file.qid().is_symlink()) => return Ok((file, plain())),
            Err(error) if !may_be_link(&error, path) => return Err(error),
            other => other,
        };
        if self.client().dialect().base == Base::P2000 {
            return first.map(|file| (file, plain()));
        }
        let mut todo: Vec<Vec<u8>> = plain();
        todo.reverse();
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == b".." {
                done.pop();
                continue;
            }
            done.push(name);
            let file = self.walk(done.join(&b'/')).await?;
            if !file.qid().is_symlink() || (todo.is_empty() && !follow) {
                continue;
            }
            links += 1;
            if links > LINKS {
                return Err(nine_proto::Error::from(Errno::ELOOP).into());
            }
            let target = file.readlink().await?;
            if target.starts_with(b"/") {
                done.clear();
            } else {
                done.pop();
            }
            todo.extend(names(&target).rev().map(<[u8]>::to_vec));
        }
        Ok((self.walk(done.join(&b'/')).await?, done))
    }
}

/// Whether a link on the way may be why a walk of `path` has failed: it was walked to, and could not be walked on from.
/// Where one Twalk has not been enough, the next one may have had other words for that.
pub fn may_be_link(error: &Error, path: &[u8]) -> bool {
    match error.errno() {
        Errno::ENOTDIR | Errno::ELOOP => true,
        Errno::ENOENT => names(path).count() > MAXWELEM,
        _ => false,
    }
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b"."))
}
