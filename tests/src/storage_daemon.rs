//! `qemu-storage-daemon` as a vhost-user-blk server: the peer, and what proves this harness without softdpu.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Disk, Failure, Process, wait_until};

/// It opens its files and sockets in well under a second.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// A running qemu-storage-daemon.
pub struct StorageDaemon {
    process: Process,
    folder: PathBuf,
}

impl StorageDaemon {
    /// Starts it with one export a disk and waits for the sockets.
    pub fn start(folder: &Path, disks: &[Disk]) -> Result<StorageDaemon, Failure> {
        let mut arguments = Vec::new();
        for Disk { name, file, queues, .. } in disks {
            let file = file.to_string_lossy().replace(',', ",,");
            let socket = folder.join(format!("{name}.sock"));
            let socket = socket.to_string_lossy().replace(',', ",,");
            let thread = format!("thread-{name}");
            arguments.extend(["--object".to_owned(), format!("iothread,id={thread}")]);
            arguments.extend([
                "--blockdev".to_owned(),
                format!("driver=file,node-name={name}-file,filename={file},discard=unmap,cache.direct=off"),
                "--blockdev".to_owned(),
                format!("driver=raw,node-name={name},file={name}-file,discard=unmap"),
                "--export".to_owned(),
                format!(
                    "type=vhost-user-blk,id={name}-disk,node-name={name},writable=on,num-queues={queues},\
                     iothread={thread},addr.type=unix,addr.path={socket}"
                ),
            ]);
        }
        let mut process = Process::start("qemu-storage-daemon", folder, Path::new("qemu-storage-daemon"), arguments)?;
        for disk in disks {
            let socket = folder.join(format!("{}.sock", disk.name));
            wait_until(&format!("qemu-storage-daemon's socket of {}", disk.name), READY_DEADLINE, || {
                if let Some(status) = process.exited()? {
                    return Err(Failure::new(format!("qemu-storage-daemon ended ({status}){}", process.tail())));
                }
                Ok(socket.exists().then_some(()))
            })?;
        }
        Ok(StorageDaemon { process, folder: folder.to_owned() })
    }

    /// The socket of the disk called `name`.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.sock"))
    }

    /// Ends it in an orderly way.
    pub fn stop(mut self) -> Result<(), Failure> {
        self.process.stop().map(|_| ())
    }
}
