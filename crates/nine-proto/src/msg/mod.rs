//! The messages of all dialects. They are decoded by borrowing from the frame, encoded into a buffer, and printed on
//! one line.
//!
//! The fields of a message may depend on the dialect (Tattach's `n_uname`, Rerror's `errno`). The field's type alone
//! handles that. Every known message number decodes here; the session decides which messages a dialect permits.

mod field;

use alloc::vec::Vec;
use core::fmt;

use crate::attr::{Attr, SetMask, Statfs, Time};
use crate::dialect::Dialect;
use crate::frame::{self, HEADER};
use crate::ids::{Fid, Qid, Tag};
use crate::stat::Stat;
use crate::wire::{Reader, Str, WireError, Writer};

use field::MessageField;
pub use field::{Data, MAXWELEM, Names, OnlyIds, OnlyU, OnlyUStr, OptionalU32, Qids};

macro_rules! messages {
    (
        $(#[$doc:meta])*
        $enum:ident
        $($name:ident $number:literal $label:literal { $($field:ident: $ty:ty),* })*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the names of the manual; layouts are in docs/protocol.md")]
        pub enum $enum<'a> {
            $($name { $($field: $ty),* },)*
        }

        impl<'a> $enum<'a> {
            /// Decodes the message of a whole frame (see [`frame::split`]).
            pub fn decode(frame: &'a [u8], dialect: Dialect) -> Result<(Tag, Self), WireError> {
                let ty = frame::type_of(frame);
                let mut r = Reader::new(&frame[HEADER..], ty, dialect);
                let message = match ty {
                    $($number => Self::$name { $($field: <$ty as MessageField>::get(&mut r)?),* },)*
                    _ => return Err(WireError::Type(ty)),
                };
                r.end()?;
                Ok((frame::tag_of(frame), message))
            }

            /// Encodes the message except its last `payload` bytes, which the caller sends after it.
            pub fn encode_before(&self, payload: usize, tag: Tag, dialect: Dialect, buf: &mut Vec<u8>) {
                match self {
                    $(Self::$name { $($field),* } => {
                        #[allow(unused_mut, reason = "some messages have no fields")]
                        let mut w = Writer::message(buf, $number, tag, dialect);
                        $($field.put(&mut w);)*
                        w.finish(payload);
                    })*
                }
            }

            /// Encodes the whole message.
            pub fn encode(&self, tag: Tag, dialect: Dialect, buf: &mut Vec<u8>) {
                self.encode_before(0, tag, dialect, buf);
            }

            /// Returns the number of the message on the wire.
            pub fn number(&self) -> u8 {
                match self {
                    $(Self::$name { .. } => $number,)*
                }
            }

            /// Returns the name of the message in the manual.
            pub fn label(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => $label,)*
                }
            }

            /// Returns the manual's name for a message number.
            pub fn label_of(number: u8) -> Option<&'static str> {
                match number {
                    $($number => Some($label),)*
                    _ => None,
                }
            }

            /// Formats the message with its tag: `Twalk tag 1 fid 7 newfid 9 names net/tcp`.
            pub fn with_tag(&self, tag: Tag) -> impl fmt::Display + use<'_, 'a> {
                struct WithTag<'m, 'a>(&'m $enum<'a>, Tag);
                impl fmt::Display for WithTag<'_, '_> {
                    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        match self.0 {
                            $($enum::$name { $($field),* } => {
                                write!(f, concat!($label, " tag {}"), self.1)?;
                                $(f.write_str(concat!(" ", stringify!($field), " "))?; $field.show(f)?;)*
                            })*
                        }
                        Ok(())
                    }
                }
                WithTag(self, tag)
            }
        }
    };
}

messages! {
    /// A request, sent by the client.
    Tmsg
    Statfs 8 "Tstatfs" { fid: Fid }
    Lopen 12 "Tlopen" { fid: Fid, flags: u32 }
    Lcreate 14 "Tlcreate" { fid: Fid, name: Str<'a>, flags: u32, mode: u32, gid: u32 }
    Symlink 16 "Tsymlink" { dfid: Fid, name: Str<'a>, target: Str<'a>, gid: u32 }
    Mknod 18 "Tmknod" { dfid: Fid, name: Str<'a>, mode: u32, major: u32, minor: u32, gid: u32 }
    Rename 20 "Trename" { fid: Fid, dfid: Fid, name: Str<'a> }
    Readlink 22 "Treadlink" { fid: Fid }
    Getattr 24 "Tgetattr" { fid: Fid, mask: u64 }
    Setattr 26 "Tsetattr" {
        fid: Fid, valid: SetMask, mode: u32, uid: u32, gid: u32, size: u64, atime: Time, mtime: Time
    }
    Xattrwalk 30 "Txattrwalk" { fid: Fid, newfid: Fid, name: Str<'a> }
    Xattrcreate 32 "Txattrcreate" { fid: Fid, name: Str<'a>, size: u64, flags: u32 }
    Readdir 40 "Treaddir" { fid: Fid, offset: u64, count: u32 }
    Fsync 50 "Tfsync" { fid: Fid, datasync: OptionalU32 }
    Lock 52 "Tlock" {
        fid: Fid, ty: u8, flags: u32, start: u64, length: u64, proc_id: u32, client_id: Str<'a>
    }
    Getlock 54 "Tgetlock" { fid: Fid, ty: u8, start: u64, length: u64, proc_id: u32, client_id: Str<'a> }
    Link 70 "Tlink" { dfid: Fid, fid: Fid, name: Str<'a> }
    Mkdir 72 "Tmkdir" { dfid: Fid, name: Str<'a>, mode: u32, gid: u32 }
    Renameat 74 "Trenameat" { olddirfid: Fid, oldname: Str<'a>, newdirfid: Fid, newname: Str<'a> }
    Unlinkat 76 "Tunlinkat" { dirfid: Fid, name: Str<'a>, flags: u32 }
    Version 100 "Tversion" { msize: u32, version: Str<'a> }
    Auth 102 "Tauth" { afid: Fid, uname: Str<'a>, aname: Str<'a>, n_uname: OnlyIds }
    Attach 104 "Tattach" { fid: Fid, afid: Fid, uname: Str<'a>, aname: Str<'a>, n_uname: OnlyIds }
    Flush 108 "Tflush" { oldtag: Tag }
    Walk 110 "Twalk" { fid: Fid, newfid: Fid, names: Names<'a> }
    Open 112 "Topen" { fid: Fid, mode: u8 }
    Create 114 "Tcreate" { fid: Fid, name: Str<'a>, perm: u32, mode: u8, extension: OnlyUStr<'a> }
    Read 116 "Tread" { fid: Fid, offset: u64, count: u32 }
    Write 118 "Twrite" { fid: Fid, offset: u64, data: Data<'a> }
    Clunk 120 "Tclunk" { fid: Fid }
    Remove 122 "Tremove" { fid: Fid }
    Stat 124 "Tstat" { fid: Fid }
    Wstat 126 "Twstat" { fid: Fid, stat: Stat<'a> }
    Stream 128 "Tstream" { fid: Fid, isread: u8, offset: u64 }
    Sclose 130 "Tsclose" { fid: Fid, count: u64 }
    Renameat2 132 "Trenameat2" {
        olddirfid: Fid, oldname: Str<'a>, newdirfid: Fid, newname: Str<'a>, flags: u32
    }
}

messages! {
    /// A reply, sent by the server.
    Rmsg
    Lerror 7 "Rlerror" { ecode: u32 }
    Statfs 9 "Rstatfs" { statfs: Statfs }
    Lopen 13 "Rlopen" { qid: Qid, iounit: u32 }
    Lcreate 15 "Rlcreate" { qid: Qid, iounit: u32 }
    Symlink 17 "Rsymlink" { qid: Qid }
    Mknod 19 "Rmknod" { qid: Qid }
    Rename 21 "Rrename" {}
    Readlink 23 "Rreadlink" { target: Str<'a> }
    Getattr 25 "Rgetattr" { attr: Attr }
    Setattr 27 "Rsetattr" {}
    Xattrwalk 31 "Rxattrwalk" { size: u64 }
    Xattrcreate 33 "Rxattrcreate" {}
    Readdir 41 "Rreaddir" { data: Data<'a> }
    Fsync 51 "Rfsync" {}
    Lock 53 "Rlock" { status: u8 }
    Getlock 55 "Rgetlock" { ty: u8, start: u64, length: u64, proc_id: u32, client_id: Str<'a> }
    Link 71 "Rlink" {}
    Mkdir 73 "Rmkdir" { qid: Qid }
    Renameat 75 "Rrenameat" {}
    Unlinkat 77 "Runlinkat" {}
    Version 101 "Rversion" { msize: u32, version: Str<'a> }
    Auth 103 "Rauth" { aqid: Qid }
    Attach 105 "Rattach" { qid: Qid }
    Error 107 "Rerror" { ename: Str<'a>, errno: OnlyU }
    Flush 109 "Rflush" {}
    Walk 111 "Rwalk" { qids: Qids<'a> }
    Open 113 "Ropen" { qid: Qid, iounit: u32 }
    Create 115 "Rcreate" { qid: Qid, iounit: u32 }
    Read 117 "Rread" { data: Data<'a> }
    Write 119 "Rwrite" { count: u32 }
    Clunk 121 "Rclunk" {}
    Remove 123 "Rremove" {}
    Stat 125 "Rstat" { stat: Stat<'a> }
    Wstat 127 "Rwstat" {}
    Stream 129 "Rstream" { data: Data<'a> }
    Sclose 131 "Rsclose" { count: u64, errno: u32, ename: Str<'a> }
    Renameat2 133 "Rrenameat2" {}
}

#[cfg(test)]
mod tests;
