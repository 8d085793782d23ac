//! Requests under way, and those that somebody has no patience for any more.
//!
//! In: answers as they come, and that one has waited long enough ([`Options::patience`](crate::Options)). Out: which
//! request was answered or given up. All that are under way then are flushed, once; for each its answer or its
//! Rflush decides, whichever comes first. A host that is late again before all Rflushes are there is given up.
//!
//! Always holds: a tag is not used again before its Rflush.

use alloc::vec::Vec;

use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Errno, Error, NOTAG, Result, Tag};

use crate::client::Client;
use crate::conn::Answer;
use crate::line::Line;

/// Tags there are, and so requests under way; as many more are for their flushes.
pub(crate) const TAGS: u16 = 32;

/// What has become of a request.
pub(crate) enum Come {
    Answer(Answer),
    /// That of this tag is as if it had never been asked.
    Flushed(u16),
}

/// Requests by their tags.
#[derive(Default)]
pub(crate) struct UnderWay {
    /// The last tag.
    tag: u16,
    /// Bits: neither answered nor given up.
    asked: u32,
    /// Bits: their Rflush has not come, whatever else has.
    flushed: u32,
}

impl UnderWay {
    /// A request was sent.
    #[inline]
    pub(crate) fn insert(&mut self, tag: u16) {
        if tag < TAGS {
            self.asked |= 1 << tag;
        }
    }

    /// Whether Rflushes are to come.
    #[inline]
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushed != 0
    }

    fn tags(&self) -> Vec<u16> {
        (0..TAGS).filter(|tag| self.asked & 1 << tag != 0).collect()
    }
}

impl<L: Line> Client<L> {
    /// The next tag: another one each time, so that an answer that comes twice is none the second time. Where Rflushes
    /// are to come, nothing else is under way.
    #[inline]
    pub(crate) fn tag(&mut self) -> Result<u16> {
        while self.under_way.is_flushing() {
            self.next()?;
        }
        self.under_way.tag = (self.under_way.tag + 1) % TAGS;
        Ok(self.under_way.tag)
    }

    /// What has become of one that is under way, of which there are some, or of a Tversion; waits for it.
    #[inline]
    pub(crate) fn answer(&mut self) -> Result<Come> {
        loop {
            if let Some(come) = self.next()? {
                return Ok(come);
            }
        }
    }

    /// The same. `None`: nothing yet, but something was done.
    #[inline]
    fn next(&mut self) -> Result<Option<Come>> {
        let Some(answer) = self.conn.answer()? else { return self.flush().map(|()| None) };
        let UnderWay { asked, flushed, .. } = &mut self.under_way;
        let bit = 1 << (answer.tag % TAGS);
        match answer.tag / TAGS {
            0 if *asked & bit != 0 => {
                *asked &= !bit;
                Ok(Some(Come::Answer(answer)))
            }
            1 if *flushed & bit != 0 && self.conn.is(&answer, &Rmsg::Flush {}) => {
                *flushed &= !bit;
                let is_given_up = *asked & bit != 0;
                *asked &= !bit;
                Ok(is_given_up.then_some(Come::Flushed(answer.tag % TAGS)))
            }
            _ if answer.tag == NOTAG.0 && *asked | *flushed == 0 => Ok(Some(Come::Answer(answer))),
            _ => Err(self.conn.broken("nothing")),
        }
    }

    /// Nothing has come in time.
    #[cold]
    fn flush(&mut self) -> Result<()> {
        let tags = self.under_way.tags();
        // A Tversion cannot be flushed; and who is late with an Rflush, too, is late for good.
        if self.under_way.is_flushing() || tags.is_empty() {
            return Err(self.conn.give_up());
        }
        for tag in tags {
            self.out.clear();
            Tmsg::Flush { oldtag: Tag(tag) }.encode(Tag(TAGS + tag), self.dialect(), &mut self.out);
            self.conn.send_long(&self.out)?;
        }
        self.under_way.flushed = self.under_way.asked;
        Ok(())
    }
}

/// What a call says that was given up.
pub(crate) fn late() -> Error {
    Error::new(Errno::ETIMEDOUT, "the host has not answered in time: the request was given up")
}
