//! Tenants that share one data-plane core, seen from their drivers: what a light one waits beside one that floods, and
//! how equal tenants share. Every figure is a ratio within one run; medians of turns that alternate, and a bounded
//! number of tries, as the machine may be busy with other things.

#![allow(missing_docs)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use softdpu_frontend::load::block::BlockWork;
use softdpu_frontend::load::frames::Route;
use softdpu_frontend::load::{BlockClient, FrameClient, Job, Outcome, Priority, RoundTrip, RunOptions, run};
use softdpu_frontend::{Frames, Station, Transfer};
use softdpu_sched::{fair1, jain};
use softdpu_tests::{Context, Daemon, Failure, Lab, Process, SlowDisk, has_two_cpus, skip, wait_until};

/// The clients' CPU, and the core's.
const CPUS: (usize, usize) = (0, 1);
/// How often a comparison is tried again before it has failed.
const TRIES: usize = 8;
/// Measurements of each kind, taking turns.
const TURNS: usize = 5;
const WARM_UP: Duration = Duration::from_millis(50);

const READ: BlockWork = BlockWork { transfer: Transfer::Read, block_size: 4096, depth: 1 };
const FLOOD: BlockWork = BlockWork { transfer: Transfer::Write, block_size: 4096, depth: 128 };

/// Clients that go before all other programs.
fn clients_first(duration: Duration) -> RunOptions {
    RunOptions { cpu: CPUS.0, priority: Priority::Session, batch: None, warm_up: WARM_UP, duration }
}

/// A tenant of a site, and its volume as the site file has it.
struct Tenant {
    keys: &'static str,
    volume: String,
}

impl Tenant {
    fn with_memory(keys: &'static str) -> Tenant {
        Tenant { keys, volume: "memory = { size = \"4 MiB\" }".to_owned() }
    }
}

fn site(fairness: &str, tenants: &[Tenant], folder: &Path) -> (String, Vec<PathBuf>) {
    let mut text = format!(
        "[node]\nfairness = \"{fairness}\"\ndataplane = {{ cores = [{}], idle-sleep = \"never\" }}\n\
         log = {{ level = \"warn\" }}\n",
        CPUS.1
    );
    let mut sockets = Vec::new();
    for (at, Tenant { keys, volume }) in tenants.iter().enumerate() {
        let _ = write!(text, "[[tenant]]\nname = \"t{at}\"\n{keys}\n");
        // An empty one: the volume of the tenant before.
        let disk = if volume.is_empty() { at - 1 } else { at };
        if !volume.is_empty() {
            let _ = write!(text, "[[volume]]\nname = \"v{at}\"\n{volume}\n");
        }
        let _ = write!(
            text,
            "[[device]]\nname = \"d{at}\"\ntenant = \"t{at}\"\nvirtio-blk = {{ volume = \"v{disk}\", queue-size = 1024, \
             socket = \"d{at}.sock\" }}\n"
        );
        sockets.push(folder.join(format!("d{at}.sock")));
    }
    (text, sockets)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What the light tenant, the first, sees beside the others and alone: medians of p99 latencies, nanoseconds. Then what
/// the flood got beside it, requests a second.
struct Seen {
    alone: f64,
    beside: f64,
    /// The mean beside the others, not p99.
    mean: f64,
    flood: f64,
}

impl Seen {
    fn slowdown(&self) -> f64 {
        self.beside / self.alone
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Seen { alone, beside, mean, flood } = self;
        let slowdown = self.slowdown();
        write!(
            f,
            "p99 {:.1} us alone, {:.1} us (mean {:.1}) beside {flood:.0} requests/s: {slowdown:.2} times",
            alone / 1e3,
            beside / 1e3,
            mean / 1e3
        )
    }
}

/// What tenants do, and how it is measured.
struct Load<'a> {
    works: &'a [BlockWork],
    /// One measurement.
    turn: Duration,
    /// The clients go before all other programs.
    first: bool,
    /// What the data plane is slowed on.
    slow: Option<&'a SlowDisk>,
}

fn see(lab: &Lab, fairness: &str, tenants: &[Tenant], load: &Load<'_>) -> Result<Seen, Failure> {
    let Load { works, turn, first, slow } = *load;
    let (text, sockets) = site(fairness, tenants, lab.path());
    let daemon = Daemon::start(lab.path(), &text)?;
    if let Some(slow) = slow {
        std::fs::write(slow.members(), daemon.data_plane()?.0.to_string()).context("slowing the data plane")?;
    }
    let mut clients = sockets
        .iter()
        .zip(works)
        .map(|(socket, work)| BlockClient::connect(socket, *work))
        .collect::<Result<Vec<_>, _>>()
        .context("connecting")?;
    let priority = if first { Priority::Session } else { Priority::Normal };
    let options = RunOptions { priority, ..clients_first(turn) };
    let (mut alone, mut beside, mut mean, mut flood) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let served = run(&mut clients[..1], &options).context("the light tenant alone")?;
        alone.push(served[0].latency_at(0.99) as f64);
        let served = run(&mut clients, &options).context("all tenants")?;
        beside.push(served[0].latency_at(0.99) as f64);
        mean.push(served[0].latency.mean());
        flood.push(served[1..].iter().map(Outcome::rate).sum());
    }
    drop(clients);
    daemon.stop()?;
    let seen = Seen { alone: median(alone), beside: median(beside), mean: median(mean), flood: median(flood) };
    println!("{fairness}: {seen}");
    Ok(seen)
}

/// Compares `weighted` with `fcfs` until the light tenant's p99 is at most `bound` times what it is alone, and with
/// `fcfs` p99 and the mean are `worse` times as much as that.
fn protects(name: &str, see: impl Fn(&Lab, &str) -> Result<Seen, Failure>, bound: f64, worse: f64) {
    Lab::run_on_two_cpus(name, |lab| {
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let (weighted, fcfs) = (see(lab, "weighted")?, see(lab, "fcfs")?);
            // Beside each other's: what p99 is alone differs more on a busy machine, and a mean hardly at all.
            let is_worse = fcfs.beside >= worse * weighted.beside && fcfs.mean >= worse * weighted.mean;
            if weighted.slowdown() <= bound && is_worse {
                return Ok(());
            }
            seen.push(format!("weighted {weighted}; fcfs {fcfs}"));
        }
        Err(Failure::new(format!("at most {bound} times, fcfs {worse} times that: {}", seen.join(" | "))))
    });
}

/// Reads of a tenant of a class beside a flood of writes.
fn beside_writes(name: &str, class: &'static str, bound: f64, worse: f64) {
    let load = Load { works: &[READ, FLOOD], turn: Duration::from_millis(300), first: true, slow: None };
    let tenants = [Tenant::with_memory(class), Tenant::with_memory("")];
    protects(name, |lab, fairness| see(lab, fairness, &tenants, &load), bound, worse);
}

const LATENCY: &str = "class = \"latency\"";
const DEFAULT: &str = "";

#[test]
fn reads_of_one_tenant_wait_a_third_at_most_of_what_they_do_first_come_first_served() {
    beside_writes("flood", LATENCY, f64::INFINITY, 3.0);
}

#[test]
fn reads_of_a_tenant_of_the_default_class_wait_half_at_most_of_what_they_do_first_come_first_served() {
    beside_writes("flood-default", DEFAULT, f64::INFINITY, 2.0);
}

#[test]
#[ignore = "missed: 2.5 to 3.1 times where reads take 2 us alone (docs/scheduling.md)"]
fn reads_of_one_tenant_hardly_wait_for_the_writes_that_another_floods_the_core_with() {
    beside_writes("flood-bar", LATENCY, 1.5, 3.0);
}

#[test]
fn a_slow_server_that_one_tenant_floods_still_answers_another() {
    if !std::process::Command::new("nbdkit").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("flooded server", "nbdkit is not installed");
    }
    Lab::run_on_two_cpus("flooded-nbd", |lab| {
        let socket = lab.path().join("slow.sock");
        let arguments = ["-f", "-U", "slow.sock", "--filter=delay", "memory", "16M", "rdelay=20ms", "wdelay=20ms"]
            .map(str::to_owned);
        let mut server = Process::start("nbdkit", lab.path(), Path::new("nbdkit"), arguments)?;
        wait_until("nbdkit's socket", Duration::from_secs(60), || Ok(socket.exists().then_some(())))?;
        let shared = format!("shared = true\nnbd = {{ uri = \"nbd+unix:///?socket={}\" }}", socket.display());
        // The server's delay is many times what it may wait for a CPU, and it needs one as well.
        let load = Load { works: &[READ, FLOOD], turn: Duration::from_millis(1200), first: false, slow: None };
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let tenants =
                || vec![Tenant { keys: "", volume: shared.clone() }, Tenant { keys: "", volume: String::new() }];
            let weighted = see(lab, "weighted", &tenants(), &load)?;
            let fcfs = see(lab, "fcfs", &tenants(), &load)?;
            // Beside each other's, not over what each was alone: on a busy machine that is the server's wait for a CPU,
            // and differs.
            if weighted.slowdown() <= 1.5 && fcfs.beside >= 2.0 * weighted.beside {
                server.stop()?;
                return Ok(());
            }
            seen.push(format!("weighted {weighted}; fcfs {fcfs}"));
        }
        Err(Failure::new(seen.join(" | ")))
    });
}

#[test]
fn a_slow_disk_that_one_tenant_floods_still_answers_another() {
    const TEST: &str = "flooded disk";
    /// Bytes a second: a read of 4 KiB takes 1.25 ms.
    const RATE: u64 = 800 * 4096;
    const IMAGE: usize = 4 << 20;
    if !has_two_cpus(TEST) {
        return;
    }
    // Not in the lab's folder, which may be in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let slow = match SlowDisk::new(folder.path(), RATE) {
        Ok(slow) => slow,
        Err(error) => return skip(TEST, &error.to_string()),
    };
    Lab::run("flooded-disk", |lab| {
        // A file each, on one disk.
        let tenants = || {
            let volume = |name: &str| -> Result<Tenant, Failure> {
                let image = folder.path().join(name);
                std::fs::write(&image, vec![1; IMAGE]).context("writing an image")?;
                std::fs::File::open(&image).and_then(|file| file.sync_all()).context("syncing an image")?;
                let volume = format!("depth = 8\nfile = {{ path = '{}', direct = true }}", image.display());
                Ok(Tenant { keys: "", volume })
            };
            Ok::<_, Failure>(vec![volume("light")?, volume("flood")?])
        };
        let works = [READ, BlockWork { depth: 128, ..READ }];
        let load = Load { works: &works, turn: Duration::from_millis(1_500), first: false, slow: Some(&slow) };
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let weighted = see(lab, "weighted", &tenants()?, &load)?;
            let fcfs = see(lab, "fcfs", &tenants()?, &load)?;
            // Eight at the disk instead of 128. By the mean: the kernel lets what it holds back go in slices of 100 ms,
            // which is p99 for a tenant that is alone there, too.
            if fcfs.mean >= 2.5 * weighted.mean {
                return Ok(());
            }
            seen.push(format!("weighted {weighted}; fcfs {fcfs}"));
        }
        Err(Failure::new(seen.join(" | ")))
    });
}

/// What the core was busy with so far, and what it was idle, nanoseconds.
fn core_time(daemon: &Daemon) -> Result<[f64; 2], Failure> {
    let status = daemon.status()?;
    let core = &status["cores"][0];
    let [Some(busy), Some(idle)] = ["busy_ns", "idle_ns"].map(|key| core[key].as_f64()) else {
        return Err(Failure::new(format!("no times of cores: {}", status["cores"])));
    };
    Ok([busy, idle])
}

/// What each tenant cost its core so far, in nanoseconds as `weighted` counts them: time, and 20 ps a byte.
fn costs(daemon: &Daemon) -> Result<Vec<f64>, Failure> {
    let status = daemon.status()?;
    let of = |tenant: &serde_json::Value| {
        let [time, bytes] = ["core_time_ns", "bytes"].map(|key| tenant[key].as_f64());
        Some(time? + 0.02 * bytes?)
    };
    let ours = |tenant: &&serde_json::Value| tenant["name"].as_str().is_some_and(|name| name.starts_with('t'));
    let tenants = status["tenants"].as_array().map_or(&[][..], Vec::as_slice);
    let costs: Option<Vec<f64>> = tenants.iter().filter(ours).map(of).collect();
    costs.ok_or_else(|| Failure::new(format!("no costs of tenants: {}", status["tenants"])))
}

#[test]
fn equal_tenants_have_equal_parts() {
    parts_are_had("equal", &[vec![1; 2], vec![1; 4], vec![1; 8]]);
}

#[test]
fn tenants_have_parts_by_their_weights() {
    parts_are_had("weights", &[vec![4, 1], vec![4, 2, 2, 1]]);
}

fn parts_are_had(name: &str, sites: &[Vec<u32>]) {
    Lab::run_on_two_cpus(name, |lab| {
        for weights in sites {
            let keys: Vec<&'static str> = weights
                .iter()
                .map(|weight| match weight {
                    4 => "weight = 4",
                    2 => "weight = 2",
                    _ => "weight = 1",
                })
                .collect();
            let tenants: Vec<Tenant> = keys.into_iter().map(Tenant::with_memory).collect();
            let (text, sockets) = site("weighted", &tenants, lab.path());
            let daemon = Daemon::start(lab.path(), &text)?;
            // Large ones where parts differ: the core has to be the bottleneck, and not the clients, or the tenant with
            // the largest part does not always have work. And many: a tenant that the core serves first still has work
            // while the clients' CPU does something else.
            let (block_size, depth) =
                if weights.iter().all(|weight| *weight == 1) { (4096, 64) } else { (65_536, 256) };
            let work = BlockWork { transfer: Transfer::Read, block_size, depth };
            let mut clients = sockets
                .iter()
                .map(|socket| BlockClient::connect(socket, work))
                .collect::<Result<Vec<_>, _>>()
                .context("connecting")?;
            let expected: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
            let mut tries = Vec::new();
            for _ in 0..TRIES {
                let (before, core_before) = (costs(&daemon)?, core_time(&daemon)?);
                let served = run(&mut clients, &clients_first(Duration::from_millis(1_000))).context("load")?;
                // A tenant with a larger part finds more of its data in the cache, so that its requests cost less.
                let requests: Vec<f64> = served.iter().map(|served| served.requests as f64).collect();
                let cost: Vec<f64> =
                    costs(&daemon)?.iter().zip(&before).map(|(after, before)| after - before).collect();
                let core = core_time(&daemon)?;
                let [busy, idle] = [0, 1].map(|at| (core[at] - core_before[at]) / 1e6);
                println!(
                    "requests {requests:?}, cost {cost:.0?}, together {:.0} of {busy:.0} ms that the core was busy; idle {idle:.0}",
                    cost.iter().sum::<f64>() / 1e6
                );
                let got: Vec<f64> = if weights.iter().all(|weight| *weight == 1) { requests } else { cost };
                let (fair, jain) = (fair1(&expected, &got), jain(&expected, &got));
                println!(
                    "weights {weights:?}: Fair1 {fair:.4}, Jain {jain:.5}, {:.0} requests/s",
                    served.iter().map(Outcome::rate).sum::<f64>()
                );
                tries.push(fair);
                if fair <= 0.02 {
                    break;
                }
            }
            assert!(tries.iter().any(|fair| *fair <= 0.02), "weights {weights:?}: Fair1 {tries:?}");
            drop(clients);
            daemon.stop()?;
        }
        Ok(())
    });
}

#[test]
fn a_limit_holds_is_changed_while_it_holds_and_shows_in_the_status() {
    Lab::run_on_two_cpus("limits", |lab| {
        let tenants = [Tenant::with_memory("limits = { iops = 5_000, iops-burst = 64 }"), Tenant::with_memory("")];
        let (text, sockets) = site("weighted", &tenants, lab.path());
        let daemon = Daemon::start(lab.path(), &text)?;
        let work = BlockWork { transfer: Transfer::Read, block_size: 4096, depth: 32 };
        let mut clients = vec![BlockClient::connect(&sockets[0], work).context("connecting")?];
        // The rate of a second, as soon as one shows what it has to.
        let mut rate_in = |range: std::ops::Range<f64>| -> Result<f64, Failure> {
            let mut seen = Vec::new();
            for _ in 0..TRIES {
                let warm_up = Duration::from_millis(200);
                let options = RunOptions { warm_up, ..clients_first(Duration::from_millis(1_000)) };
                let rate = run(&mut clients, &options).context("load")?[0].rate();
                if range.contains(&rate) {
                    return Ok(rate);
                }
                seen.push(rate);
            }
            Err(Failure::new(format!("requests a second, which were to be within {range:?}: {seen:.0?}")))
        };
        rate_in(4_000.0..5_200.0)?;

        daemon.command(&["tenant", "set", "t0", "--iops", "20000", "--iops-burst", "64", "--weight", "3"])?;
        let rate = rate_in(15_000.0..20_800.0)?;
        let status = daemon.status()?;
        let tenant = &status["tenants"][0];
        assert_eq!((&tenant["weight"], &tenant["limits"]["iops"]), (&3.into(), &20_000.into()), "{tenant}");
        assert!(tenant["limited_ns"].as_u64().is_some_and(|ns| ns > 500_000_000), "{tenant}");
        assert!(tenant["waited_ns"].as_u64().is_some_and(|ns| ns > 500_000_000), "{tenant}");
        assert_eq!(tenant["cores"][0]["iops_limit"], 20_000, "{tenant}");

        daemon.command(&["tenant", "set", "t0", "--no-limits"])?;
        // Without a limit.
        rate_in(2.0 * rate..f64::INFINITY)?;
        let refused = daemon.command(&["tenant", "set", "nobody", "--weight", "3"]).err();
        let words = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(words.contains("there is no tenant called"), "{words}");
        drop(clients);
        daemon.stop()
    });
}

/// Bytes of memory of its own that the daemon's two processes have.
fn resident(daemon: &Daemon) -> Result<u64, Failure> {
    let supervisor = daemon.status()?["supervisor_pid"].as_u64().unwrap_or_default() as u32;
    let mut sum = 0;
    for pid in [supervisor, daemon.data_plane()?.0] {
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).context(&path)?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        sum += kib.ok_or_else(|| Failure::new(format!("{path} has no RssAnon")))? * 1024;
    }
    Ok(sum)
}

#[test]
fn a_thousand_tenants_with_a_disk_each_are_served_alike_and_take_little_memory() {
    if !has_two_cpus("a thousand tenants") {
        return;
    }
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let files = getrlimit(Resource::Nofile);
    if files.maximum.is_some_and(|most| most < 16_384) {
        return skip("a thousand tenants", "a process may not have 16,384 files open (ulimit -Hn)");
    }
    let allow = |current: Option<u64>| {
        setrlimit(Resource::Nofile, Rlimit { current, ..files }).expect("the soft limit may be the hard one");
    };
    Lab::run("thousand", |lab| {
        let with = |count: usize| -> Result<u64, Failure> {
            let null = || Tenant { keys: "", volume: "null = { size = \"1 GiB\" }".to_owned() };
            let tenants: Vec<Tenant> = (0..count).map(|_| null()).collect();
            let (text, sockets) = site("weighted", &tenants, lab.path());
            // What a shell gives a daemon: it raises that itself.
            allow(Some(1_024));
            let daemon = Daemon::start(lab.path(), &text)?;
            // For the clients, which are this process's.
            allow(files.maximum);
            let work = BlockWork { depth: 2, ..READ };
            let mut clients = sockets
                .iter()
                .map(|socket| BlockClient::connect(socket, work))
                .collect::<Result<Vec<_>, _>>()
                .context("connecting")?;
            let mut seen = Vec::new();
            loop {
                let served = run(&mut clients, &clients_first(Duration::from_secs(2))).context("load")?;
                let got: Vec<f64> = served.iter().map(|served| served.requests as f64).collect();
                let (fair, nothing) = (jain(&vec![1.0; count], &got), got.iter().filter(|got| **got == 0.0).count());
                println!("{count} tenants: {:.0} requests, Jain {fair:.4}", got.iter().sum::<f64>());
                if fair > 0.9 && nothing == 0 {
                    break;
                }
                seen.push((fair, nothing));
                assert!(seen.len() < TRIES, "{count} tenants: Jain, and how many got nothing: {seen:?}");
            }
            let resident = resident(&daemon)?;
            drop(clients);
            daemon.stop()?;
            Ok(resident)
        };
        let (few, many) = (with(32)?, with(1_024)?);
        let each = many.saturating_sub(few) / (1_024 - 32);
        println!("{each} bytes each");
        assert!(each < 64 << 10, "{each} bytes for a tenant with a device");
        Ok(())
    });
}

const STATIONS: [[Station; 2]; 2] = {
    const fn station(last: u8) -> Station {
        Station { mac: [2, 0x5d, 0, 0, 0, last], address: std::net::Ipv4Addr::new(10, 0, 0, last) }
    }
    [[station(10), station(11)], [station(20), station(21)]]
};

/// Frames of the flood that are on their way: less than the receiver has buffers.
const FLOOD_FRAMES: usize = 192;
/// Frames of the flood that are taken before the talk has its turn.
const FLOOD_BATCH: usize = 4;

/// Request and response of one tenant's guests beside a flood of the smallest frames between another's.
fn see_frames(lab: &Lab, fairness: &str) -> Result<Seen, Failure> {
    let mut text = format!(
        "[node]\nfairness = \"{fairness}\"\ndataplane = {{ cores = [{}], idle-sleep = \"never\" }}\n\
         log = {{ level = \"warn\" }}\n",
        CPUS.1
    );
    let mut sockets = Vec::new();
    for (tenant, stations) in STATIONS.iter().enumerate() {
        let class = if tenant == 0 { "latency" } else { "normal" };
        let _ = write!(
            text,
            "[[tenant]]\nname = \"t{tenant}\"\nclass = \"{class}\"\n[[network]]\nname = \"n{tenant}\"\nvni = {}\n\
             cidr = \"10.0.0.0/24\"\n",
            tenant + 1
        );
        for (end, station) in stations.iter().enumerate() {
            let mac = station.mac.map(|byte| format!("{byte:02x}")).join(":");
            let _ = write!(
                text,
                "[[device]]\nname = \"d{tenant}{end}\"\ntenant = \"t{tenant}\"\nvirtio-net = {{ network = \"n{tenant}\", \
                 address = \"{}\", mac = \"{mac}\", queue-size = 256, socket = \"{tenant}{end}.sock\" }}\n",
                station.address
            );
            sockets.push(lab.path().join(format!("{tenant}{end}.sock")));
        }
    }
    let daemon = Daemon::start(lab.path(), &text)?;
    let of = |tenant: usize| [&*sockets[2 * tenant], &*sockets[2 * tenant + 1]];
    let [from, to] = STATIONS[1];
    let route = Route { frames: Frames::Smallest, flows: 1, from, to, by: to.mac };
    let mut talk = RoundTrip::connect(of(0), STATIONS[0]).context("connecting")?;
    let mut flood = FrameClient::connect(of(1), route, FLOOD_FRAMES).context("connecting")?;
    let options = RunOptions { batch: Some(FLOOD_BATCH), ..clients_first(Duration::from_millis(300)) };
    let (mut alone, mut beside, mut mean, mut rates) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let served = run([&mut talk], &options).context("the talk alone")?;
        alone.push(served[0].latency_at(0.99) as f64);
        let served = run([&mut talk as &mut dyn Job, &mut flood], &options).context("talk and flood")?;
        beside.push(served[0].latency_at(0.99) as f64);
        mean.push(served[0].latency.mean());
        rates.push(served[1].rate());
    }
    drop((talk, flood));
    daemon.stop()?;
    let seen = Seen { alone: median(alone), beside: median(beside), mean: median(mean), flood: median(rates) };
    println!("{fairness}, frames: {seen}");
    Ok(seen)
}

/// A talk beside a flood of frames.
fn beside_frames(name: &str, bound: f64, worse: f64) {
    protects(name, see_frames, bound, worse);
}

#[test]
fn a_talk_of_one_tenant_waits_half_at_most_of_what_it_does_first_come_first_served() {
    beside_frames("frames", f64::INFINITY, 2.0);
}

#[test]
#[ignore = "missed: 2.1 to 2.5 times, 12 to 14 first come, first served (docs/scheduling.md)"]
fn a_talk_of_one_tenant_hardly_waits_for_the_frames_that_another_floods_the_core_with() {
    beside_frames("frames-bar", 1.5, 1.5);
}
