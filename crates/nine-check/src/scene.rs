//! The environment of a case: the server to dial, the user, and a directory of its own.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use nine_net::Env;
use nine_proto::msg::{OnlyIds, Rmsg, Tmsg};
use nine_proto::{Dialect, Fid, NOFID};

use crate::case::{CaseResult, StopReason, fail};
use crate::conn::{CheckedConnection, ExchangeLog};
use crate::run::{Dial, NO_CONNECTION, Options};

/// The suite's directory, in every session.
pub(crate) const ROOT: Fid = Fid(0);
/// The case's own directory, if it has one.
pub(crate) const DIR: Fid = Fid(1);
/// Fids for use by the cases.
pub(crate) const A: Fid = Fid(10);
pub(crate) const B: Fid = Fid(11);
pub(crate) const C: Fid = Fid(12);
pub(crate) const D: Fid = Fid(13);

/// The msize that sessions propose by default, in bytes. Linux clients and some servers refuse less than 4096.
pub(crate) const MSIZE: u32 = 64 * 1024;

/// The interval between checks for a change made by another connection.
const CHANGE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// State shared by all cases.
pub(crate) struct CheckedServer {
    pub(crate) env: Rc<dyn Env>,
    pub(crate) dial: Rc<dyn Dial>,
    pub(crate) options: Options,
}

/// See the module.
pub(crate) struct CaseContext {
    pub(crate) server: Rc<CheckedServer>,
    pub(crate) dialect: Dialect,
    /// All dialects that the server offers.
    pub(crate) offered: Vec<Dialect>,
    /// The names from the suite's directory to the case's, if it has one.
    pub(crate) dir: Vec<Vec<u8>>,
    pub(crate) log: ExchangeLog,
    pub(crate) dialled: Cell<u32>,
}

impl CaseContext {
    /// Returns a new connection, before any message.
    pub(crate) async fn dial(&self) -> CaseResult<CheckedConnection> {
        let number = self.dialled.get() + 1;
        self.dialled.set(number);
        match self.server.dial.dial().await {
            Ok(transport) => {
                Ok(CheckedConnection::new(transport, self.log.clone(), number, self.server.options.gid))
            }
            Err(error) => Err(StopReason::Gone(format!("{NO_CONNECTION}: {error}"))),
        }
    }

    /// Returns a connection with an agreed version.
    pub(crate) async fn version(&self, msize: u32) -> CaseResult<CheckedConnection> {
        let mut c = self.dial().await?;
        c.version(msize, self.dialect).await?;
        Ok(c)
    }

    /// Returns a session, in which [`ROOT`] is the suite's directory.
    pub(crate) async fn session(&self) -> CaseResult<CheckedConnection> {
        self.session_with(MSIZE).await
    }

    /// The same with another msize.
    pub(crate) async fn session_with(&self, msize: u32) -> CaseResult<CheckedConnection> {
        let mut c = self.version(msize).await?;
        self.attach(&mut c, ROOT).await?;
        let path = self.names();
        if !path.is_empty() {
            c.walk_whole(ROOT, ROOT, &path).await?;
        }
        Ok(c)
    }

    /// Returns a session in which [`DIR`] is the case's own directory.
    pub(crate) async fn here(&self) -> CaseResult<CheckedConnection> {
        self.here_with(MSIZE).await
    }

    /// The same with another msize.
    pub(crate) async fn here_with(&self, msize: u32) -> CaseResult<CheckedConnection> {
        let mut c = self.session_with(msize).await?;
        let path: Vec<&[u8]> = self.dir.iter().map(Vec::as_slice).collect();
        c.walk_whole(ROOT, DIR, &path).await?;
        Ok(c)
    }

    /// Returns the Tattach of the suite's user.
    pub(crate) fn tattach(&self, fid: Fid) -> Tmsg<'_> {
        let Options { uname, uid, aname, .. } = &self.server.options;
        Tmsg::Attach {
            fid,
            afid: NOFID,
            uname: uname.as_bytes(),
            aname: aname.as_bytes(),
            n_uname: OnlyIds(*uid),
        }
    }

    /// Attaches a fid to the server's own root.
    pub(crate) async fn attach(&self, c: &mut CheckedConnection, fid: Fid) -> CaseResult<nine_proto::Qid> {
        match c.ok(self.tattach(fid)).await?.msg() {
            Rmsg::Attach { qid } => Ok(qid),
            _ => fail("an Rattach was expected"),
        }
    }

    fn names(&self) -> Vec<&[u8]> {
        self.server.options.path.iter().map(Vec::as_slice).collect()
    }

    /// Waits for a moment, so that the server can handle the end of another connection. Such waits end with the
    /// case's time limit.
    pub(crate) async fn pause(&self) {
        let env = &self.server.env;
        env.sleep_until(env.now() + CHANGE_CHECK_INTERVAL).await;
    }
}
