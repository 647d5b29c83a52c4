//! Identify (Base §5.17; NVM §4.1.5).

use std::sync::atomic::Ordering;

use super::abi::{VERSION, event};
use super::admin::Done;
use super::io::Namespace;
use super::{BROADCAST, Command, Controller, Status};

/// Bytes of every Identify data structure.
const SIZE: usize = 4096;

/// An Identify data structure that is being filled.
struct Page(Box<[u8; SIZE]>);

impl Page {
    fn new() -> Page {
        Page(Box::new([0; SIZE]))
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.0.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    fn u8(&mut self, at: usize, value: u8) {
        self.put(at, &[value]);
    }

    fn u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    /// ASCII, padded with spaces (Base §1.4.2).
    fn text(&mut self, at: usize, len: usize, text: &str) {
        let bytes: Vec<u8> = text.bytes().chain(std::iter::repeat(b' ')).take(len).collect();
        self.put(at, &bytes);
    }

    /// A list of dwords.
    fn list(values: impl Iterator<Item = u32>) -> Page {
        let mut page = Page::new();
        for (index, value) in values.take(SIZE / 4).enumerate() {
            page.u32(index * 4, value);
        }
        page
    }
}

impl Controller {
    pub(super) fn identify(&mut self, command: &Command) -> Result<Done, Status> {
        let (cdw10, nsid) = (command.dword(10), command.nsid());
        let csi = (command.dword(11) >> 24) as u8;
        // The NVM command set is the only one.
        let of_set = |page: Page| if csi == 0 { Ok(page) } else { Err(Status::COMMAND_SET) };
        let ids = |after: u32| self.shared.all_active().map(|ns| ns.config.nsid).filter(move |id| *id > after);
        let page = match cdw10 as u8 {
            0x00 => self.namespace(nsid)?,
            0x01 => self.controller(),
            0x02 if nsid >= 0xffff_fffe => return Err(Status::INVALID_NAMESPACE),
            0x02 => Page::list(ids(nsid)),
            0x03 => descriptors(self.find_active(nsid)?),
            // I/O command set specific: a namespace has nothing beyond CNS 00h (NVM §4.1.5.3: ELBAF of no protection
            // information).
            0x05 => {
                self.find_active(nsid)?;
                of_set(Page::new())?
            }
            0x06 => of_set(self.command_set_controller())?,
            0x07 if nsid >= 0xffff_fffe => return Err(Status::INVALID_NAMESPACE),
            0x07 => of_set(Page::list(ids(nsid)))?,
            0x08 => independent(self.find_active(nsid)?),
            0x10 if nsid >= 0xffff_fffe => return Err(Status::INVALID_NAMESPACE),
            0x10 => Page::list(self.shared.namespaces.iter().map(|ns| ns.config.nsid).filter(|id| *id > nsid)),
            0x11 => match self.shared.find(nsid) {
                Some(namespace) => describe(namespace),
                None => return Err(Status::INVALID_NAMESPACE),
            },
            // Controllers that a namespace is attached to, and those of the subsystem: this one.
            0x12 => {
                self.find_active(nsid)?;
                self.controllers((cdw10 >> 16) as u16)
            }
            0x13 => self.controllers((cdw10 >> 16) as u16),
            // I/O command sets: one combination, with the NVM command set.
            0x1c => {
                let mut page = Page::new();
                page.u64(0, 1);
                page
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        self.give(command, &page.0[..])?;
        Ok(Done::Now(0))
    }

    /// A namespace that is attached.
    fn find_active(&self, nsid: u32) -> Result<&Namespace, Status> {
        match self.shared.active(nsid) {
            Some(namespace) => Ok(namespace),
            None if self.shared.find(nsid).is_some() => Err(Status::INVALID_FIELD),
            None => Err(Status::INVALID_NAMESPACE),
        }
    }

    /// CNS 00h: an attached namespace; zeroes for one that is not (Base §5.17.2.1).
    fn namespace(&self, nsid: u32) -> Result<Page, Status> {
        if nsid == BROADCAST || nsid == 0 {
            // What all namespaces have in common is for controllers with namespace management.
            return Err(Status::INVALID_NAMESPACE);
        }
        match self.shared.active(nsid) {
            Some(namespace) => Ok(describe(namespace)),
            None if nsid as usize <= super::MAX_NAMESPACES => Ok(Page::new()),
            None => Err(Status::INVALID_NAMESPACE),
        }
    }

    /// CNS 01h (Base §5.17.2.2).
    fn controller(&self) -> Page {
        let config = &self.config;
        let mut page = Page::new();
        // VID, SSVID: those of the PCI function, Red Hat's for devices of QEMU and its kin.
        page.u16(0, 0x1b36);
        page.u16(2, 0x1af4);
        page.text(4, 20, &config.serial.to_string());
        page.text(24, 40, "softdpu NVMe");
        page.text(64, 8, env!("CARGO_PKG_VERSION"));
        // RAB: 2^6 commands.
        page.u8(72, 6);
        // MDTS, in pages of 4 KiB.
        page.u8(77, (config.max_transfer / 4096).trailing_zeros() as u8);
        page.u16(78, config.id);
        page.u32(80, VERSION);
        // OAES.
        page.u32(92, event::ENABLE_NAMESPACES);
        // CNTRLTYPE: an I/O controller.
        page.u8(111, 1);
        // OACS: Doorbell Buffer Config.
        page.u16(256, if config.shadow_doorbells { 1 << 8 } else { 0 });
        // ACL, AERL, 0's based.
        page.u8(258, 3);
        page.u8(259, super::events::LIMIT as u8 - 1);
        // FRMW: one slot, read-only.
        page.u8(260, 1 << 1 | 1);
        // LPA: commands supported and effects, extended data (offsets).
        page.u8(261, 1 << 1 | 1 << 2);
        // ELPE, 0's based.
        page.u8(262, super::logs::ERRORS as u8 - 1);
        // WCTEMP, CCTEMP, Kelvin.
        page.u16(266, 343);
        page.u16(268, 353);
        // SQES, CQES: 64 and 16 bytes.
        page.u8(512, 0x66);
        page.u8(513, 0x44);
        // NN, MNAN.
        page.u32(516, super::MAX_NAMESPACES as u32);
        page.u32(540, super::MAX_NAMESPACES as u32);
        // ONCS: Compare, Dataset Management, Write Zeroes, Select of features, Timestamp, Verify.
        page.u16(520, 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7);
        // VWC: present; Flush of all namespaces is supported.
        page.u8(525, 1 | 3 << 1);
        // SGLS: supported, without alignment.
        page.u32(536, 1);
        page.put(768, config.nqn.as_bytes());
        // Power state 0: 25 W.
        page.u16(2048, 2500);
        page
    }

    /// CNS 06h of the NVM command set (NVM §4.1.5.4).
    fn command_set_controller(&self) -> Page {
        let mut page = Page::new();
        // VSL, as MDTS. WZSL 0: any size.
        page.u8(0, (self.config.max_transfer / 4096).trailing_zeros() as u8);
        page
    }

    /// A controller list (Base §5.17.2.11) from this identifier on.
    fn controllers(&self, from: u16) -> Page {
        let mut page = Page::new();
        if self.config.id >= from {
            page.u16(0, 1);
            page.u16(2, self.config.id);
        }
        page
    }
}

/// The Identify Namespace data structure of the NVM command set (NVM §4.1.5.1).
fn describe(namespace: &Namespace) -> Page {
    let config = &namespace.config;
    let blocks = namespace.blocks.load(Ordering::Acquire);
    let mut page = Page::new();
    // NSZE, NCAP, NUSE.
    for at in [0, 8, 16] {
        page.u64(at, blocks);
    }
    // FLBAS: format 0, the only one.
    page.u8(26, 0);
    // DLFEAT: the deallocate bit of Write Zeroes; what deallocated blocks read as is not reported.
    page.u8(33, 1 << 3);
    // NVMCAP.
    page.u64(48, config.capacity);
    page.u8(99, u8::from(config.read_only));
    page.put(104, &config.nguid);
    // LBAF0: LBADS.
    page.u32(128, namespace.shift << 16);
    page
}

/// Namespace identification descriptors (Base §5.17.2.3): NGUID, and the command set.
fn descriptors(namespace: &Namespace) -> Page {
    let mut page = Page::new();
    // NIDT 2, NIDL 16.
    page.put(0, &[2, 16, 0, 0]);
    page.put(4, &namespace.config.nguid);
    // NIDT 4, NIDL 1: the NVM command set.
    page.put(20, &[4, 1, 0, 0, 0]);
    page
}

/// The I/O Command Set Independent Identify Namespace data structure (Base §5.17.2.8).
fn independent(namespace: &Namespace) -> Page {
    let mut page = Page::new();
    page.u8(8, u8::from(namespace.config.read_only));
    // NSTAT: ready.
    page.u8(14, 1);
    page
}
