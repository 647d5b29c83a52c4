//! What the machine softdpu runs on has to have. A site file may be checked on another machine than it is for, so these
//! are warnings in `softdpu check` and errors in `softdpu run`. What may come while it runs is a warning in both: an
//! image that is not there yet, as its file system is not, keeps no other volume from being served.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::diagnostic::{Problem, Severity, alternatives};
use super::rules::kept_twice;
use super::site::{Backend, DeviceBackend, FileBackend, Site, SocketAccess, Volume};
use super::units::Bytes;
use crate::accounts;

/// What becomes of a volume whose file is not there.
const TRIED_AGAIN: &str = "its devices wait for it: it is opened as soon as it is there, so move it there whole";

/// Where the kernel lists the CPUs that run.
const ONLINE_CPUS: &str = "/sys/devices/system/cpu/online";
/// Where the kernel lists the network interfaces of this network namespace.
const INTERFACES: &str = "/sys/class/net";

impl Site {
    /// What this machine lacks to run the site.
    pub fn machine_problems(&self, severity: Severity) -> Vec<Problem> {
        let mut problems = Vec::new();
        // What is tried again, for as long as it is configured.
        let mut transient = Vec::new();
        // A machine that does not tell is not held against the site: pinning will say.
        if let Some(online) = fs::read_to_string(ONLINE_CPUS).ok().as_deref().and_then(parse_cpu_list) {
            self.check_cores(&online, &mut problems);
        }
        if let Some(underlay) = &self.node.underlay {
            check_interface(Path::new(INTERFACES), &underlay.interface, &mut transient);
        }
        for (index, volume) in self.volumes.iter().enumerate() {
            if let Some(path) = volume.encryption.as_ref().and_then(|encryption| encryption.key_file.as_ref()) {
                check_key_file(index, path, &mut problems, &mut transient);
            }
            match &volume.backend {
                Backend::File(file) => check_file(index, file, &mut problems, &mut transient),
                Backend::Device(device) => check_block_device(index, &device.path, &mut problems, &mut transient),
                Backend::Null { .. } | Backend::Memory { .. } | Backend::Nbd(_) => {}
            }
        }
        self.check_links(&mut problems);
        check_owners("node.api", &self.node.api, &mut problems);
        if let Some(user) = self.node.user.as_deref().filter(|name| accounts::user(name).is_none()) {
            problems.push(no_account("node.user", "user", user));
        }
        for (index, device) in self.devices.iter().enumerate() {
            if let Some(access) = device.access() {
                check_owners(&format!("device[{index}].{}", device.kind.name()), access, &mut problems);
            }
        }
        for problem in &mut problems {
            problem.severity = severity;
        }
        // Served all the same, so never more than a warning.
        problems.extend(self.volumes.iter().enumerate().filter_map(|(index, volume)| odd_end(index, volume)));
        problems.append(&mut transient);
        problems
    }

    fn check_cores(&self, online: &[u32], problems: &mut Vec<Problem>) {
        for (index, core) in self.node.dataplane.cores.iter().enumerate() {
            if !online.contains(core) {
                problems.push(
                    Problem::error(format!("node.dataplane.cores[{index}]"), "this machine has no such CPU")
                        .found(format!("CPU {core}"))
                        .expected(format!("one of {online:?}")),
                );
            }
        }
    }
}

impl Site {
    /// Two volumes whose paths look different and lead to the same file, or the same device.
    fn check_links(&self, problems: &mut Vec<Problem>) {
        let places: Vec<Option<Place>> = self.volumes.iter().map(place).collect();
        for (index, volume) in self.volumes.iter().enumerate().filter(|(index, _)| places[*index].is_some()) {
            let other = self.volumes[..index].iter().zip(&places).find(|(other, place)| {
                **place == places[index]
                    && !(other.read_only && volume.read_only)
                    // Those that look the same are reported already.
                    && other.storage() != volume.storage()
            });
            if let Some((other, _)) = other {
                problems.push(kept_twice(index, volume, other, &other.storage().unwrap_or_default()));
            }
        }
    }
}

/// What tells one place of bytes from another.
#[derive(PartialEq, Eq)]
enum Place {
    /// A file, by its file system and its inode.
    File(u64, u64),
    /// A block device, by its number: many nodes may have it.
    Device(u64),
    /// A file that is yet to be made, in a folder without links.
    ToBeMade(PathBuf),
}

/// Where the volume is; none where no other can be in the same place, or that cannot be found out.
fn place(volume: &Volume) -> Option<Place> {
    let (Backend::File(FileBackend { path, .. }) | Backend::Device(DeviceBackend { path, .. })) = &volume.backend
    else {
        return None;
    };
    match fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_block_device() => Some(Place::Device(metadata.rdev())),
        Ok(metadata) => Some(Place::File(metadata.dev(), metadata.ino())),
        Err(_) => Some(Place::ToBeMade(path.parent()?.canonicalize().ok()?.join(path.file_name()?))),
    }
}

/// A `what`, which is a user or a group, is not there.
fn no_account(place: &str, what: &str, name: &str) -> Problem {
    Problem::error(place, format!("this machine has no such {what}"))
        .found(format!("{name:?}"))
        .expected(format!("the name or the number of a {what}"))
        .help(format!("`getent {}` lists them", if what == "user" { "passwd" } else { "group" }))
}

/// The owner and the group that a socket is to have.
fn check_owners(place: &str, access: &SocketAccess, problems: &mut Vec<Problem>) {
    let mut missing =
        |key: &str, what: &str, name: &str| problems.push(no_account(&format!("{place}.{key}"), what, name));
    if let Some(owner) = access.socket_owner.as_deref().filter(|name| accounts::user_id(name).is_none()) {
        missing("socket-owner", "user", owner);
    }
    if let Some(group) = access.socket_group.as_deref().filter(|name| accounts::group_id(name).is_none()) {
        missing("socket-group", "group", group);
    }
}

fn check_interface(interfaces: &Path, name: &str, problems: &mut Vec<Problem>) {
    let Ok(listed) = fs::read_dir(interfaces) else { return };
    let mut there: Vec<String> =
        listed.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    there.sort();
    if !there.iter().any(|other| other == name) {
        problems.push(
            Problem::warning("node.underlay.interface", "this machine has no such network interface")
                .found(name)
                .expected(alternatives(there.iter().map(String::as_str))),
        );
    }
}

fn check_file(index: usize, file: &FileBackend, problems: &mut Vec<Problem>, transient: &mut Vec<Problem>) {
    let FileBackend { path, create, .. } = file;
    // An empty file that may be created counts as one that is not there yet.
    let wanted = |had: u64| file.size.filter(|size| had < size.0 && !(*create && had == 0));
    let place = format!("volume[{index}].file.path");
    let problem = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => match wanted(metadata.len()) {
            None => return,
            Some(size) => {
                Problem::error(format!("volume[{index}].file.size"), format!("{} is smaller", path.display()))
                    .found(format!("a file of {}", Bytes(metadata.len())))
                    .expected(format!("at least {size}"))
                    .help("correct `size`, or leave it out and use `softdpu volume grow`")
            }
        },
        Ok(metadata) if metadata.file_type().is_block_device() => {
            Problem::error(place, format!("{} is a block device", path.display()))
                .help("write `device = { path = … }` instead of `file`")
        }
        Ok(_) => Problem::error(place, format!("{} is not a regular file", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound && *create => match path.parent() {
            Some(parent) if !parent.is_dir() => {
                let message = format!("the folder {} does not exist", parent.display());
                return transient.push(Problem::warning(place, message).help(TRIED_AGAIN));
            }
            _ => return,
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return transient.push(
                Problem::warning(place, format!("{} does not exist", path.display()))
                    .help(format!("{TRIED_AGAIN}; add `size` to have it created, such as size = \"20 GiB\"")),
            );
        }
        Err(error) => return transient.push(unreachable(place, path, &error)),
    };
    problems.push(problem);
}

/// A path at which nothing can be looked at now.
fn unreachable(place: String, path: &Path, error: &std::io::Error) -> Problem {
    Problem::warning(place, format!("{}: {error}", path.display())).help("its devices wait for it: it is tried again")
}

/// What is known of a key file without reading it.
fn check_key_file(index: usize, path: &Path, problems: &mut Vec<Problem>, transient: &mut Vec<Problem>) {
    let place = format!("volume[{index}].encryption.key-file");
    let shown = path.display();
    let problem = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Problem::error(place, format!("{shown} is not a regular file")),
        Ok(metadata) if metadata.mode() & 0o077 != 0 => {
            Problem::error(place, format!("{shown} can be used by others than its owner"))
                .found(format!("mode {:04o}", metadata.mode() & 0o7777))
                .expected("a key that only its owner can read")
                .help(format!("chmod 600 {shown}"))
        }
        Ok(metadata) if !matches!(metadata.len(), 32 | 64) => {
            Problem::error(place, format!("{shown} has no key of AES-XTS"))
                .found(format!("{} bytes", metadata.len()))
                .expected("32 bytes (AES-128) or 64 bytes (AES-256)")
                .help(format!("make one, for a new volume: (umask 077; head -c 64 /dev/urandom > {shown})"))
        }
        Ok(_) => return,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let help =
                format!("{TRIED_AGAIN}; for a new volume make one: (umask 077; head -c 64 /dev/urandom > {shown})");
            return transient.push(Problem::warning(place, format!("{shown} does not exist")).help(help));
        }
        Err(error) => return transient.push(unreachable(place, path, &error)),
    };
    problems.push(problem);
}

/// An image whose end makes no whole block: a file of another format, or one that was cut.
fn odd_end(index: usize, volume: &Volume) -> Option<Problem> {
    let Backend::File(file) = &volume.backend else { return None };
    let metadata = fs::metadata(&file.path).ok().filter(fs::Metadata::is_file)?;
    let block = u64::from(volume.block_size);
    let odd = metadata.len() % block;
    (odd > 0).then(|| {
        Problem::warning(
            format!("volume[{index}].file.path"),
            format!("the last {odd} bytes of the file are not served"),
        )
        .found(format!("a file of {} bytes", metadata.len()))
        .expected(format!("a multiple of the block size, {block} bytes"))
    })
}

fn check_block_device(index: usize, path: &Path, problems: &mut Vec<Problem>, transient: &mut Vec<Problem>) {
    let place = format!("volume[{index}].device.path");
    match fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_block_device() => {}
        Ok(_) => problems.push(
            Problem::error(place, format!("{} is not a block device", path.display()))
                .help("write `file = { path = … }` for an image file"),
        ),
        Err(error) => transient.push(unreachable(place, path, &error)),
    }
}

/// Reads the kernel's list format: `0-3,5` (Documentation/admin-guide/cputopology.rst).
fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Discard;

    #[test]
    fn the_kernels_cpu_list_is_understood() {
        assert_eq!(parse_cpu_list("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse_cpu_list("0"), Some(vec![0]));
        assert_eq!(parse_cpu_list(""), None);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_named_with_those_that_are() {
        let mut site = Site::default();
        site.node.dataplane.cores = vec![1, 9];
        let mut problems = Vec::new();
        site.check_cores(&[0, 1], &mut problems);
        let messages: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            messages,
            ["node.dataplane.cores[1]: this machine has no such CPU: found CPU 9, expected one of [0, 1]"]
        );
    }

    /// What is said of a site whose folder is `folder`.
    fn said(folder: &Path, text: &str) -> Vec<String> {
        let loaded = crate::parse(text, "site.toml", folder, Some(Severity::Error));
        loaded.report.diagnostics.iter().map(|found| format!("{}: {}", found.line, found.message)).collect()
    }

    #[test]
    fn an_owner_that_is_not_there_is_named_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let site = |owner: &str, group: &str| {
            format!(
                "[node]\ndataplane = {{ cores = [0] }}\napi = {{ socket-owner = \"{owner}\" }}\n[[volume]]\nname = \"a\"\n\
                 null = {{ size = \"1 GiB\" }}\n[[device]]\nname = \"d\"\n\
                 virtio-blk = {{ volume = \"a\", socket-group = \"{group}\" }}\n"
            )
        };
        assert_eq!(said(folder.path(), &site("root", "root")), [""; 0]);
        assert_eq!(said(folder.path(), &site("0", "65534")), [""; 0], "a number needs no entry");
        let wrong = said(folder.path(), &site("no-such-user", "no-such-group"));
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("3: this machine has no such user"), "{wrong:?}");
        assert!(wrong[1].starts_with("9: this machine has no such group"), "{wrong:?}");
    }

    #[test]
    fn a_key_file_is_looked_at_and_never_read() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("a.key");
        let site = "[node]\ndataplane = { cores = [0] }\n[[volume]]\nname = \"a\"\nmemory = { size = \"1 GiB\" }\n\
                    encryption = { cipher = \"aes-xts-plain64\", key-file = \"a.key\" }\n";
        let shown = key.display();
        assert_eq!(said(folder.path(), site), [format!("6: {shown} does not exist")]);
        fs::write(&key, [1; 64]).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        let open = said(folder.path(), site);
        assert!(open.len() == 1 && open[0].contains("can be used by others than its owner"), "{open:?}");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(said(folder.path(), site), [""; 0]);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&key, [1; 65]).unwrap();
        let long = said(folder.path(), site);
        assert!(long.len() == 1 && long[0].contains("has no key of AES-XTS: found 65 bytes"), "{long:?}");
    }

    #[test]
    fn a_volume_whose_files_are_not_there_yet_keeps_nobody_from_running() {
        let folder = tempfile::tempdir().unwrap();
        let volume = |name: &str, keys: &str| format!("[[volume]]\nname = \"{name}\"\n{keys}\n");
        let site = [
            "[node]\ndataplane = { cores = [0] }\n".to_owned(),
            volume("image", "file = { path = \"mnt/a.img\" }"),
            volume("made", "file = { path = \"mnt/b.img\", size = \"1 MiB\" }"),
            volume("disk", "device = { path = \"mnt/disk\" }"),
            volume(
                "key",
                "memory = { size = \"1 MiB\" }\nencryption = { cipher = \"aes-xts-plain64\", key-file = \"mnt/key\" }",
            ),
        ];
        let loaded = crate::parse(&site.concat(), "site.toml", folder.path(), Some(Severity::Error));
        let found: Vec<_> = loaded.report.diagnostics.iter().map(|it| (it.severity, it.line)).collect();
        let warning = Severity::Warning;
        assert_eq!(found, [(warning, 5), (warning, 8), (warning, 11), (warning, 15)], "{}", loaded.report);
        assert!(loaded.report.to_string().contains("it is opened as soon as it is there"), "{}", loaded.report);
        assert!(loaded.site.is_some());
        // Another kind of thing in its place does not become an image.
        fs::create_dir_all(folder.path().join("mnt/a.img")).unwrap();
        let loaded = crate::parse(&site.concat(), "site.toml", folder.path(), Some(Severity::Error));
        assert!(loaded.site.is_none(), "{}", loaded.report);
    }

    #[test]
    fn an_odd_end_is_warned_of_and_nothing_worse() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.img"), [0; 1000]).unwrap();
        let site = "[node]\ndataplane = { cores = [0] }\n[[volume]]\nname = \"a\"\nfile = { path = \"a.img\" }\n";
        let loaded = crate::parse(site, "site.toml", folder.path(), Some(Severity::Error));
        assert!(loaded.site.is_some(), "{}", loaded.report);
        let report = loaded.report.to_string();
        assert!(report.contains("the last 488 bytes of the file are not served"), "{report}");
        fs::write(folder.path().join("a.img"), [0; 1024]).unwrap();
        assert_eq!(said(folder.path(), site), [""; 0]);
    }

    #[test]
    fn one_file_under_two_names_is_found_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        fs::write(base.join("a.img"), [0; 4096]).unwrap();
        fs::create_dir(base.join("x")).unwrap();
        fs::hard_link(base.join("a.img"), base.join("hard.img")).unwrap();
        std::os::unix::fs::symlink("a.img", base.join("soft.img")).unwrap();
        std::os::unix::fs::symlink(".", base.join("here")).unwrap();
        let two = |a: &str, b: &str, more: &str| {
            let volume = |name: &str, path: &str| {
                format!("[[volume]]\nname = \"{name}\"\nfile = {{ path = \"{path}\"{more} }}\n")
            };
            let node = "[node]\ndataplane = { cores = [0] }\n";
            said(base, &format!("{node}{}{}", volume("a", a), volume("b", b)))
        };
        for other in ["./a.img", "x/../a.img", "hard.img", "soft.img", "here/a.img"] {
            let said = two("a.img", other, "");
            assert_eq!(said.len(), 1, "{other}: {said:?}");
            assert!(said[0].contains("volume `a` is already kept in"), "{other}: {said:?}");
        }
        let to_be_made = two("new.img", "here/new.img", ", size = \"1 MiB\"");
        assert_eq!(to_be_made.len(), 1, "{to_be_made:?}");
        fs::write(base.join("b.img"), [0; 4096]).unwrap();
        assert_eq!(two("a.img", "b.img", ""), [""; 0]);
    }

    #[test]
    fn an_interface_that_is_not_there_is_named_with_those_that_are() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["lo", "eth0"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let mut problems = Vec::new();
        check_interface(folder.path(), "eth0", &mut problems);
        assert_eq!(problems, []);
        check_interface(folder.path(), "eth1", &mut problems);
        assert_eq!(
            problems.iter().map(Problem::to_string).collect::<Vec<_>>(),
            [
                "node.underlay.interface: this machine has no such network interface: found eth1, expected `eth0` or `lo`"
            ]
        );
    }

    #[test]
    fn a_missing_image_is_a_problem_only_if_nothing_creates_it() {
        let folder = tempfile::tempdir().unwrap();
        let sized = |path: &str, create, size| {
            let (mut problems, mut transient) = (Vec::new(), Vec::new());
            let file =
                FileBackend { path: folder.path().join(path), size, create, direct: false, discard: Discard::Unmap };
            check_file(0, &file, &mut problems, &mut transient);
            problems.len() + transient.len()
        };
        let messages = |path: &str, create| sized(path, create, Some(Bytes(4096)));
        assert_eq!(messages("disk.img", true), 0);
        assert_eq!(messages("disk.img", false), 1);
        assert_eq!(messages("missing/disk.img", true), 1);
        assert_eq!(messages("", true), 1, "a folder is no image");
        for (length, problems) in [(0, 0), (512, 1), (4096, 0), (8192, 0)] {
            std::fs::write(folder.path().join("there.img"), vec![0; length]).unwrap();
            assert_eq!(messages("there.img", true), problems, "{length} bytes");
            assert_eq!(sized("there.img", false, None), 0);
        }
    }
}
