//! Functions of the site: what cores have to do, what they report, and where that goes.
//!
//! ```text
//!   function.add ─▶ known ─ an interface has it ─▶ cores ──▶ FunctionBox ──▶ thread ──▶ IPFIX over UDP
//!                     ▲                              │                         └──────▶ what `status` shows
//!                     └── no interface has it ◀──────┘ what is left is reported
//! ```
//!
//! Cores have an instance of a function while an interface has it. A change is made when all cores go by it, and
//! the last reports of those that went were read: then the call is answered.

mod export;
mod state;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_engine::{Engine, FunctionBox, FunctionChange, FunctionId, FunctionOutlet, NewFunction};
use softdpu_functions::FunctionSpec;
use softdpu_vpc::{PortId, Vni};

use self::state::{FunctionState, KindState, prepare};
use softdpu_api::status::FunctionStatus;
use softdpu_api::{ApiError, ErrorCode};
use softdpu_site as config;

/// How long the thread waits for cores, at most: then it checks whether it is to end.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How long cores have to go by a change, and the thread to read their reports: a round is far shorter.
const SWITCH: Duration = Duration::from_secs(1);

/// The error of a change that a core has not taken up in time.
const LATE: &str =
    "a core has not gone on with the changed functions within a second: until it does, it goes by those before";

/// The functions of this data plane.
#[derive(Default)]
pub(super) struct Functions {
    all: Vec<Function>,
    /// Ports that have any.
    ports: BTreeMap<u32, Attached>,
    /// The number of the next function, which none had before.
    next: u32,
    outlet: Option<FunctionOutlet>,
    /// What is known of each, by its number.
    states: Arc<Mutex<States>>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// A core may still go by what was before.
    is_late: Cell<bool>,
}

type States = BTreeMap<u32, FunctionState>;

/// A function, as cores are to have it.
struct Function {
    number: u32,
    config: config::Function,
    spec: FunctionSpec,
    /// How often cores were given it.
    incarnations: u32,
    /// Where they have it, while they have it.
    slot: Option<usize>,
    lost: Arc<AtomicU64>,
}

impl Function {
    /// It, to be given to cores.
    fn incarnation(&mut self) -> NewFunction {
        let id = FunctionId { function: self.number, incarnation: self.incarnations };
        self.incarnations += 1;
        NewFunction { id, spec: self.spec.clone(), lost: Arc::clone(&self.lost) }
    }
}

/// What a port has.
struct Attached {
    vni: Vni,
    /// Numbers of functions, in the order in which frames pass them.
    functions: Vec<u32>,
}

impl Functions {
    /// Those of this site. Cores have them when they are [attached](Self::attach).
    pub fn start(configs: &[config::Function], engine: &Engine) -> Functions {
        let mut functions = Functions::default();
        for config in configs {
            if let Err(refusal) = functions.insert(config, engine) {
                let (function, error) = (&config.name, refusal.message);
                tracing::error!(function, error, "interfaces with this function are not served");
            }
        }
        functions
    }

    /// One more, which no interface has yet.
    pub fn insert(&mut self, config: &config::Function, engine: &Engine) -> Result<(), ApiError> {
        let name = &config.name;
        if self.all.iter().any(|one| one.config.name == *name) {
            return Err(ApiError::new(ErrorCode::Exists, format!("there is a function '{name}' already")));
        }
        let (spec, kind) = prepare(config, None).map_err(|error| wrong(name, &error))?;
        self.open(engine).map_err(|error| ApiError::new(ErrorCode::Failed, format!("function '{name}': {error}")))?;
        let (number, lost) = (self.next, Arc::default());
        self.next += 1;
        lock(&self.states).insert(number, FunctionState::new(config, kind, Arc::clone(&lost)));
        self.all.push(Function { number, config: config.clone(), spec, incarnations: 0, slot: None, lost });
        Ok(())
    }

    /// Starts the thread that reads what cores report.
    fn open(&mut self, engine: &Engine) -> std::io::Result<()> {
        if self.outlet.is_some() {
            return Ok(());
        }
        let (outlet, inbox) = engine.function_box()?;
        let (states, ending) = (Arc::clone(&self.states), Arc::clone(&self.ending));
        self.thread = Some(std::thread::Builder::new().name("functions".to_owned()).spawn(move || {
            while !ending.load(Relaxed) {
                wait(&inbox);
                take(&inbox, &states);
            }
            // The cores have ended: this is the rest.
            take(&inbox, &states);
        })?);
        self.outlet = Some(outlet);
        Ok(())
    }

    /// Without the function called `name`, which no interface has.
    pub fn remove(&mut self, name: &str) -> Result<(), ApiError> {
        let at = self.find(name)?;
        let number = self.all[at].number;
        if self.ports.values().any(|port| port.functions.contains(&number)) {
            return Err(ApiError::new(ErrorCode::Busy, format!("interfaces have function '{name}'")));
        }
        self.all.remove(at);
        lock(&self.states).remove(&number);
        Ok(())
    }

    /// Other settings of a function, by which all cores go when this returns.
    pub fn set(&mut self, change: &config::FunctionChange, engine: &Engine) -> Result<(), ApiError> {
        let at = self.find(&change.name)?;
        let one = &mut self.all[at];
        let config = config::Function { kind: change.kind.clone(), ..one.config.clone() };
        if config.kind.name() != one.config.kind.name() {
            let (is, other) = (one.config.kind.name(), config.kind.name());
            return Err(ApiError::new(
                ErrorCode::Refused,
                format!("function '{}' is of kind {is}, not {other}", change.name),
            ));
        }
        {
            let mut states = lock(&self.states);
            let Some(state) = states.get_mut(&one.number) else { return Ok(()) };
            let (spec, kind) = prepare(&config, Some(&state.kind)).map_err(|error| wrong(&change.name, &error))?;
            state.replace(&config, kind, one.incarnations);
            (one.spec, one.config) = (spec, config);
        }
        let (number, slot) = (one.number, one.slot);
        let function = slot.map(|slot| (slot, Some(one.incarnation())));
        self.switch(engine, FunctionChange { functions: function.into_iter().collect(), ports: Vec::new() }, true);
        if let Some(state) = lock(&self.states).get_mut(&number) {
            state.settle();
        }
        Ok(())
    }

    /// The frames of a port of the network with this VNI pass these functions from now on, in the place of those
    /// before, if any. All cores go by that when this returns, where the port was there before.
    ///
    /// # Errors
    /// A function is not there: its interface is not to be served without it. Nothing has changed.
    pub fn attach(&mut self, engine: &Engine, port: PortId, vni: Vni, names: &[String]) -> Result<(), String> {
        let number = |name: &String| {
            let known = self.find(name).map_err(|_| format!("there is no function '{name}' in the running node"))?;
            Ok::<u32, String>(self.all[known].number)
        };
        let functions: Vec<u32> = names.iter().map(number).collect::<Result<_, _>>()?;
        let before = self.ports.remove(&port.0).map(|attached| attached.functions).unwrap_or_default();
        if functions.is_empty() && before.is_empty() {
            return Ok(());
        }
        // Another device may have had the number of the port before.
        self.firewalls(functions.iter().filter(|number| !before.contains(number)), |rules| rules.attach(port.0));
        if !functions.is_empty() {
            self.ports.insert(port.0, Attached { vni, functions: functions.clone() });
        }
        let mut change = FunctionChange { functions: self.install(), ports: Vec::new() };
        let slot = |number: &u32| self.all.iter().find(|one| one.number == *number)?.slot;
        change.ports.push((port, vni, functions.iter().filter_map(slot).collect()));
        self.switch(engine, change, !before.is_empty());
        self.firewalls(before.iter().filter(|number| !functions.contains(number)), |rules| rules.detach(port.0));
        Ok(())
    }

    /// The port is no more.
    pub fn detach(&mut self, engine: &Engine, port: PortId) {
        let Some(Attached { vni, .. }) = self.ports.get(&port.0) else { return };
        // None of no functions is missing.
        let _ = self.attach(engine, port, *vni, &[]);
    }

    /// Which functions cores are to have that they have not, and the other way round.
    fn install(&mut self) -> Vec<(usize, Option<NewFunction>)> {
        let Functions { all, ports, .. } = self;
        let is_used = |number: u32| ports.values().any(|port| port.functions.contains(&number));
        let gone = all.iter_mut().filter(|one| one.slot.is_some() && !is_used(one.number));
        let mut changes: Vec<_> = gone.filter_map(|one| Some((one.slot.take()?, None))).collect();
        while let Some(at) = all.iter().position(|one| one.slot.is_none() && is_used(one.number)) {
            let is_free = |slot: &usize| all.iter().all(|one| one.slot != Some(*slot));
            let slot = (0..).find(is_free).unwrap_or_default();
            all[at].slot = Some(slot);
            changes.push((slot, Some(all[at].incarnation())));
        }
        changes
    }

    /// A warning about the changes since the last call, although they are made.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        self.is_late.take().then_some(LATE)
    }

    /// Has cores go by a change; if `waits`, they do when this returns.
    fn switch(&self, engine: &Engine, change: FunctionChange, waits: bool) {
        let Some(outlet) = &self.outlet else { return };
        let switched = engine.change_functions(outlet, &change);
        if waits && !switched.wait(SWITCH) {
            tracing::error!("{LATE}");
            self.is_late.set(true);
        }
    }

    /// Tells those of these functions that are firewalls.
    fn firewalls<'a>(
        &self,
        numbers: impl Iterator<Item = &'a u32>,
        tell: impl Fn(&softdpu_functions::firewall::Rules),
    ) {
        let states = lock(&self.states);
        for state in numbers.filter_map(|number| states.get(number)) {
            if let KindState::Firewall(rules) = &state.kind {
                tell(rules);
            }
        }
    }

    fn find(&self, name: &str) -> Result<usize, ApiError> {
        let at = self.all.iter().position(|one| one.config.name == name);
        at.ok_or_else(|| ApiError::new(ErrorCode::NotFound, format!("there is no function '{name}'")))
    }

    /// For `status`; `users` tells the devices that have a function.
    pub fn statuses(&self, users: impl Fn(&str) -> Vec<String>) -> Vec<FunctionStatus> {
        let states = lock(&self.states);
        let status = |one: &Function| {
            let state = states.get(&one.number)?;
            Some(state.status(&one.config, users(&one.config.name)))
        };
        self.all.iter().filter_map(status).collect()
    }

    /// Exports what there is. The cores have ended.
    pub fn finish(&mut self) {
        self.ending.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // One that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

fn wrong(name: &str, error: &str) -> ApiError {
    ApiError::new(ErrorCode::Refused, format!("function '{name}': {error}"))
}

fn lock(states: &Mutex<States>) -> MutexGuard<'_, States> {
    // Whole after every step.
    states.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a core has reported something.
fn wait(inbox: &FunctionBox) {
    if inbox.prepare_wait() {
        // EINTR is a wake-up like any other.
        let _ = poll(&mut [PollFd::from_borrowed_fd(inbox.bell(), PollFlags::IN)], Some(&PAUSE));
        inbox.waited();
    }
}

/// Takes what cores have reported.
fn take(inbox: &FunctionBox, states: &Mutex<States>) {
    while let Some(report) = inbox.take() {
        if let Some(state) = lock(states).get_mut(&report.id.function) {
            state.take(report);
        }
    }
}
