//! In-flight requests, and those flushed after a timeout.
//!
//! In: answers, and timeouts ([`Options::patience`](crate::Options)). Out: for each request, whether it was answered
//! or flushed. At a timeout all in-flight requests are flushed, once. For each of them the first reply decides: its
//! answer, or its Rflush. At a second timeout before all Rflushes have arrived, the channel ends.
//!
//! Always holds: a tag is not reused before its Rflush.

use alloc::vec::Vec;

use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Errno, Error, NOTAG, Result, Tag};

use crate::client::Client;
use crate::conn::ReceivedMessage;
use crate::line::Line;

/// The number of tags, and so of in-flight requests. As many further tags are used for their flushes.
pub(crate) const TAGS_MAX: u16 = 32;

/// The end of a request.
pub(crate) enum RequestOutcome {
    Answer(ReceivedMessage),
    /// The request of this tag was flushed; it counts as never sent.
    Flushed(u16),
}

/// In-flight requests, by their tags.
#[derive(Default)]
pub(crate) struct InFlightRequests {
    /// The last tag used.
    tag: u16,
    /// Bits: neither answered nor flushed.
    asked: u32,
    /// Bits: the Rflush has not arrived, even if an answer has.
    flushed: u32,
}

impl InFlightRequests {
    /// Records that a request was sent.
    #[inline]
    pub(crate) fn insert(&mut self, tag: u16) {
        if tag < TAGS_MAX {
            self.asked |= 1 << tag;
        }
    }

    /// Returns whether Rflushes are outstanding.
    #[inline]
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushed != 0
    }

    fn tags(&self) -> Vec<u16> {
        (0..TAGS_MAX).filter(|tag| self.asked & 1 << tag != 0).collect()
    }
}

impl<L: Line> Client<L> {
    /// Returns the next tag. It differs each time, so that a duplicate answer is recognized. While Rflushes are
    /// outstanding it waits for them, and no other request is sent.
    #[inline]
    pub(crate) fn tag(&mut self) -> Result<u16> {
        while self.under_way.is_flushing() {
            self.next()?;
        }
        self.under_way.tag = (self.under_way.tag + 1) % TAGS_MAX;
        Ok(self.under_way.tag)
    }

    /// Waits for the end of an in-flight request, or of a Tversion. There must be one.
    #[inline]
    pub(crate) fn answer(&mut self) -> Result<RequestOutcome> {
        loop {
            if let Some(come) = self.next()? {
                return Ok(come);
            }
        }
    }

    /// The same. `None`: progress was made, but no request has ended.
    #[inline]
    fn next(&mut self) -> Result<Option<RequestOutcome>> {
        let Some(answer) = self.conn.answer()? else { return self.flush().map(|()| None) };
        let InFlightRequests { asked, flushed, .. } = &mut self.under_way;
        let bit = 1 << (answer.tag % TAGS_MAX);
        match answer.tag / TAGS_MAX {
            0 if *asked & bit != 0 => {
                *asked &= !bit;
                Ok(Some(RequestOutcome::Answer(answer)))
            }
            1 if *flushed & bit != 0 && self.conn.is(&answer, &Rmsg::Flush {}) => {
                *flushed &= !bit;
                let is_given_up = *asked & bit != 0;
                *asked &= !bit;
                Ok(is_given_up.then_some(RequestOutcome::Flushed(answer.tag % TAGS_MAX)))
            }
            _ if answer.tag == NOTAG.0 && *asked | *flushed == 0 => Ok(Some(RequestOutcome::Answer(answer))),
            _ => Err(self.conn.broken("nothing")),
        }
    }

    /// Handles a timeout.
    #[cold]
    fn flush(&mut self) -> Result<()> {
        let tags = self.under_way.tags();
        // A Tversion cannot be flushed. If Rflushes are outstanding, this is the second timeout.
        if self.under_way.is_flushing() || tags.is_empty() {
            return Err(self.conn.give_up());
        }
        for tag in tags {
            self.out.clear();
            Tmsg::Flush { oldtag: Tag(tag) }.encode(Tag(TAGS_MAX + tag), self.dialect(), &mut self.out);
            self.conn.send_long(&self.out)?;
        }
        self.under_way.flushed = self.under_way.asked;
        Ok(())
    }
}

/// Returns the error of a call that timed out.
pub(crate) fn late() -> Error {
    Error::new(Errno::ETIMEDOUT, "the host has not answered in time: the request was given up")
}
