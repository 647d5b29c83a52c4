//! A guest: QEMU with the Debian kernel that `lab/setup.sh` unpacked, disks and interfaces over vhost-user, and a job.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cpio::Archive;
use crate::{Accel, Context, Failure, GuestDevice, Process, Qemu, Random, Report, paths};

/// A guest's kernel is up within this time even on a busy machine without KVM.
const BOOT_DEADLINE: Duration = Duration::from_secs(180);

/// Where a guest's root file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// In the initramfs, with the tools for disks beside busybox: all disks are the job's.
    Ram,
    /// In the initramfs, with the tools for networks beside busybox.
    NetworkRam,
    /// On the first disk.
    FirstDisk,
}

/// A disk of a guest.
#[derive(Clone, Debug)]
pub struct GuestDisk {
    /// The vhost-user-blk socket.
    pub socket: PathBuf,
    /// Virtqueues the device has.
    pub queues: u16,
    /// Whether the packed ring is offered.
    pub packed: bool,
}

/// What a guest is made of.
pub struct GuestSpec {
    name: String,
    cpus: u32,
    memory_mib: u32,
    root: Root,
    disks: Vec<GuestDisk>,
    devices: Vec<GuestDevice>,
    job: Option<Job>,
    parameters: Vec<(String, String)>,
    accel: Option<Accel>,
    qemu: Option<Qemu>,
    namespace: Option<String>,
    newer_kernel: bool,
    files: Vec<(String, Vec<u8>)>,
}

/// A script that the guest runs.
enum Job {
    /// One of lab/guest/jobs.
    Named(String),
    /// Its text.
    Script(String),
}

impl GuestSpec {
    /// A guest that runs from RAM, with one processor and no disk. `name` is the name of its log.
    pub fn new(name: &str) -> GuestSpec {
        GuestSpec {
            name: name.to_owned(),
            cpus: 1,
            memory_mib: 512,
            root: Root::Ram,
            disks: Vec::new(),
            devices: Vec::new(),
            job: None,
            parameters: Vec::new(),
            accel: None,
            qemu: None,
            namespace: None,
            newer_kernel: false,
            files: Vec::new(),
        }
    }

    /// The number of processors. virtio-blk uses no more queues than there are processors.
    pub fn cpus(mut self, cpus: u32) -> GuestSpec {
        self.cpus = cpus;
        self
    }

    /// Its memory in MiB, which the disk's server maps too.
    pub fn memory_mib(mut self, memory_mib: u32) -> GuestSpec {
        self.memory_mib = memory_mib;
        self
    }

    /// Where its root file system is.
    pub fn root(mut self, root: Root) -> GuestSpec {
        self.root = root;
        self
    }

    /// One more disk: /dev/vda, /dev/vdb and so on in this order.
    pub fn disk(mut self, disk: GuestDisk) -> GuestSpec {
        self.disks.push(disk);
        self
    }

    /// One more device, disk or interface, by QEMU's own arguments. Disks come after those of [`GuestSpec::disk`].
    pub fn device(mut self, device: GuestDevice) -> GuestSpec {
        self.devices.push(device);
        self
    }

    /// Runs lab/guest/jobs/`name`.sh.
    pub fn job(mut self, name: &str) -> GuestSpec {
        self.job = Some(Job::Named(name.to_owned()));
        self
    }

    /// Runs this script.
    pub fn script(mut self, text: &str) -> GuestSpec {
        self.job = Some(Job::Script(text.to_owned()));
        self
    }

    /// A shell variable of the job.
    pub fn parameter(mut self, key: &str, value: impl ToString) -> GuestSpec {
        self.parameters.push((key.to_owned(), value.to_string()));
        self
    }

    /// Runs it with this accelerator, whatever a probe would find.
    pub fn accel(mut self, accel: Accel) -> GuestSpec {
        self.accel = Some(accel);
        self
    }

    /// Runs it by this QEMU rather than the machine's own.
    pub fn qemu(mut self, qemu: Qemu) -> GuestSpec {
        self.qemu = Some(qemu);
        self
    }

    /// Runs QEMU in a network namespace.
    pub fn namespace(mut self, namespace: &str) -> GuestSpec {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Gives it the newer kernel that `lab/setup.sh` fetches where it can be had.
    pub fn newer_kernel(mut self) -> GuestSpec {
        self.newer_kernel = true;
        self
    }

    /// A file of a guest that runs from RAM, by its path from the root without a leading `/`. Its folder is there.
    pub fn file(mut self, path: &str, content: Vec<u8>) -> GuestSpec {
        self.files.push((path.to_owned(), content));
        self
    }

    /// `vmlinuz` or `initramfs.cpio` of its kernel.
    fn kernel_file(&self, name: &str) -> Result<PathBuf, Failure> {
        if self.newer_kernel { paths::newer_kernel_file(name).map_err(Failure::new) } else { paths::guest_file(name) }
    }

    /// The initrd: initramfs, tools where the root is in RAM, and the job.
    fn initrd(&self) -> Result<Vec<u8>, Failure> {
        let read = |path: PathBuf| std::fs::read(&path).context(format_args!("reading {}", path.display()));
        let mut initrd = read(self.kernel_file("initramfs.cpio")?)?;
        match self.root {
            Root::Ram => initrd.extend(read(paths::guest_file("tools.cpio")?)?),
            Root::NetworkRam => initrd.extend(read(paths::guest_file("network.cpio")?)?),
            Root::FirstDisk => {}
        }
        let script = match &self.job {
            Some(Job::Named(name)) => read(paths::job(name)?)?,
            Some(Job::Script(text)) => text.clone().into_bytes(),
            None => return Err(Failure::new(format!("the guest {} was given no job", self.name))),
        };
        let quoted = |text: &str| text.replace('\'', r"'\''");
        let parameters: String = self.parameters.iter().map(|(k, v)| format!("{k}='{}'\n", quoted(v))).collect();
        let files = self.files.iter().fold(Archive::new(), |archive, (path, content)| archive.file(path, content));
        let archive = files
            .directory("softdpu")
            .file("softdpu/run", &read(paths::repository().join("lab/guest/run"))?)
            .file("softdpu/job", &script)
            .file("softdpu/parameters", parameters.as_bytes());
        initrd.extend(archive.finish());
        Ok(initrd)
    }

    fn arguments(&self, initrd: &Path, qemu: &Qemu) -> Result<Vec<OsString>, Failure> {
        let root = match self.root {
            Root::Ram | Root::NetworkRam => "ram",
            Root::FirstDisk => "/dev/vda",
        };
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        let accel = self.accel.unwrap_or_else(Accel::detect);
        match accel {
            // Of a kernel this new, one emulated processor patches code (static keys) while another is in the middle of
            // it, which QEMU's parallel emulation gets wrong now and then: the kernel panics, or hangs.
            Accel::Tcg if self.newer_kernel => add(&["-accel", "tcg,thread=single", "-cpu", "max"]),
            _ => add(accel.arguments()),
        }
        add(&["-smp", &self.cpus.to_string(), "-m", &format!("{}M", self.memory_mib)]);
        // A vhost-user back end maps the guest's memory: it has to be a shared file.
        add(&["-object", &format!("memory-backend-memfd,id=memory,size={}M,share=on", self.memory_mib)]);
        add(&["-machine", "q35,memory-backend=memory"]);
        add(&["-kernel", &self.kernel_file("vmlinuz")?.to_string_lossy(), "-initrd", &initrd.to_string_lossy()]);
        // A panic ends QEMU (panic=-1 reboots at once, -no-reboot makes that the end). Errors are shown, notes are not.
        add(&["-append", &format!("console=ttyS0 quiet loglevel=4 panic=-1 softdpu.root={root}")]);
        for (number, disk) in self.disks.iter().enumerate() {
            // A comma in a value is written twice (QEMU's own option syntax).
            let socket = disk.socket.to_string_lossy().replace(',', ",,");
            let packed = if disk.packed { "on" } else { "off" };
            let queues = disk.queues;
            add(&["-chardev", &format!("socket,id=disk{number},path={socket}")]);
            add(&[
                "-device",
                &format!(
                    "vhost-user-blk-pci,chardev=disk{number},num-queues={queues},packed={packed},disable-legacy=on"
                ),
            ]);
        }
        arguments.extend(self.devices.iter().flat_map(|device| device.arguments(accel, qemu)).map(OsString::from));
        Ok(arguments)
    }
}

/// A running guest.
pub struct Guest {
    name: String,
    qemu: Process,
    /// The first console line that no wait has looked at.
    next_line: usize,
}

impl Guest {
    /// Starts it. Its console goes to `folder/NAME.log`.
    pub fn boot(folder: &Path, spec: GuestSpec) -> Result<Guest, Failure> {
        let initrd = folder.join(format!("{}.initrd", spec.name));
        std::fs::write(&initrd, spec.initrd()?).context(format_args!("writing {}", initrd.display()))?;
        let qemu = spec.qemu.clone().map_or_else(Qemu::of_machine, Ok)?;
        let arguments = spec.arguments(&initrd, &qemu)?;
        let qemu = Process::start_in(spec.namespace.as_deref(), &spec.name, folder, qemu.program(), arguments)?;
        Ok(Guest { name: spec.name, qemu, next_line: 0 })
    }

    /// Waits until the guest's init has taken over.
    pub fn booted(&mut self) -> Result<Report, Failure> {
        self.step("boot", BOOT_DEADLINE)
    }

    /// Waits for the next report about the step called `name`. A report of any failure ends the wait.
    pub fn step(&mut self, name: &str, deadline: Duration) -> Result<Report, Failure> {
        let what = format!("a report of step `{name}`");
        let pick = |line: &str| Report::parse(line).filter(|report| report.step == name || !report.ok);
        let (report, next) = self.qemu.wait_for_line(&what, self.next_line, deadline, pick)?;
        self.next_line = next;
        if report.ok {
            return Ok(report);
        }
        Err(Failure::new(format!(
            "in the guest {}, step `{}` failed: {:?}{}",
            self.name,
            report.step,
            report.fields,
            self.qemu.tail()
        )))
    }

    /// Waits for a console line that contains `marker`.
    pub fn wait_for(&mut self, marker: &str, deadline: Duration) -> Result<(), Failure> {
        let pick = |line: &str| line.contains(marker).then_some(());
        let (_, next) = self.qemu.wait_for_line(&format!("`{marker}`"), self.next_line, deadline, pick)?;
        self.next_line = next;
        Ok(())
    }

    /// Whether the guest has reported a failure or ended. For loops that do something else while the guest works.
    pub fn check(&mut self) -> Result<(), Failure> {
        let failed = self.qemu.lines().iter().filter_map(|line| Report::parse(line)).find(|report| !report.ok);
        if let Some(report) = failed {
            let tail = self.qemu.tail();
            return Err(Failure::new(format!("in the guest {}, step `{}` failed{tail}", self.name, report.step)));
        }
        if let Some(status) = self.qemu.exited()? {
            return Err(Failure::new(format!("the guest {} ended early ({status}){}", self.name, self.qemu.tail())));
        }
        Ok(())
    }

    /// Types a line on the guest's serial console, where a job may read it.
    pub fn type_line(&mut self, line: &str) -> Result<(), Failure> {
        self.qemu.send_line(line)
    }

    /// Types a line on the console of a guest whose job takes its steps from there (lab/guest/jobs/network.sh), and
    /// waits for the report of the step, whose name is the line's first word.
    pub fn ask(&mut self, line: &str, deadline: Duration) -> Result<Report, Failure> {
        self.type_line(line)?;
        let name = line.split(' ').next().unwrap_or(line);
        self.step(name, deadline)
    }

    /// Repeats a `fetch` step, each one TCP connection, until `disturb` was called `times` times in the middle of one,
    /// after random times of up to `longest`. Every byte has to arrive once and in its place: each fetch reports the
    /// checksum `sum`. `disturb` gets the number of calls in the middle of a transfer before it. Returns the number of
    /// all calls.
    pub fn fetch_through(
        &mut self,
        (fetch, sum): (&str, &str),
        times: u64,
        longest: Duration,
        deadline: Duration,
        mut disturb: impl FnMut(u64) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let mut random = Random::from_environment();
        eprintln!("SOFTDPU_SEED={}", random.seed);
        let (mut during, mut calls) = (0, 0);
        while during < times {
            assert!(calls < 8 * times, "{calls} disturbances, and only {during} of them during a transfer");
            self.type_line(fetch)?;
            self.step("progress", deadline)?;
            let before = self.fetches();
            while during < times {
                std::thread::sleep(random.between(Duration::from_millis(20), longest));
                if self.fetches() > before {
                    break;
                }
                disturb(during)?;
                calls += 1;
                self.check()?;
                during += u64::from(self.fetches() == before);
            }
            let found: String = self.step("fetch", deadline)?.get("sum")?;
            assert_eq!(found, sum, "what arrived is not what was sent");
        }
        Ok(calls)
    }

    /// Fetches that have ended.
    fn fetches(&self) -> usize {
        self.reports().iter().filter(|report| report.step == "fetch").count()
    }

    /// Every report so far.
    pub fn reports(&self) -> Vec<Report> {
        self.qemu.lines().iter().filter_map(|line| Report::parse(line)).collect()
    }

    /// Waits for the job's end, which has to be a good one, and for the guest to power off.
    pub fn finish(&mut self, deadline: Duration) -> Result<(), Failure> {
        self.step("job", deadline)?;
        let status = self.qemu.wait(BOOT_DEADLINE)?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::new(format!("QEMU of the guest {} ended with {status}{}", self.name, self.qemu.tail())))
    }
}
