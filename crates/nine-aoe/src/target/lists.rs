//! A target's lists: its config string, the mask (accepted clients) and the reservation (clients with access).

use nine_net::ether::Mac;

use super::Setup;
use crate::frame::{CONFIG_MAX, Config, Edit, Mask, Reserve, config, error};

/// Maximum number of addresses in a mask or reservation, which the answer counts in one byte. A mask must also fit into
/// a frame.
const LISTED: usize = 255;

/// Result of a config request.
pub(super) enum Verdict {
    Fine,
    /// A failed test has no answer.
    Silence,
    Error(u8),
}

/// The config string, mask and reservation of a target.
pub(super) struct Lists {
    config: Vec<u8>,
    mask: Vec<Mac>,
    reserved: Vec<Mac>,
    most: usize,
}

impl Lists {
    pub(super) fn new(setup: &Setup, mtu: usize) -> Self {
        let mut config = setup.config.clone();
        config.truncate(CONFIG_MAX);
        Self {
            config,
            mask: setup.mask.clone(),
            reserved: Vec::new(),
            most: LISTED.min(mtu.saturating_sub(14) / 8),
        }
    }

    pub(super) fn config(&self) -> &[u8] {
        &self.config
    }

    pub(super) fn hears(&self, from: Mac) -> bool {
        self.mask.is_empty() || self.mask.contains(&from)
    }

    pub(super) fn may(&self, from: Mac) -> bool {
        self.reserved.is_empty() || self.reserved.contains(&from)
    }

    pub(super) fn status(&self) -> String {
        let list = |what: &str, macs: &[Mac]| {
            let each: String = macs.iter().map(|mac| format!(" {mac}")).collect();
            if each.is_empty() { each } else { format!("{what}{each}\n") }
        };
        let config = String::from_utf8_lossy(&self.config);
        format!("config {config:?}\n{}{}", list("mask", &self.mask), list("reserved", &self.reserved))
    }

    pub(super) fn configure(&mut self, asked: &Config<'_>) -> Verdict {
        let fine = |is| if is { Verdict::Fine } else { Verdict::Silence };
        match asked.what {
            config::READ => Verdict::Fine,
            config::IS => fine(self.config == asked.string),
            config::BEGINS => fine(self.config.starts_with(asked.string)),
            config::SET_EMPTY if !self.config.is_empty() && self.config != asked.string => {
                Verdict::Error(error::PRESENT)
            }
            config::SET_EMPTY | config::SET => {
                self.config = asked.string.to_vec();
                Verdict::Fine
            }
            _ => Verdict::Error(error::ARGUMENT),
        }
    }

    /// Executes a mask request. Returns the arguments of the answer, or an error code for its header.
    pub(super) fn mask(&mut self, body: &[u8]) -> Result<Vec<u8>, u8> {
        let asked = Mask::parse(body).filter(|asked| asked.what <= 1).ok_or(error::ARGUMENT)?;
        let mut error = 0;
        if asked.what == 1 {
            let mut mask = self.mask.clone();
            for edit in asked.edits {
                match edit {
                    Edit::Nothing => {}
                    Edit::Add(mac) if !mask.contains(&mac) => mask.push(mac),
                    Edit::Add(_) => {}
                    Edit::Delete(mac) => mask.retain(|other| *other != mac),
                    Edit::Bad => error = 2,
                }
            }
            if error == 0 && mask.len() > self.most {
                error = 3;
            }
            if error == 0 {
                self.mask = mask;
            }
        }
        let edits = self.mask.iter().take(self.most).map(|mac| Edit::Add(*mac)).collect();
        Ok(Mask { what: asked.what, error, edits }.bytes())
    }

    /// Executes a reserve request. Returns the arguments of the answer, or an error code for its header.
    pub(super) fn reserve(&mut self, from: Mac, body: &[u8]) -> Result<Vec<u8>, u8> {
        let asked = Reserve::parse(body).filter(|asked| asked.what <= 2).ok_or(error::ARGUMENT)?;
        match asked.what {
            1 if !self.may(from) => return Err(error::RESERVED),
            1 | 2 => self.reserved = asked.macs,
            _ => {}
        }
        Ok(Reserve { what: asked.what, macs: self.reserved.clone() }.bytes())
    }
}
