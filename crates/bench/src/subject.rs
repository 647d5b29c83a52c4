//! What is measured: servers that are started for a measurement and ended after it, and sockets that are simply there.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::SetupError;
use crate::process::{Server, in_path};
use crate::scratch::Folder;

/// The polling time of qemu-storage-daemon's iothread, nanoseconds: its own default, stated so that it is the same
/// everywhere.
pub const QSD_POLL_MAX_NS: u64 = 32_768;

/// What a volume is kept in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Volume {
    /// Nothing.
    Null,
    /// The server's memory.
    Memory,
    /// A file in the page cache.
    File(PathBuf),
}

impl Volume {
    /// As it is called on the command line and in results.
    pub fn name(&self) -> &'static str {
        match self {
            Volume::Null => "null",
            Volume::Memory => "memory",
            Volume::File(_) => "file",
        }
    }
}

/// How softdpu is set up to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it comes.
    Plain,
    /// Its volumes are encrypted, with a key of its own for each run.
    Encrypted,
    /// Its data plane is not isolated.
    Unconfined,
}

/// A server to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// softdpu, this build of it.
    Softdpu {
        /// Its program.
        program: PathBuf,
        /// How it is set up.
        variant: Variant,
    },
    /// qemu-storage-daemon.
    Qsd {
        /// Its program.
        program: PathBuf,
        /// `poll-max-ns` of its iothread.
        poll_max_ns: u64,
    },
    /// Whatever serves vhost-user-blk at a socket.
    Socket {
        /// As it is called in results.
        name: String,
        /// The socket.
        path: PathBuf,
    },
}

/// What a subject is to serve.
#[derive(Clone, Debug)]
pub struct Service {
    /// What is behind the disk.
    pub volume: Volume,
    /// Bytes.
    pub size: u64,
    /// Queues.
    pub queues: u16,
    /// Descriptors of a queue.
    pub queue_size: u16,
    /// The CPU the server may use.
    pub cpu: usize,
    /// Disks; all alike, the first is measured.
    pub devices: usize,
}

/// A subject at work. Ends with it.
#[derive(Debug)]
pub struct Running {
    // Before the folder: the server has ended when that is removed.
    server: Option<Server>,
    sockets: Vec<PathBuf>,
    _folder: Option<Folder>,
}

impl Running {
    pub(crate) fn new(server: Option<Server>, sockets: Vec<PathBuf>, folder: Option<Folder>) -> Running {
        Running { server, sockets, _folder: folder }
    }

    /// The socket of the disk that is measured.
    pub fn socket(&self) -> &Path {
        &self.sockets[0]
    }

    /// The sockets of all disks.
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// The process; none where the subject was there before.
    pub fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }
}

impl Subject {
    /// qemu-storage-daemon, where it is installed.
    pub fn qsd(poll_max_ns: u64) -> Option<Subject> {
        Some(Subject::Qsd { program: in_path("qemu-storage-daemon")?, poll_max_ns })
    }

    /// As it is called in results.
    pub fn name(&self) -> &str {
        match self {
            Subject::Softdpu { variant: Variant::Plain, .. } => "softdpu",
            Subject::Softdpu { variant: Variant::Encrypted, .. } => "softdpu-encrypted",
            Subject::Softdpu { variant: Variant::Unconfined, .. } => "softdpu-unconfined",
            Subject::Qsd { .. } => "qemu-storage-daemon",
            Subject::Socket { name, .. } => name,
        }
    }

    /// Whether it can serve `volume`; a socket serves whatever it serves.
    pub fn serves(&self, volume: &Volume) -> bool {
        !matches!(
            (self, volume),
            (Subject::Qsd { .. }, Volume::Memory)
                | (Subject::Softdpu { variant: Variant::Encrypted, .. }, Volume::Null)
        )
    }

    /// Starts it.
    ///
    /// # Errors
    /// [`SetupError`], with the end of the server's output.
    pub fn start(&self, service: &Service) -> Result<Running, SetupError> {
        let program = match self {
            Subject::Socket { path, .. } => {
                return Ok(Running::new(None, vec![path.clone()], None));
            }
            Subject::Softdpu { program, .. } | Subject::Qsd { program, .. } => program,
        };
        let folder = Folder::new().map_err(|error| SetupError::Folder(error.to_string()))?;
        let sockets: Vec<_> = (0..service.devices).map(|at| folder.path().join(format!("disk{at}.sock"))).collect();
        let mut server = match self {
            Subject::Qsd { poll_max_ns, .. } => {
                let arguments = qsd_arguments(service, *poll_max_ns, &sockets)?;
                Server::start("qemu-storage-daemon", program, arguments, folder.path(), Some(service.cpu))?
            }
            _ => {
                let site = folder.path().join("site.toml");
                let key = match self {
                    Subject::Softdpu { variant: Variant::Encrypted, .. } => Some(key_file(folder.path())?),
                    _ => None,
                };
                let is_isolated = !matches!(self, Subject::Softdpu { variant: Variant::Unconfined, .. });
                std::fs::write(&site, softdpu_site(service, &sockets, key.as_deref(), is_isolated))
                    .map_err(|error| SetupError::Folder(format!("{}: {error}", site.display())))?;
                // Not pinned from outside: it pins its core itself, and its supervisor stays off it.
                Server::start("softdpu", program, ["run", "site.toml"], folder.path(), None)?
            }
        };
        server.until("its sockets", || {
            // A bound socket may not listen yet: only a connection tells. The probe's end is a front end that leaves.
            sockets.iter().all(|socket| socket.exists()).then_some(())
        })?;
        Ok(Running::new(Some(server), sockets, Some(folder)))
    }
}

fn qsd_arguments(service: &Service, poll_max_ns: u64, sockets: &[PathBuf]) -> Result<Vec<String>, SetupError> {
    let mut arguments = Vec::new();
    for (at, socket) in sockets.iter().enumerate() {
        let node = match &service.volume {
            Volume::Null => format!("driver=null-co,node-name=disk{at},size={},read-zeroes=off", service.size),
            Volume::File(path) => {
                let path = escaped(path);
                format!("driver=file,node-name=disk{at},filename={path},aio=io_uring,cache.direct=off,discard=unmap")
            }
            Volume::Memory => {
                return Err(SetupError::Start {
                    program: PathBuf::from("qemu-storage-daemon"),
                    reason: "it has no memory volumes".to_owned(),
                });
            }
        };
        let export = format!(
            "type=vhost-user-blk,id=export{at},node-name=disk{at},writable=on,num-queues={},iothread=thread{at},\
             addr.type=unix,addr.path={}",
            service.queues,
            escaped(socket)
        );
        for (option, value) in [
            ("--object", format!("iothread,id=thread{at},poll-max-ns={poll_max_ns}")),
            ("--blockdev", node),
            ("--export", export),
        ] {
            arguments.extend([option.to_owned(), value]);
        }
    }
    Ok(arguments)
}

/// QEMU's option parser splits at commas.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// A new key, for volumes that are not needed later.
fn key_file(folder: &Path) -> Result<PathBuf, SetupError> {
    use std::io::{Read, Write};
    use std::os::unix::fs::OpenOptionsExt;
    let path = folder.join("volume.key");
    let write = || {
        let mut key = [0; 64];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.write_all(&key)
    };
    write().map_err(|error| SetupError::Folder(format!("{}: {error}", path.display())))?;
    Ok(path)
}

/// The site; with a key, its volumes are encrypted in sectors of 4096 bytes.
fn softdpu_site(service: &Service, sockets: &[PathBuf], key: Option<&Path>, is_isolated: bool) -> String {
    use fmt::Write;
    let mut site = format!("[node]\ndataplane = {{ cores = [{}] }}\nrun-directory = \"run\"\n", service.cpu);
    site.push_str("log = { level = \"warn\" }\n");
    if !is_isolated {
        site.push_str("isolation = \"off\"\n");
    }
    for (at, socket) in sockets.iter().enumerate() {
        let volume = match &service.volume {
            Volume::Null => format!("null = {{ size = \"{} B\" }}", service.size),
            Volume::Memory => format!("memory = {{ size = \"{} B\" }}", service.size),
            Volume::File(path) => format!("file = {{ path = {} }}", quoted(path)),
        };
        let volume = match key {
            Some(key) => format!(
                "{volume}\nblock-size = 4096\n\
                 encryption = {{ cipher = \"aes-xts-plain64\", key-file = {}, sector-size = 4096 }}",
                quoted(key)
            ),
            None => volume,
        };
        // Writing to a String cannot fail.
        let _ = write!(
            site,
            "\n[[volume]]\nname = \"disk{at}\"\n{volume}\n\n[[device]]\nname = \"disk{at}\"\ndomain = \"guest{at}\"\n\
             virtio-blk = {{ volume = \"disk{at}\", queues = {}, queue-size = {}, socket = {} }}\n",
            service.queues,
            service.queue_size,
            quoted(socket)
        );
    }
    site
}

/// A TOML basic string.
pub(crate) fn quoted(path: &Path) -> String {
    let mut text = String::from("\"");
    for character in path.to_string_lossy().chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            control if control.is_control() => text.push_str(&format!("\\u{:04X}", u32::from(control))),
            other => text.push(other),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(volume: Volume) -> Service {
        Service { volume, size: 1 << 30, queues: 2, queue_size: 512, cpu: 1, devices: 1 }
    }

    #[test]
    fn commas_in_a_path_do_not_end_a_qemu_option() {
        let arguments = qsd_arguments(&service(Volume::File("/a,b".into())), 1, &[PathBuf::from("/tmp/s,1")]).unwrap();
        assert!(arguments.iter().any(|argument| argument.contains("filename=/a,,b,aio=io_uring")));
        assert!(arguments.iter().any(|argument| argument.ends_with("addr.path=/tmp/s,,1")));
    }

    #[test]
    fn a_site_names_each_disk_once() {
        let sockets = [PathBuf::from("/tmp/a\".sock"), PathBuf::from("/tmp/b.sock")];
        let site = softdpu_site(&service(Volume::Null), &sockets, None, true);
        assert_eq!(site.matches("[[device]]").count(), 2);
        assert!(site.contains(r#"socket = "/tmp/a\".sock""#));
    }
}
