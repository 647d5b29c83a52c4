//! What must hold over a whole site, whoever made it: a site file, or a change to a running daemon.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use softdpu_nbd::MAX_SOCKET_PATH;

use super::diagnostic::{Problem, nearest};
use super::read::{DESCRIPTORS_WITHOUT_DATA, stand_in_uri};
use super::site::*;
use super::units::{Bytes, Span};

/// Where so many problems of networks are found no more are looked for: most have one cause, and an operator who waits
/// for them serves others.
pub(super) const MOST_PROBLEMS: usize = 100;

/// Of so many names one is looked for that is meant, and so many are listed.
const MOST_COMPARED: usize = 1000;
const MOST_LISTED: usize = 10;

impl Site {
    /// Everything in the site that contradicts itself, with the path of the key it is about.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        duplicate_names("tenant", self.tenants.iter().map(|tenant| tenant.name.as_str()), &mut problems);
        duplicate_names("volume", self.volumes.iter().map(|volume| volume.name.as_str()), &mut problems);
        duplicate_names("network", self.networks.iter().map(|network| network.name.as_str()), &mut problems);
        duplicate_names("function", self.functions.iter().map(|function| function.name.as_str()), &mut problems);
        duplicate_names("device", self.devices.iter().map(|device| device.name.as_str()), &mut problems);
        for (index, volume) in self.volumes.iter().enumerate() {
            volume.check(&format!("volume[{index}]"), &mut problems);
        }
        super::tenant::check_guarantees(self, &mut problems);
        self.check_files(&mut problems);
        super::network::rules::check_networks(self, &mut problems);
        super::function::check_functions(self, &mut problems);
        self.check_max_cores(&mut problems);
        super::steering::check_steering(self, &mut problems);
        for (index, device) in self.devices.iter().enumerate() {
            self.check_device(&format!("device[{index}]"), device, &mut problems);
        }
        self.check_sockets(&mut problems);
        self.check_writers(&mut problems);
        self.check_domains(&mut problems);
        problems
    }

    /// Two volumes in one file would overwrite each other. Names alone are compared, however they are spelled: the
    /// supervisor, which must never wait for a file system, asks too. What links hide is found where
    /// [the machine](Self::machine_problems) is looked at.
    fn check_files(&self, problems: &mut Vec<Problem>) {
        for (index, volume) in self.volumes.iter().enumerate() {
            let Some(place) = volume.storage() else { continue };
            let other = self.volumes[..index]
                .iter()
                .find(|other| other.storage().as_ref() == Some(&place) && !(other.read_only && volume.read_only));
            if let Some(other) = other {
                problems.push(kept_twice(index, volume, other, &place));
            }
        }
    }

    fn check_max_cores(&self, problems: &mut Vec<Problem>) {
        let dataplane = &self.node.dataplane;
        let count = dataplane.cores.len();
        if let Some(most) = dataplane.max_cores.filter(|most| count > *most as usize) {
            problems.push(
                Problem::error("node.dataplane.cores", "more CPUs than node.dataplane.max-cores")
                    .found(format!("{count} CPUs"))
                    .expected(format!("at most {most}")),
            );
        }
    }

    fn check_device(&self, place: &str, device: &Device, problems: &mut Vec<Problem>) {
        if self.tenant(&device.tenant).is_none() && device.tenant != DEFAULT_TENANT {
            let names = self.tenants.iter().map(|tenant| tenant.name.as_str());
            problems.extend(dangling(format!("{place}.tenant"), "tenant", &device.tenant, names));
        }
        for core in device.cores.iter().flatten() {
            if !self.node.dataplane.cores.contains(core) {
                problems.push(
                    Problem::error(format!("{place}.cores"), format!("CPU {core} is not one of the data plane's"))
                        .expected(format!("only CPUs of node.dataplane.cores = {:?}", self.node.dataplane.cores)),
                );
            }
        }
        if let Some(blk) = device.disk() {
            self.check_disk(&format!("{place}.virtio-blk"), blk, problems);
        }
    }

    fn check_disk(&self, place: &str, blk: &VirtioBlk, problems: &mut Vec<Problem>) {
        if !blk.volume.is_empty() && self.volume(&blk.volume).is_none() {
            let names = self.volumes.iter().map(|volume| volume.name.as_str());
            problems.extend(dangling(format!("{place}.volume"), "volume", &blk.volume, names));
        }
        if let Some(volume) = self.volume(&blk.volume)
            && volume.read_only
            && !blk.read_only
        {
            problems.push(
                Problem::error(format!("{place}.volume"), format!("volume `{}` is read-only", volume.name))
                    .help("add `read-only = true` to the device"),
            );
        }
        if !blk.queue_size.is_power_of_two() {
            problems.push(
                Problem::error(format!("{place}.queue-size"), "`queue-size` in device.virtio-blk")
                    .found(format!("the integer {}", blk.queue_size))
                    .expected("a power of two")
                    .help(format!("{} is the next", blk.queue_size.next_power_of_two())),
            );
        } else if blk.seg_max + DESCRIPTORS_WITHOUT_DATA > u32::from(blk.queue_size) {
            let most = u32::from(blk.queue_size) - DESCRIPTORS_WITHOUT_DATA;
            problems.push(
                Problem::error(format!("{place}.seg-max"), "`seg-max` in device.virtio-blk")
                    .found(format!("the integer {}", blk.seg_max))
                    .expected(format!("at most {most}: `queue-size` less one descriptor each for header and status")),
            );
        }
    }

    fn check_sockets(&self, problems: &mut Vec<Problem>) {
        let mut users: HashMap<&Path, String> = HashMap::new();
        let sockets = std::iter::once(("node.api.socket".to_owned(), "the management API".to_owned(), &self.node.api))
            .chain(self.devices.iter().enumerate().filter_map(|(index, device)| {
                let place = format!("device[{index}].{}.socket", device.kind.name());
                device.access().map(|access| (place, format!("device `{}`", device.name), access))
            }));
        for (place, user, access) in sockets {
            let length = access.socket.as_os_str().as_bytes().len();
            if length > MAX_SOCKET_PATH {
                problems.push(
                    Problem::error(place.clone(), "the socket's path is too long for the kernel")
                        .found(format!("{length} bytes ({})", access.socket.display()))
                        .expected(format!("at most {MAX_SOCKET_PATH} bytes"))
                        .help("set `run-directory` in [node] to a short path such as \"/run/softdpu\""),
                );
            }
            // A device without a name was reported; its default socket means nothing.
            if user != "device ``" {
                match users.get(access.socket.as_path()) {
                    Some(other) => problems.push(
                        Problem::error(place, format!("{other} already listens on {}", access.socket.display()))
                            .help("give each device a socket of its own, or leave `socket` out"),
                    ),
                    None => drop(users.insert(&access.socket, user)),
                }
            }
        }
    }

    fn check_writers(&self, problems: &mut Vec<Problem>) {
        for volume in self.volumes.iter().filter(|volume| !volume.shared && !volume.read_only) {
            let mut writers = self
                .devices
                .iter()
                .enumerate()
                .filter(|(_, device)| device.disk().is_some_and(|blk| blk.volume == volume.name && !blk.read_only));
            let Some((_, first)) = writers.next() else { continue };
            for (index, _) in writers {
                problems.push(
                    Problem::error(
                        format!("device[{index}].virtio-blk.volume"),
                        format!("volume `{}` already has a writer, device `{}`", volume.name, first.name),
                    )
                    .help("add `read-only = true` here, or `shared = true` to the volume if its file system allows it"),
                );
            }
        }
    }

    /// A domain is one guest's memory, and a guest belongs to one tenant.
    fn check_domains(&self, problems: &mut Vec<Problem>) {
        let mut owners: HashMap<&str, &Device> = HashMap::new();
        for (index, device) in self.devices.iter().enumerate().filter(|(_, device)| !device.domain.is_empty()) {
            let first = owners.entry(&device.domain).or_insert(device);
            if first.tenant != device.tenant {
                let message = format!(
                    "domain `{}` belongs to tenant `{}` through device `{}`",
                    device.domain, first.tenant, first.name
                );
                problems.push(
                    Problem::error(format!("device[{index}].tenant"), message)
                        .found(format!("tenant `{}`", device.tenant))
                        .expected("one tenant for all devices of a guest"),
                );
            }
        }
    }
}

/// `volume`, the one with that index, is kept where `other` is, which is called `place`.
pub(super) fn kept_twice(index: usize, volume: &Volume, other: &Volume, place: &str) -> Problem {
    let kind = volume.backend.kind();
    let key = if kind == "nbd" { "uri" } else { "path" };
    let message = format!("volume `{}` is already kept in {place}", other.name);
    Problem::error(format!("volume[{index}].{kind}.{key}"), message)
        .help("use one volume for both devices, or make both volumes read-only")
}

/// `path` without `.` and doubled slashes. What `..` leads to depends on links, so it stays.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

impl Volume {
    /// Where its bytes are, where another volume's could be in the same place.
    pub(super) fn storage(&self) -> Option<String> {
        match &self.backend {
            Backend::Null { .. } | Backend::Memory { .. } => None,
            Backend::File(FileBackend { path, .. }) | Backend::Device(DeviceBackend { path, .. }) => {
                (!path.as_os_str().is_empty()).then(|| plain(path).display().to_string())
            }
            Backend::Nbd(nbd) => (nbd.uri != stand_in_uri()).then(|| nbd.uri.to_string()),
        }
    }

    fn check(&self, place: &str, problems: &mut Vec<Problem>) {
        let kind = self.backend.kind();
        if let Some(size) = self.backend.size() {
            let place = format!("{place}.{kind}.size");
            if size.0 == 0 {
                problems.push(
                    Problem::error(place, format!("`size` in volume.{kind}"))
                        .found("zero")
                        .expected("at least one block"),
                );
            } else if !size.0.is_multiple_of(u64::from(self.block_size)) {
                let rounded = Bytes(size.0.next_multiple_of(u64::from(self.block_size)));
                problems.push(
                    Problem::error(place, format!("`size` in volume.{kind}"))
                        .found(size.to_string())
                        .expected(format!("a multiple of the block size, {} bytes", self.block_size))
                        .help(format!("\"{rounded}\" is the next")),
                );
            } else if i64::try_from(size.0).is_err() {
                problems.push(
                    Problem::error(place, format!("`size` in volume.{kind}"))
                        .found(size.to_string())
                        .expected("less than 8 EiB, the largest file offset"),
                );
            }
        }
        if self.depth.is_some() && matches!(self.backend, Backend::Null { .. } | Backend::Memory { .. }) {
            problems.push(
                Problem::error(
                    format!("{place}.depth"),
                    format!("a {kind} volume answers at once: nothing waits there"),
                )
                .help("remove `depth`: it is for `file`, `device` and `nbd`"),
            );
        }
        if self.encryption.is_some() && matches!(self.backend, Backend::Null { .. }) {
            problems.push(
                Problem::error(format!("{place}.encryption"), "a null volume keeps nothing that could be encrypted")
                    .help("remove `encryption`, or keep the volume in something else"),
            );
        }
        if let Backend::File(file) = &self.backend
            && file.create
            && self.read_only
        {
            problems.push(
                Problem::error(
                    format!("{place}.file.create"),
                    "a read-only volume is not created: it would stay empty",
                )
                .help("remove `create`, or `read-only`"),
            );
        }
        if let Backend::Nbd(nbd) = &self.backend
            && nbd.timeout == Span::default()
        {
            problems.push(
                Problem::error(format!("{place}.nbd.timeout"), "`timeout` in volume.nbd")
                    .found("zero")
                    .expected("a time in which the server can answer"),
            );
        }
    }
}

fn duplicate_names<'a>(section: &'static str, names: impl Iterator<Item = &'a str>, problems: &mut Vec<Problem>) {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (index, name) in names.enumerate().filter(|(_, name)| !name.is_empty()) {
        let first = *seen.entry(name).or_insert(index);
        if first != index {
            problems.push(
                Problem::error(format!("{section}[{index}].name"), format!("{section} `{name}` exists already"))
                    .help(format!("give each [[{section}]] a name of its own"))
                    .first(format!("{section}[{first}].name")),
            );
        }
    }
}

/// That `found` at `place` is none of the `names` that are declared by [[`what`]]. Nothing where one of them has no
/// name, which was reported: it may be the one.
pub(super) fn dangling<'a>(
    place: String,
    what: &'static str,
    found: &str,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Option<Problem> {
    if names.clone().any(str::is_empty) {
        return None;
    }
    let problem = Problem::error(place, format!("there is no {what} `{found}`")).undeclared(what);
    Some(match nearest(found, names.clone().take(MOST_COMPARED)) {
        Some(near) => problem.help(format!("did you mean `{near}`?")),
        None if names.clone().next().is_none() => {
            problem.help(format!("declare it: [[{what}]] with name = \"{found}\""))
        }
        None => {
            let listed = names.clone().take(MOST_LISTED).collect::<Vec<_>>().join(", ");
            let more = match names.count().saturating_sub(MOST_LISTED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            problem.help(format!("declare it, or use one of: {listed}{more}"))
        }
    })
}
