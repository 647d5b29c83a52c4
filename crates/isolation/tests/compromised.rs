//! What code that got hold of the data plane could do: each attempt in a process of its own with the data plane's
//! walls.
//!
//! A test starts this program again for one attempt. That process puts the walls up as the data plane does and makes
//! the attempt on a thread that was there before the filter of system calls, and on one that came after it. Without
//! walls the same attempts are not refused: they show what the walls keep out.

use std::fs::{self, File};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::sys::ptrace;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Resource, Signal, Uid, getppid, getrlimit, kill_process, pidfd_open, prlimit,
    set_dumpable_behavior,
};
use rustix::thread::set_thread_uid;
use softdpu_isolation::{Identity, Needs, confine_calls, confine_process, confine_user, refused};

/// The attempt that a process is for, and whether there are walls in it.
const ATTEMPT: &str = "SOFTDPU_ATTEMPT";
const WALLS: &str = "SOFTDPU_WALLS";
/// A file that is not the data plane's.
const VICTIM: &str = "SOFTDPU_VICTIM";
/// Whether the process has an underlay.
const UNDERLAY: &str = "SOFTDPU_UNDERLAY";
/// A user without an account.
const NOBODY: u32 = 65_520;
/// What begins the lines by which a process tells what came of its attempt.
const CAME: &str = "came of it: ";

/// What refuses an attempt.
enum Wall {
    /// The filter: of this system call.
    Calls(&'static str),
    /// The filter, without a count.
    Uncounted,
    /// Landlock.
    Files,
}
use Wall::{Calls, Files, Uncounted};

struct Attempt {
    name: &'static str,
    make: fn(&Path) -> io::Result<()>,
    wall: Wall,
}

const fn attempt(name: &'static str, wall: Wall, make: fn(&Path) -> io::Result<()>) -> Attempt {
    Attempt { name, make, wall }
}

const ATTEMPTS: &[Attempt] = &[
    attempt("run a program", Uncounted, |_| Command::new("/bin/true").status().map(drop)),
    attempt("become a program", Calls("execve"), |_| Err(exec())),
    attempt("read a file of others", Files, |victim| File::open(victim).map(drop)),
    attempt("create a file", Files, |victim| File::create(victim.with_extension("new")).map(drop)),
    attempt("open a device", Files, |_| File::open("/dev/zero").map(drop)),
    attempt("read memory of others", Files, |_| File::open(format!("/proc/{}/mem", parent())).map(drop)),
    attempt("read the environment of others", Files, |_| File::open(format!("/proc/{}/environ", parent())).map(drop)),
    attempt("signal another process", Calls("kill"), |_| Ok(kill_process(parent(), Signal::CONT)?)),
    attempt("take a handle of another process", Calls("pidfd_open"), |_| {
        Ok(pidfd_open(parent(), PidfdFlags::empty()).map(drop)?)
    }),
    // Seized, not attached: the kernel would stop the test otherwise.
    attempt("trace another process", Calls("ptrace"), |_| {
        Ok(ptrace::seize(nix_pid(), ptrace::Options::empty()).or_else(beyond_permission)?)
    }),
    attempt("copy memory of others", Calls("process_vm_readv"), |_| copy_memory()),
    attempt("change limits of others", Calls("prlimit64"), |_| {
        Ok(prlimit(Some(parent()), Resource::Nofile, getrlimit(Resource::Nofile)).map(drop)?)
    }),
    attempt("delete a file", Calls("unlink"), |victim| fs::remove_file(victim)),
    attempt("rename a file", Calls("rename"), |victim| fs::rename(victim, victim.with_extension("old"))),
    attempt("give a file away", Calls("chown"), |victim| chown(victim, Some(1), None)),
    attempt("become another user", Calls("setuid"), |_| Ok(set_thread_uid(Uid::from_raw(0))?)),
    attempt("unmount", Calls("umount2"), |victim| not_there(unmount(victim, UnmountFlags::empty()))),
    attempt("enter a new namespace", Calls("unshare"), |_| Ok(unshare(CloneFlags::CLONE_NEWNET)?)),
    attempt("listen to an interface", Calls("socket"), |_| {
        Ok(socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop)?)
    }),
    attempt("configure interfaces", Calls("socket"), |_| {
        Ok(socket(AddressFamily::NETLINK, SocketType::RAW, None).map(drop)?)
    }),
    attempt("set up a ring", Calls("io_uring_setup"), |_| io_uring::IoUring::new(8).map(drop)),
    attempt("connect to a server", Calls("connect"), |_| {
        let nowhere = rustix::net::SocketAddrUnix::new("/no/such/socket")?;
        match rustix::net::connect(rustix::stdio::stdin(), &nowhere) {
            // Whatever the test's standard input is, it is no socket that could reach there.
            Err(Errno::NOTSOCK | Errno::NOENT | Errno::ISCONN | Errno::INVAL) => Ok(()),
            other => Ok(other?),
        }
    }),
    attempt("open a connection's socket", Calls("socket"), |_| {
        Ok(socket(AddressFamily::INET, SocketType::STREAM, None).map(drop)?)
    }),
    attempt("open a local socket", Calls("socket"), |_| {
        Ok(socket(AddressFamily::UNIX, SocketType::DGRAM, None).map(drop)?)
    }),
    attempt("add an interface", Files, |_| File::options().read(true).write(true).open("/dev/net/tun").map(drop)),
    attempt("read a key of the kernel's keyring", Calls("request_key"), |_| match softdpu_sys::keyring::read_user_key(
        "softdpu:no such key",
        64,
    ) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Ok(()),
        other => other.map(drop),
    }),
    attempt("be dumpable again", Calls("prctl"), |_| Ok(set_dumpable_behavior(DumpableBehavior::Dumpable)?)),
];

fn parent() -> Pid {
    getppid().expect("a process that a test started has a parent")
}

fn nix_pid() -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(parent().as_raw_nonzero().get())
}

fn exec() -> io::Error {
    use std::os::unix::process::CommandExt;
    // Another thread's would end this one; a program that is not there tells as much.
    Command::new("/no/such/program").exec()
}

/// An error that is none of permission is as good as success: the kernel was asked, and not the wall.
fn beyond_permission(error: nix::Error) -> nix::Result<()> {
    if error == nix::Error::EPERM { Err(error) } else { Ok(()) }
}

fn not_there(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

fn copy_memory() -> io::Result<()> {
    let mut bytes = [0; 1];
    let remote = [RemoteIoVec { base: 0, len: 1 }];
    match process_vm_readv(nix_pid(), &mut [IoSliceMut::new(&mut bytes)], &remote) {
        // There is nothing at zero.
        Err(nix::Error::EFAULT) => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

/// The process of an attempt; nothing where this program was started by hand.
#[test]
fn attempt_of_a_process() {
    let Ok(name) = std::env::var(ATTEMPT) else { return };
    let victim = PathBuf::from(std::env::var(VICTIM).unwrap());
    let attempt = ATTEMPTS.iter().find(|attempt| attempt.name == name).unwrap();
    let walls = std::env::var(WALLS).is_ok();
    let make = attempt.make;
    if walls {
        let missing = confine_process(&Needs::default());
        assert!(missing.is_empty(), "{missing:?}");
    }
    let (go, wait) = channel::<()>();
    let path = victim.clone();
    let before = thread::spawn(move || {
        wait.recv().unwrap();
        make(&path)
    });
    if walls {
        confine_calls(&Needs::default()).unwrap();
    }
    go.send(()).unwrap();
    for result in [before.join().unwrap(), thread::spawn(move || make(&victim)).join().unwrap()] {
        let denied = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        println!("{CAME}{} ({result:?})", if denied { "refused" } else { "done" });
    }
    println!("{CAME}calls {:?}", refused());
}

/// Makes an attempt in a process of its own, and gives what came of it.
fn in_a_process(attempt: &Attempt, walls: bool) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "secret").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "attempt_of_a_process", "--nocapture"]).env(ATTEMPT, attempt.name).env(VICTIM, &victim);
    if walls {
        command.env(WALLS, "up");
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}: {said}", attempt.name, output.status);
    let came: Vec<String> =
        said.lines().filter_map(|line| line.split_once(CAME)).map(|(_, came)| came.to_owned()).collect();
    assert_eq!(came.len(), 3, "{}: {said}", attempt.name);
    came
}

#[test]
fn a_compromised_data_plane_is_refused_what_is_not_its_own_and_goes_on() {
    for attempt in ATTEMPTS {
        let came = in_a_process(attempt, true);
        let refused = |came: &String| came.starts_with("refused");
        assert!(came[..2].iter().all(refused), "{}: {came:?}", attempt.name);
        match attempt.wall {
            Calls(call) => assert!(came[2].contains(&format!("(\"{call}\", ")), "{}: {came:?}", attempt.name),
            Files | Uncounted => assert_eq!(came[2], "calls []", "{}", attempt.name),
        }
    }
}

#[test]
fn without_walls_the_same_attempts_are_not_refused() {
    if !rustix::process::geteuid().is_root() {
        // The kernel refuses some of them to other users.
        return;
    }
    for attempt in ATTEMPTS {
        let came = in_a_process(attempt, false);
        assert!(came[0].starts_with("done"), "{}: {came:?}", attempt.name);
    }
}

/// The process of the test below; nothing where this program was started by hand.
#[test]
fn process_of_another_user() {
    let Ok(underlay) = std::env::var(UNDERLAY) else { return };
    let user = Some(Identity { uid: NOBODY, gid: NOBODY });
    let needs = Needs { user, underlay: underlay == "yes", ..Needs::default() };
    let missing = confine_process(&needs);
    assert!(missing.is_empty(), "{missing:?}");
    let (go, wait) = channel::<()>();
    // Made before, as cores are.
    let before = thread::spawn(move || {
        wait.recv().unwrap();
        (own_rights(), softdpu_isolation::capabilities())
    });
    confine_user(&needs).unwrap();
    confine_calls(&needs).unwrap();
    go.send(()).unwrap();
    let (rights, capabilities) = before.join().unwrap();
    println!("{CAME}{rights} {capabilities:?}");
    println!("{CAME}{} {:?}", own_rights(), softdpu_isolation::capabilities());
    let of_root = rustix::process::Uid::ROOT;
    println!("{CAME}{}", if set_thread_uid(of_root).is_err() { "refused" } else { "root again" });
}

/// The calling thread's users and groups, and whether it can have more rights.
fn own_rights() -> String {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().replace('\t', " ");
    format!("users{} groups{}|{} ambient{}", of("Uid:"), of("Gid:"), of("Groups:").trim(), of("CapAmb:"))
}

#[test]
fn a_data_plane_that_root_started_is_another_user_on_all_threads_and_has_no_capabilities() {
    if !rustix::process::geteuid().is_root() {
        return softdpu_testing::skip("the data plane's user", "only root can become another");
    }
    for underlay in ["no", "yes"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process_of_another_user", "--nocapture"]).env(UNDERLAY, underlay);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let came: Vec<&str> = said.lines().filter_map(|line| Some(line.split_once(CAME)?.1)).collect();
        let ids = [NOBODY.to_string().as_str(); 4].join(" ");
        let rights = format!("users {ids} groups {ids}|{NOBODY} ambient 0000000000000000");
        assert_eq!(came[0], format!("{rights} []"), "a thread from before, as cores are");
        assert!(came[1].starts_with(&rights), "{}", came[1]);
        assert_eq!(came[1].ends_with(" []"), underlay == "no", "{}", came[1]);
        assert!(!came[1].contains("SYS_") && !came[1].contains("DAC_"), "{}", came[1]);
        assert_eq!(came[2], "refused");
    }
}
