//! All the memory one guest shares, mapped once for all its devices (ZOC §4.4).

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use thiserror::Error;

use crate::budget::Budget;
use crate::{MapError, Mapping, MappingKey};

/// The most mappings of a domain at once: twice what a vhost-user front end may share (509 regions), for its next table
/// while requests still hold on to the one before. One in 32 of what the process can watch.
pub const MAX_MAPPINGS: usize = 1024;
const _: () = assert!(MAX_MAPPINGS * 32 <= crate::fault::SLOTS);

/// Why a connection may not use a descriptor as its guest's memory.
#[derive(Debug, Error)]
pub enum DomainError {
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// More than its part of what this process can watch.
    #[error(
        "domain '{domain}' would have more than {limit} pieces of memory mapped: share the guest's memory in fewer, or wait until \
         requests to what it no longer shares have ended"
    )]
    TooMany {
        /// The domain as configured.
        domain: String,
        /// [`MAX_MAPPINGS`].
        limit: usize,
    },
    /// More bytes than a domain may have.
    #[error(
        "domain '{domain}' would have more than {limit} bytes mapped, with what is still being unmapped: share less memory, or raise \
         node.dataplane.domain-memory"
    )]
    TooLarge {
        /// The domain as configured.
        domain: String,
        /// How many it may have.
        limit: u64,
    },
    /// Other devices of the domain are in use by a guest with other memory.
    #[error(
        "none of these descriptors is memory of domain '{domain}', which another device of that domain shares right \
         now: is this a second guest on a device of the first?"
    )]
    Foreign {
        /// The domain as configured.
        domain: String,
    },
}

/// The memory of one guest, or of the host.
#[derive(Debug)]
pub struct Domain {
    name: String,
    budget: Arc<Budget>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    mappings: HashMap<MappingKey, Weak<Mapping>>,
    /// Those of files that were cut short, while they are still held. They are zeroes: the file is mapped anew.
    faulted: Vec<Weak<Mapping>>,
    /// The files (device, inode) that each member holds memory of.
    members: HashMap<u64, HashSet<(u64, u64)>>,
    joined: u64,
}

impl State {
    fn put_faulted_aside(&mut self) {
        let State { mappings, faulted, .. } = self;
        mappings.retain(|_, weak| match weak.upgrade() {
            Some(mapping) if mapping.is_faulted() => {
                faulted.push(Weak::clone(weak));
                false
            }
            held => held.is_some(),
        });
        faulted.retain(|mapping| mapping.strong_count() > 0);
    }
}

impl Domain {
    /// A domain of that name, with nothing mapped, that may map `limit` bytes.
    pub fn new(name: impl Into<String>, limit: u64) -> Arc<Domain> {
        Arc::new(Domain { name: name.into(), budget: Budget::new(limit), state: Mutex::default() })
    }

    /// Maps bytes of a file within the domain's limit.
    fn map_file(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Arc<Mapping>, DomainError> {
        let reservation = self
            .budget
            .reserve(len)
            .ok_or_else(|| DomainError::TooLarge { domain: self.name.clone(), limit: self.budget.limit() })?;
        Ok(Mapping::reserved(fd, offset, len, Some(reservation))?)
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A connection that will share memory.
    pub fn join(self: &Arc<Self>) -> Member {
        let mut state = self.lock();
        state.joined += 1;
        Member { domain: Arc::clone(self), id: state.joined }
    }

    /// Bytes mapped right now.
    pub fn mapped(&self) -> u64 {
        let state = self.lock();
        let held = state.mappings.values().chain(&state.faulted).filter_map(Weak::upgrade);
        held.map(|mapping| mapping.len() as u64).sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's part in a domain; what it held is forgotten when it is dropped.
#[derive(Debug)]
pub struct Member {
    domain: Arc<Domain>,
    id: u64,
}

impl Member {
    /// Maps file ranges (descriptor, offset, length), in place of what this connection mapped before: what another
    /// device of the domain already mapped is shared, the rest is new. All or nothing.
    ///
    /// Where other connections of the domain hold memory, at least one of the ranges has to be of a file they hold: one
    /// guest's memory files are known to all its devices, another guest's to none.
    ///
    /// # Errors
    /// [`DomainError`]; the connection then holds what it held.
    pub fn map(&self, ranges: &[(BorrowedFd<'_>, u64, u64)]) -> Result<Vec<Arc<Mapping>>, DomainError> {
        let keys =
            ranges.iter().map(|(fd, offset, len)| Mapping::key(*fd, *offset, *len)).collect::<Result<Vec<_>, _>>()?;
        let files: HashSet<(u64, u64)> = keys.iter().map(|key| (key.device, key.inode)).collect();
        let mut state = self.domain.lock();
        let mut others = state.members.iter().filter(|(id, held)| **id != self.id && !held.is_empty()).peekable();
        if !files.is_empty() && others.peek().is_some() && others.all(|(_, held)| held.is_disjoint(&files)) {
            return Err(DomainError::Foreign { domain: self.domain.name.clone() });
        }
        state.put_faulted_aside();
        let mut mapped = Vec::with_capacity(keys.len());
        for (key, (fd, offset, len)) in keys.into_iter().zip(ranges) {
            let mapping = match state.mappings.get(&key).and_then(Weak::upgrade) {
                Some(mapping) => mapping,
                None if state.mappings.len() + state.faulted.len() >= MAX_MAPPINGS => {
                    return Err(DomainError::TooMany { domain: self.domain.name.clone(), limit: MAX_MAPPINGS });
                }
                None => {
                    let mapping = self.domain.map_file(*fd, *offset, *len)?;
                    state.mappings.insert(key, Arc::downgrade(&mapping));
                    mapping
                }
            };
            mapped.push(mapping);
        }
        state.members.insert(self.id, files);
        Ok(mapped)
    }
}

impl Member {
    /// Maps bytes of a file that are no memory of the guest's, such as its dirty log.
    ///
    /// # Errors
    /// [`DomainError`].
    pub fn map_log(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Arc<Mapping>, DomainError> {
        self.domain.map_file(fd, offset, len)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.domain.lock().members.remove(&self.id);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;

    fn memory(size: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, size).unwrap();
        file
    }

    #[test]
    fn two_devices_of_a_guest_share_one_mapping() {
        let domain = Domain::new("vm1", u64::MAX);
        let file = memory(0x2000);
        let copy = file.try_clone().unwrap();
        let (disk, nic) = (domain.join(), domain.join());
        let first = disk.map(&[(file.as_fd(), 0, 0x2000)]).unwrap();
        let second = nic.map(&[(copy.as_fd(), 0, 0x2000)]).unwrap();
        assert!(Arc::ptr_eq(&first[0], &second[0]));
        assert_eq!(domain.mapped(), 0x2000);
        drop((first, second));
        assert_eq!(domain.mapped(), 0);
    }

    #[test]
    fn a_second_guest_is_refused_until_the_first_has_gone() {
        let domain = Domain::new("vm1", u64::MAX);
        let (mine, foreign) = (memory(0x1000), memory(0x1000));
        let (first, second) = (domain.join(), domain.join());
        let _pinned = first.map(&[(mine.as_fd(), 0, 0x1000)]).unwrap();
        let refused = second.map(&[(foreign.as_fd(), 0, 0x1000)]);
        assert!(matches!(refused, Err(DomainError::Foreign { .. })), "{refused:?}");
        drop(first);
        assert!(second.map(&[(foreign.as_fd(), 0, 0x1000)]).is_ok(), "what only a request still pins does not count");
    }

    #[test]
    fn a_domain_has_a_bounded_part_of_what_can_be_mapped_and_others_have_theirs() {
        let (greedy, other) = (Domain::new("vm1", u64::MAX), Domain::new("vm2", u64::MAX));
        let file = memory((MAX_MAPPINGS as u64 + 1) << 12);
        let ranges: Vec<_> = (0..=MAX_MAPPINGS as u64).map(|page| (file.as_fd(), page << 12, 1 << 12)).collect();
        let member = greedy.join();
        let refused = member.map(&ranges).unwrap_err();
        assert!(matches!(&refused, DomainError::TooMany { domain, .. } if domain == "vm1"), "{refused}");
        assert_eq!(greedy.mapped(), 0, "all or nothing");
        let held = member.map(&ranges[1..]).unwrap();
        assert!(member.map(&ranges[..1]).is_err(), "what requests still hold counts");
        assert!(greedy.join().map(&ranges[5..9]).is_ok(), "what is mapped already is no more");
        assert!(other.join().map(&ranges[..1]).is_ok());
        drop(held);
        assert!(member.map(&ranges[..1]).is_ok());
    }

    #[test]
    fn a_mapping_that_was_cut_short_is_not_given_to_another_device() {
        crate::catch_bus_errors();
        let domain = Domain::new("vm1", u64::MAX);
        let file = memory(0x2000);
        let (disk, nic) = (domain.join(), domain.join());
        let held = disk.map(&[(file.as_fd(), 0, 0x2000)]).unwrap();
        rustix::fs::ftruncate(&file, 0).unwrap();
        let region = crate::Region::new(crate::GuestAddress(0), crate::UserAddress(0), 0x2000, Arc::clone(&held[0]), 0);
        let view = crate::View::new(vec![region]).unwrap();
        view.buffer(crate::GuestAddress(0), 8).unwrap().write_at(0, &[7; 8]).unwrap();
        assert!(held[0].is_faulted());
        rustix::fs::ftruncate(&file, 0x2000).unwrap();
        let anew = nic.map(&[(file.as_fd(), 0, 0x2000)]).unwrap();
        assert!(!anew[0].is_faulted() && !Arc::ptr_eq(&held[0], &anew[0]));
        assert_eq!(domain.mapped(), 0x4000, "what is held is counted");
        let again = disk.map(&[(file.as_fd(), 0, 0x2000)]).unwrap();
        assert!(Arc::ptr_eq(&again[0], &anew[0]));
    }

    #[test]
    fn a_domain_maps_no_more_bytes_than_it_may_and_has_them_again_when_they_are_unmapped() {
        let domain = Domain::new("vm1", 0x3000);
        let (file, huge) = (memory(0x2000), memory(1 << 40));
        let member = domain.join();
        let refused = member.map(&[(huge.as_fd(), 0, 1 << 40)]).unwrap_err();
        assert!(matches!(&refused, DomainError::TooLarge { limit: 0x3000, .. }), "{refused}");
        let held = member.map(&[(file.as_fd(), 0, 0x2000)]).unwrap();
        assert!(domain.join().map(&[(file.as_fd(), 0, 0x2000)]).is_ok(), "what is mapped already takes nothing");
        let log = member.map_log(file.as_fd(), 0, 0x1000).unwrap();
        assert!(member.map_log(file.as_fd(), 0, 0x1000).is_err(), "a log counts");
        drop((held, log));
        // The reaper unmaps them.
        let start = std::time::Instant::now();
        while member.map(&[(file.as_fd(), 0x1000, 0x1000), (file.as_fd(), 0, 0x2000)]).is_err() {
            assert!(start.elapsed() < std::time::Duration::from_secs(20), "what was unmapped is not given back");
            std::thread::yield_now();
        }
    }

    #[test]
    fn hot_plugged_memory_joins_the_domain() {
        let domain = Domain::new("vm1", u64::MAX);
        let (boot, plugged) = (memory(0x1000), memory(0x1000));
        let (first, second) = (domain.join(), domain.join());
        let _held = first.map(&[(boot.as_fd(), 0, 0x1000)]).unwrap();
        let both = second.map(&[(boot.as_fd(), 0, 0x1000), (plugged.as_fd(), 0, 0x1000)]).unwrap();
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn the_only_device_of_a_guest_may_replace_all_its_memory() {
        let domain = Domain::new("vm1", u64::MAX);
        let (before, after) = (memory(0x1000), memory(0x1000));
        let only = domain.join();
        let _still_pinned = only.map(&[(before.as_fd(), 0, 0x1000)]).unwrap();
        assert!(only.map(&[(after.as_fd(), 0, 0x1000)]).is_ok());
    }

    #[test]
    fn what_is_not_memory_is_refused_by_kind() {
        let domain = Domain::new("vm1", u64::MAX);
        let member = domain.join();
        let short = memory(0x1000);
        assert!(matches!(
            member.map(&[(short.as_fd(), 0, 0x2000)]),
            Err(DomainError::Map(MapError::TooShort { size: 0x1000, needed: 0x2000 }))
        ));
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert!(matches!(member.map(&[(event.as_fd(), 0, 0x1000)]), Err(DomainError::Map(_))));
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(matches!(
            member.map(&[(socket.as_fd(), 0, 0x1000)]),
            Err(DomainError::Map(MapError::NotMemory("socket")))
        ));
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        assert!(matches!(member.map(&[(zero.as_fd(), 0, 0x1000)]), Err(DomainError::Map(MapError::NotMemory(_)))));
        let file = memory(0x1000);
        for (offset, len) in [(1, 8), (0, 0), (u64::MAX - 4095, 4096), (0x1000, 1)] {
            assert!(member.map(&[(file.as_fd(), offset, len)]).is_err(), "{offset:#x}+{len:#x}");
        }
        assert_eq!(domain.mapped(), 0);
    }

    #[test]
    fn files_whose_page_faults_others_may_serve_are_refused_by_the_file_systems_name() {
        let domain = Domain::new("vm1", u64::MAX);
        let member = domain.join();
        for (path, file_system) in
            [("/proc/self/environ", "procfs"), ("/sys/kernel/mm/transparent_hugepage/enabled", "sysfs")]
        {
            let Ok(file) = File::open(path) else { continue };
            match member.map(&[(file.as_fd(), 0, 0x1000)]) {
                Err(DomainError::Map(MapError::FileSystem { name, .. })) => assert_eq!(name, file_system),
                other => panic!("{path}: {other:?}"),
            }
        }
    }
}
