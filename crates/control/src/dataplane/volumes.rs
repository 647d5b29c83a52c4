//! Volumes as configured, opened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use softdpu_storage::{Broker, Kind, Volume, VolumeError, VolumeSpec};

use crate::config::{self, Backend, Cache, Discard, Reconnect};

/// How long a request waits for a server that may be away for ever: longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The longest pause between two attempts to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_secs(2);

/// Opened volumes by name; a volume that could not be opened has its error instead.
#[derive(Default)]
pub(super) struct Volumes(BTreeMap<String, Result<Arc<Volume>, String>>);

impl Volumes {
    /// Opens one and remembers it, or why it did not work.
    pub(super) fn open(&mut self, volume: &config::Volume, broker: &Arc<dyn Broker>) -> Result<Arc<Volume>, String> {
        let opened = Volume::open(spec(volume), broker).map_err(|error: VolumeError| error.to_string());
        self.0.insert(volume.name.clone(), opened.clone());
        opened
    }

    pub(super) fn get(&self, name: &str) -> Result<&Arc<Volume>, String> {
        match self.0.get(name) {
            Some(Ok(volume)) => Ok(volume),
            Some(Err(error)) => Err(error.clone()),
            None => Err(format!("there is no volume '{name}'")),
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Arc<Volume>> {
        self.0.remove(name)?.ok()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Result<Arc<Volume>, String>)> {
        self.0.iter().map(|(name, volume)| (name.as_str(), volume))
    }
}

/// The storage crate's words for a configured volume.
fn spec(volume: &config::Volume) -> VolumeSpec {
    let kind = match &volume.backend {
        Backend::Null { size } => Kind::Null { size: size.0 },
        Backend::Memory { size } => Kind::Memory { size: size.0 },
        Backend::File(file) => Kind::File {
            path: file.path.clone(),
            size: file.size.map(|size| size.0),
            create: file.create,
            direct: file.direct,
            discard: file.discard == Discard::Unmap,
        },
        Backend::Device(device) => Kind::Device { path: device.path.clone(), direct: device.direct },
        Backend::Nbd(nbd) => Kind::Nbd {
            uri: nbd.uri.clone(),
            answer: nbd.timeout.0,
            timeout: match nbd.reconnect {
                Reconnect::Forever => FOR_EVER,
                Reconnect::For(span) => span.0,
                Reconnect::Never => nbd.timeout.0,
            },
            reconnect: RECONNECT_PAUSE,
        },
    };
    VolumeSpec {
        name: volume.name.clone(),
        kind,
        read_only: volume.read_only,
        block_size: volume.block_size,
        write_through: volume.cache == Cache::WriteThrough,
        shared: volume.shared,
    }
}
