//! What the machine softdpu runs on has to have. A site file may be checked on another machine than it is for, so these
//! are warnings in `softdpu check` and errors in `softdpu run`; what may come while it runs is a warning in both.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::diagnostic::{Problem, Severity, alternatives};
use super::site::{Backend, FileBackend, Site};
use super::units::Bytes;

/// Where the kernel lists the CPUs that run.
const ONLINE_CPUS: &str = "/sys/devices/system/cpu/online";
/// Where the kernel lists the network interfaces of this network namespace.
const INTERFACES: &str = "/sys/class/net";

impl Site {
    /// What this machine lacks to run the site.
    pub fn machine_problems(&self, severity: Severity) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut transient = Vec::new();
        // A machine that does not tell is not held against the site: pinning will say.
        if let Some(online) = fs::read_to_string(ONLINE_CPUS).ok().as_deref().and_then(parse_cpu_list) {
            self.check_cores(&online, &mut problems);
        }
        if let Some(underlay) = &self.node.underlay {
            // It may come later: the underlay is tried again.
            check_interface(Path::new(INTERFACES), &underlay.interface, &mut transient);
        }
        for (index, volume) in self.volumes.iter().enumerate() {
            match &volume.backend {
                Backend::File(file) => check_file(index, file, &mut problems),
                Backend::Device(device) => check_block_device(index, &device.path, &mut problems),
                Backend::Null { .. } | Backend::Memory { .. } | Backend::Nbd(_) => {}
            }
        }
        for problem in &mut problems {
            problem.severity = severity;
        }
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

fn check_file(index: usize, file: &FileBackend, problems: &mut Vec<Problem>) {
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
                Problem::error(place, format!("the folder {} does not exist", parent.display()))
            }
            _ => return,
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Problem::error(place, format!("{} does not exist", path.display()))
                .help("add `size` to have it created, such as size = \"20 GiB\"")
        }
        Err(error) => Problem::error(place, format!("{}: {error}", path.display())),
    };
    problems.push(problem);
}

fn check_block_device(index: usize, path: &Path, problems: &mut Vec<Problem>) {
    let place = format!("volume[{index}].device.path");
    match fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_block_device() => {}
        Ok(_) => problems.push(
            Problem::error(place, format!("{} is not a block device", path.display()))
                .help("write `file = { path = … }` for an image file"),
        ),
        Err(error) => problems.push(Problem::error(place, format!("{}: {error}", path.display()))),
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
    use crate::config::Discard;

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
            let mut problems = Vec::new();
            let file =
                FileBackend { path: folder.path().join(path), size, create, direct: false, discard: Discard::Unmap };
            check_file(0, &file, &mut problems);
            problems.len()
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
