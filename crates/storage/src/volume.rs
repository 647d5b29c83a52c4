//! A volume: what is common to all kinds, and what all cores share of one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use serde::{Deserialize, Serialize};

use softdpu_accel::Xts;
use softdpu_sys::secret::Secret;

use crate::cipher;
use crate::file::disk::Disk;
use crate::file::{self, FileBacking};
use crate::memory::{self, Memory};
use crate::nbd::{self, NbdBacking};
use crate::{BlockOp, Broker, Encryption, IoError, Request, VolumeError, VolumeKind, VolumeSpec};

/// Where a volume is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// Opened for reading its size; not fenced, no requests.
    Opened,
    /// Fenced, takes requests.
    Active,
    /// Active, but its back end is away; requests wait.
    Recovering,
    /// Its back end is there, but cannot be used as it is (an export that has shrunk, say): it needs an operator.
    /// Requests fail when their time is up. Should the back end become what it was, so does the volume.
    Failed,
}

/// The answer of [`Volume::activate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The fence is ours.
    Active,
    /// Another process still has it: a dead one with I/O in flight, or a living one. Try again soon.
    Busy {
        /// The holder, as far as is known.
        why: String,
    },
}

/// What a back end can take in one discard or write-zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeLimits {
    /// Ranges should start and end at multiples of this many bytes to have an effect.
    pub alignment: u32,
    /// The longest range, bytes; never zero.
    pub max_bytes: u64,
}

/// What a device tells its driver about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLimits {
    /// Every range starts and ends at multiples of this many bytes.
    pub block_size: u32,
    /// The size of I/O the back end is best at, bytes; at least the block size.
    pub preferred_block: u32,
    /// Discards, if it takes them.
    pub discard: Option<RangeLimits>,
    /// Write-zeroes; every kind takes them, natively or not.
    pub write_zeroes: RangeLimits,
}

/// Failed requests by reason, since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCounts {
    /// [`IoError::NoSpace`].
    pub no_space: u64,
    /// [`IoError::Device`].
    pub device: u64,
    /// [`IoError::Timeout`].
    pub timeout: u64,
    /// [`IoError::OutOfRange`], [`IoError::ReadOnly`], [`IoError::Unsupported`]: the driver asked for the impossible.
    pub refused: u64,
    /// [`IoError::Gone`].
    pub gone: u64,
    /// Connections to the back end that were lost.
    pub disconnects: u64,
    /// Requests that were sent a second time after a connection was lost.
    pub replayed: u64,
    /// Connections to the back end that were lost when writes that it had answered were not flushed: if it lost its
    /// cache, those writes are lost, and their driver does not learn of it.
    #[serde(default)]
    pub unflushed: u64,
    /// Requests given up while in flight, because their queue was stopped.
    pub abandoned: u64,
}

/// A volume as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// `null`, `memory`, `file`, `device` or `nbd`.
    pub kind: String,
    /// Where it is in its life.
    pub state: VolumeState,
    /// What it waits for or why it failed; empty when all is well.
    pub detail: String,
    /// Bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Cipher and bits of the key, such as `aes-xts-plain64 512`; none where it is not encrypted.
    pub encryption: Option<String>,
    /// Failed requests.
    pub errors: ErrorCounts,
    /// The last error, in words.
    pub last_error: Option<String>,
}

pub(crate) enum Backing {
    Null,
    Memory(Memory),
    File(FileBacking),
    Nbd(Box<NbdBacking>),
}

#[derive(Debug)]
struct Condition {
    state: VolumeState,
    detail: String,
    last_error: Option<String>,
    errors: ErrorCounts,
}

/// A disk's bytes, as all cores of this process share them.
pub struct Volume {
    spec: VolumeSpec,
    size: AtomicU64,
    limits: VolumeLimits,
    active: AtomicBool,
    condition: Mutex<Condition>,
    /// One grows or activates at a time.
    change: Mutex<()>,
    /// Where it is encrypted.
    cipher: Option<Secret<Xts>>,
    pub(crate) backing: Backing,
}

impl Volume {
    /// Opens what the specification names. Nothing is locked yet and nothing is written, except that a file that is to
    /// be created is created, and an NBD server is connected to (for up to ten seconds after its name is resolved, and
    /// only if no process before us has learned what there is to know). So it may block: not for a thread that others
    /// wait for.
    ///
    /// # Errors
    /// [`VolumeError`] with what was wrong.
    pub fn open(spec: VolumeSpec, broker: &Arc<dyn Broker>) -> Result<Arc<Volume>, VolumeError> {
        if let Some(problem) = spec.problem() {
            return Err(VolumeError::spec(&spec.name, problem));
        }
        let loaded =
            spec.encryption.as_ref().map(|encryption| cipher::key::load(&spec, encryption, &**broker)).transpose()?;
        let (cipher, new_key) = loaded.map_or((None, None), |(cipher, new)| (Some(cipher), new));
        let anything = RangeLimits { alignment: spec.block_size, max_bytes: 1 << 30 };
        let mut limits = VolumeLimits {
            block_size: spec.block_size,
            preferred_block: spec.block_size.max(4096),
            discard: Some(anything),
            write_zeroes: anything,
        };
        let (backing, size) = match &spec.kind {
            VolumeKind::Null { size } => (Backing::Null, *size),
            VolumeKind::Memory { size } => {
                let (memory, size) = Memory::open(&spec.name, *size, &**broker)?;
                (Backing::Memory(memory), size)
            }
            VolumeKind::File { .. } | VolumeKind::Device { .. } => {
                let (file, size, file_limits) = FileBacking::open(&spec, &**broker)?;
                limits = file_limits;
                (Backing::File(file), size)
            }
            VolumeKind::Nbd { .. } => {
                let (nbd, size, nbd_limits) = NbdBacking::open(&spec, broker)?;
                limits = nbd_limits;
                (Backing::Nbd(Box::new(nbd)), size)
            }
        };
        if spec.read_only || spec.encryption.as_ref().is_some_and(|encryption| !encryption.discard) {
            limits.discard = None;
        }
        // Not before: a server or a file that is not there must leave no key behind that wins over a better one.
        if let Some(key) = new_key {
            key.keep(&spec.name, &**broker)?;
        }
        let condition = Condition {
            state: VolumeState::Opened,
            detail: String::new(),
            last_error: None,
            errors: ErrorCounts::default(),
        };
        Ok(Arc::new(Volume {
            spec,
            size: AtomicU64::new(size),
            limits,
            active: AtomicBool::new(false),
            condition: Mutex::new(condition),
            change: Mutex::new(()),
            cipher,
            backing,
        }))
    }

    /// Takes the fence: when it answers `Active`, no write of a process before us can land any more. Asking again is
    /// harmless. Does not wait: on `Busy` the caller tries again after a few milliseconds.
    ///
    /// # Errors
    /// When the fence cannot even be asked for; the state is [`VolumeState::Failed`] then. Trying again is worth it
    /// where the cause may go away.
    pub fn activate(&self) -> Result<Activation, VolumeError> {
        if self.is_active() {
            return Ok(Activation::Active);
        }
        let _one = match self.change.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            // Growing asks servers and file systems, and may take as long as they please.
            Err(TryLockError::WouldBlock) => return Ok(Activation::Busy { why: "it is being grown".into() }),
        };
        let activation = match &self.backing {
            // Bytes of ours alone, changed only by running code: what ended before us cannot write any more.
            Backing::Null | Backing::Memory(_) => Ok((Activation::Active, None)),
            Backing::File(file) => file.fence(&self.spec.name, self.size()),
            Backing::Nbd(nbd) => nbd.fence().map(|activation| (activation, None)),
        };
        // Another host may have made it larger while this one waited for it.
        let activation = activation.map(|(activation, size)| {
            if let Some(size) = size {
                self.size.store(size, Ordering::Release);
            }
            activation
        });
        match &activation {
            Ok(Activation::Active) => {
                self.enter(VolumeState::Active, "");
                self.active.store(true, Ordering::Release);
            }
            Ok(Activation::Busy { why }) => self.enter(VolumeState::Opened, why),
            Err(error) => self.enter(VolumeState::Failed, &error.to_string()),
        }
        activation
    }

    /// Whether its bytes are outside of this process and its supervisor, where another host may go on with them.
    pub fn is_elsewhere(&self) -> bool {
        match &self.backing {
            Backing::Null | Backing::Memory(_) => false,
            Backing::File(_) | Backing::Nbd(_) => true,
        }
    }

    /// Has all that was written put where another host finds it, and lets go of what is cached here and may be old
    /// when this process has the volume again: before a [`release`](Self::release) for another host. May block for as
    /// long as a file system or server takes.
    ///
    /// # Errors
    /// When something that was written cannot be put there.
    pub fn settle(&self) -> Result<(), VolumeError> {
        let settled = match &self.backing {
            Backing::Null | Backing::Memory(_) => Ok(()),
            Backing::File(file) => file.settle(&self.spec),
            Backing::Nbd(nbd) => nbd.settle(),
        };
        settled.inspect_err(|error| self.condition().last_error = Some(error.to_string()))
    }

    /// Gives the fence up, for another process to take: for a volume of which no queue runs and no request is in
    /// flight. [`activate`](Self::activate) takes it again. Whether it is given up: not while a write of this process
    /// that was abandoned may still land, nor while the volume is being grown.
    ///
    /// # Errors
    /// When the fence cannot be given up; it ends with this process then.
    pub fn release(&self) -> Result<bool, VolumeError> {
        let _one = match self.change.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        if !self.is_active() {
            self.unwanted();
            return Ok(true);
        }
        match &self.backing {
            Backing::Null | Backing::Memory(_) => {}
            // The next process shuts the connections of this one down, and waits for the server to close them.
            Backing::Nbd(nbd) => nbd.release(),
            Backing::File(file) => {
                if !file.release(&self.spec.name)? {
                    return Ok(false);
                }
            }
        }
        self.active.store(false, Ordering::Release);
        self.enter(VolumeState::Opened, "");
        Ok(true)
    }

    /// Nothing waits for its fence any more.
    pub fn unwanted(&self) {
        if self.condition().state == VolumeState::Opened {
            self.enter(VolumeState::Opened, "");
        }
    }

    /// Whether it takes requests.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Makes it larger; the same size is fine. May block, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// [`VolumeError::Shrink`] for less than it has; others where the back end cannot grow.
    pub fn grow(&self, new_size: u64) -> Result<(), VolumeError> {
        let _one = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let name = &self.spec.name;
        let size = self.size();
        if let Some(problem) = self.spec.size_problem(new_size) {
            return Err(VolumeError::spec(name, problem));
        }
        let block = u64::from(self.limits.block_size);
        if !new_size.is_multiple_of(block) {
            return Err(VolumeError::spec(
                name,
                format!("size {new_size} is not a multiple of its block size {block}"),
            ));
        }
        if new_size < size {
            return Err(VolumeError::Shrink { volume: name.clone(), size, asked: new_size });
        }
        if new_size == size {
            return Ok(());
        }
        match &self.backing {
            Backing::Null => {}
            Backing::Memory(memory) => memory.grow(name, new_size)?,
            Backing::File(file) => file.grow(name, new_size)?,
            Backing::Nbd(nbd) => nbd.grow(new_size)?,
        }
        self.size.store(new_size, Ordering::Release);
        Ok(())
    }

    /// Has the broker forget all it keeps of the volume of that name: for a volume that was deleted, after the last
    /// user of it is gone. Otherwise the next volume of that name would begin with the bytes of this one, which may
    /// have been another tenant's.
    ///
    /// A keeper that cannot be asked is logged, and the rest is still tried: the volume is gone either way.
    pub fn forget_kept(name: &str, broker: &dyn Broker) {
        let sockets = broker.kept(&nbd::sockets_prefix(name)).unwrap_or_else(|error| {
            tracing::warn!(volume = name, %error, "cannot ask for the kept connections of a deleted volume");
            Vec::new()
        });
        let sockets = sockets.into_iter().map(|(key, _)| key);
        for key in kept_keys(name).into_iter().chain(sockets) {
            if let Err(error) = broker.forget(&key) {
                tracing::warn!(volume = name, key, %error, "what is kept of a deleted volume cannot be forgotten");
            }
        }
    }

    /// Whether `key` is one under which a broker keeps something of the volume `name`: what
    /// [`forget_kept`](Self::forget_kept) would have forgotten.
    pub fn is_kept_of(name: &str, key: &str) -> bool {
        kept_keys(name).iter().any(|kept| kept == key) || key.starts_with(&nbd::sockets_prefix(name))
    }

    /// What it was opened from.
    pub fn spec(&self) -> &VolumeSpec {
        &self.spec
    }

    /// The disk of this machine that it is on, where it is a file or a block device.
    pub fn disk(&self) -> Option<Disk> {
        match &self.backing {
            Backing::File(file) => Some(file.disk),
            Backing::Null | Backing::Memory(_) | Backing::Nbd(_) => None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Whether writes are refused.
    #[inline]
    pub fn read_only(&self) -> bool {
        self.spec.read_only
    }

    /// Logical block size, bytes.
    pub fn block_size(&self) -> u32 {
        self.limits.block_size
    }

    /// What encrypts it.
    #[inline]
    pub(crate) fn cipher(&self) -> Option<&Xts> {
        self.cipher.as_deref()
    }

    /// What a device tells its driver.
    pub fn limits(&self) -> &VolumeLimits {
        &self.limits
    }

    /// For `status`.
    pub fn status(&self) -> VolumeStatus {
        let condition = self.condition();
        let remark = match &self.backing {
            Backing::File(file) if condition.state == VolumeState::Active => file.remark(),
            Backing::Null | Backing::Memory(_) | Backing::File(_) | Backing::Nbd(_) => None,
        };
        VolumeStatus {
            name: self.spec.name.clone(),
            kind: self.spec.kind.word().into(),
            state: condition.state,
            detail: remark.filter(|_| condition.detail.is_empty()).unwrap_or_else(|| condition.detail.clone()),
            size: self.size(),
            read_only: self.read_only(),
            encryption: self.cipher().map(|xts| format!("{} {}", Encryption::CIPHER, xts.key_bits())),
            errors: condition.errors,
            last_error: condition.last_error.clone(),
        }
    }

    fn condition(&self) -> std::sync::MutexGuard<'_, Condition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes state; logs where that is news.
    pub(crate) fn enter(&self, state: VolumeState, detail: &str) {
        let mut condition = self.condition();
        if condition.state == state && condition.detail == detail {
            return;
        }
        match state {
            VolumeState::Failed => tracing::error!(volume = self.spec.name, detail, "volume failed"),
            VolumeState::Recovering => tracing::warn!(volume = self.spec.name, detail, "volume recovering"),
            VolumeState::Opened | VolumeState::Active => {
                tracing::info!(volume = self.spec.name, ?state, detail, "volume")
            }
        }
        condition.state = state;
        condition.detail = detail.into();
    }

    /// Counts a failed request.
    #[cold]
    pub(crate) fn count(&self, error: IoError) {
        let mut condition = self.condition();
        let errors = &mut condition.errors;
        match error {
            IoError::NoSpace => errors.no_space += 1,
            IoError::Device { .. } => errors.device += 1,
            IoError::Timeout => errors.timeout += 1,
            IoError::OutOfRange | IoError::ReadOnly | IoError::Unsupported => errors.refused += 1,
            IoError::Gone => errors.gone += 1,
        }
        condition.last_error = Some(error.to_string());
    }

    pub(crate) fn count_abandoned(&self) {
        self.condition().errors.abandoned += 1;
    }

    pub(crate) fn count_unflushed(&self) {
        self.condition().errors.unflushed += 1;
    }

    pub(crate) fn count_disconnect(&self, replayed: u64) {
        let errors = &mut self.condition().errors;
        errors.disconnects += 1;
        errors.replayed += replayed;
    }

    /// Whether the request can be on this volume at all.
    #[inline]
    pub(crate) fn admit(&self, request: &Request) -> Result<(), IoError> {
        if request.op == BlockOp::Flush {
            return Ok(());
        }
        match request.offset.checked_add(request.len) {
            Some(end) if end <= self.size() => {}
            _ => return Err(IoError::OutOfRange),
        }
        if request.op.is_write() && self.spec.read_only { Err(IoError::ReadOnly) } else { Ok(()) }
    }
}

/// The names under which a broker keeps what there is of a volume, beside its sockets.
fn kept_keys(name: &str) -> [String; 4] {
    [memory::kept_key(name), nbd::memo_key(name), file::user_key(name), cipher::key::kept_key(name)]
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Volume({}, {} bytes)", self.spec.name, self.size())
    }
}
