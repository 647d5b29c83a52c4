//! The control thread's handle on networks: ports, and which queues take their frames.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use softdpu_sched::Patience;
use softdpu_vpc::{Explanation, PortId, Tables};

use crate::engine::{CoreHandle, Engine, EngineError};
use crate::ids::{CoreIndex, QueueKey};
use crate::injector::Injector;
use crate::mailbox::mailbox;
use crate::message::{ExplainRequest, ToCore};
use crate::net::{
    Capture, CaptureShared, CaptureSpec, CaptureStart, FunctionBox, FunctionChange, FunctionOutlet, FunctionSwitchover,
    Port, PortCounters, PortSpec, Receiver, Socket,
};
use crate::scale::PortSockets;

/// What the engine knows of ports.
#[derive(Default)]
pub(crate) struct Network {
    pub receivers: Vec<RunningReceiver>,
    /// Ports with sockets.
    pub sockets: RefCell<HashMap<PortId, PortSockets>>,
}

/// A running receive queue.
pub(crate) struct RunningReceiver {
    pub port: PortId,
    /// Which of the device's queues it is.
    pub index: u16,
    pub key: QueueKey,
    pub enabled: bool,
}

impl Network {
    /// The port that a receive queue belongs to.
    pub(crate) fn port_of(&self, key: QueueKey) -> Option<PortId> {
        self.receivers.iter().find(|entry| entry.key == key).map(|entry| entry.port)
    }
}

/// Tables that take the place of others, core by core.
#[derive(Debug)]
pub struct Replacement {
    replaced: mpsc::Receiver<Arc<Tables>>,
    cores: usize,
}

impl Replacement {
    /// Waits until every core has them, `patience` at the most; false: some have not. The tables before them are freed
    /// by the caller, not on a core.
    pub fn wait(self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        (0..self.cores).all(|_| {
            let left = deadline.saturating_duration_since(Instant::now());
            self.replaced.recv_timeout(left).is_ok()
        })
    }
}

impl Engine {
    /// Puts another configuration of the networks into force, on each core from its next round on. What is returned
    /// tells when no core goes by the one before any more.
    pub fn set_tables(&self, tables: &Arc<Tables>) -> Replacement {
        let (sender, replaced) = mpsc::channel();
        // Nothing waits for what a front end makes as slow as it likes.
        let is_waited_for = |core: &&CoreHandle| !core.is_held_up();
        for core in &self.cores {
            let answer = if is_waited_for(&core) { sender.clone() } else { mpsc::channel().0 };
            core.mailbox.send(ToCore::Tables(Arc::clone(tables), answer));
        }
        Replacement { replaced, cores: self.cores.iter().filter(is_waited_for).count() }
    }

    /// Adds a port, its socket (if it has one) on `core` or on the one with the fewest queues. Returns what it counts,
    /// core by core.
    ///
    /// # Errors
    /// [`EngineError::NoSuchCore`].
    pub fn add_port(
        &mut self,
        id: PortId,
        spec: PortSpec,
        core: Option<CoreIndex>,
    ) -> Result<Vec<Arc<PortCounters>>, EngineError> {
        let PortSpec { name, mut socket, limit, receive_limit, tenant } = spec;
        let owner = match (&socket, core) {
            (None, _) => None,
            (Some(_), Some(core)) => Some(self.check(core)?),
            (Some(_), None) => Some(self.least_loaded()),
        };
        let sockets = PortSockets { name: Arc::clone(&name), owners: owner.into_iter().collect() };
        self.network.sockets.borrow_mut().insert(id, sockets);
        let counters: Vec<Arc<PortCounters>> = self.cores.iter().map(|_| Arc::default()).collect();
        let receivers = self.receivers(id);
        for (index, (core, counters)) in self.cores.iter().zip(&counters).enumerate() {
            let port = Port {
                name: Arc::clone(&name),
                counters: Arc::clone(counters),
                receivers: Arc::clone(&receivers),
                owner,
                socket: if owner == Some(CoreIndex(index)) { socket.take() } else { None },
                limit: limit.clone(),
                receive_limit: receive_limit.clone(),
                tenant,
                patience: Patience::default(),
                is_failure_logged: false,
            };
            core.mailbox.send(ToCore::Port(id, Some(Box::new(port))));
        }
        Ok(counters)
    }

    /// Gives a port other sockets, each on a core of its own from that with the fewest queues on, at most as many as
    /// there are cores; a core without one sends by another's. None: what is to leave by the port is dropped as
    /// [`PortDown`](softdpu_vpc::DropReason::PortDown).
    pub fn set_sockets(&self, port: PortId, sockets: Vec<Socket>) {
        let cores = self.data_plane().len();
        let (first, count) = (self.least_loaded().0, sockets.len().min(cores));
        if let Some(it) = self.network.sockets.borrow_mut().get_mut(&port) {
            it.owners = (0..count).map(|turn| CoreIndex((first + turn) % cores)).collect();
        }
        let mut sockets = sockets.into_iter();
        for turn in 0..cores {
            let at = |turn: usize| (first + turn) % cores;
            let owner = turn.checked_rem(count).map(|turn| CoreIndex(at(turn)));
            let socket = if turn < count { sockets.next().map(Box::new) } else { None };
            self.cores[at(turn)].mailbox.send(ToCore::Socket { port, owner, socket });
        }
        let owner = (count > 0).then_some(CoreIndex(first));
        for core in &self.cores[cores..] {
            core.mailbox.send(ToCore::Socket { port, owner, socket: None });
        }
    }

    /// Begins to capture frames on all cores.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn capture(&self, spec: CaptureSpec) -> std::io::Result<Capture> {
        let (mailbox, inbox) = mailbox()?;
        let shared: Arc<CaptureShared> = Arc::default();
        let start = CaptureStart { spec: Arc::new(spec), shared: Arc::clone(&shared), mailbox };
        for core in &self.cores {
            core.mailbox.send(ToCore::Capture(start.clone()));
        }
        Ok(Capture { inbox, shared })
    }

    /// What would become of `frame` if it came in by the port with this number, as long as it has this name: the answer
    /// of the first core that has a flow of it, or else of the first core; within `patience`. None: no core has such a
    /// port, or none has answered.
    pub fn explain(
        &self,
        port: PortId,
        name: &str,
        frame: &[u8],
        patience: Duration,
    ) -> Option<(CoreIndex, Explanation)> {
        let (answer, answers) = mpsc::channel();
        let (name, frame): (Arc<str>, Arc<[u8]>) = (name.into(), frame.into());
        for core in self.data_plane() {
            let (name, frame, answer) = (Arc::clone(&name), Arc::clone(&frame), answer.clone());
            core.mailbox.send(ToCore::Explain(ExplainRequest { port, name, frame, answer }));
        }
        let deadline = Instant::now() + patience;
        let next = || answers.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        let all = (0..self.data_plane().len()).map_while(|_| next());
        let known = all.filter_map(|(core, answer)| Some((core, answer?)));
        known.min_by_key(|(core, answer)| (!answer.is_flow, *core))
    }

    /// An outlet for the cores' reports of functions, and the box that they arrive in.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn function_box(&self) -> std::io::Result<(FunctionOutlet, FunctionBox)> {
        FunctionOutlet::new()
    }

    /// Ports have other functions, on each core from its next burst on. What is returned tells when no core goes by
    /// those before any more.
    pub fn change_functions(&self, outlet: &FunctionOutlet, change: &FunctionChange) -> FunctionSwitchover {
        let (switches, switched) = change.switches(outlet, self.cores.len());
        for (core, switch) in self.cores.iter().zip(switches) {
            core.mailbox.send(ToCore::Functions(Box::new(switch)));
        }
        switched
    }

    /// A way for frames to come in by the port with this number, as long as it has this name.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn injector(&self, port: PortId, name: &str) -> std::io::Result<Injector> {
        let core = self.least_loaded();
        Ok(Injector::new(port, name.into(), self.cores[core.0].mailbox.clone())?)
    }

    /// Announces a port's endpoint in its network, at most once a second: with an RARP announcement to its
    /// other ports and to all other hosts of it, for switches and tunnel end points that learn where an address is.
    pub fn announce(&self, port: PortId) {
        // Always the same core: it counts.
        if let Some(core) = self.cores.first() {
            core.mailbox.send(ToCore::Announce(port));
        }
    }

    /// Removes a port. Its queues are stopped before.
    pub fn remove_port(&mut self, id: PortId) {
        self.network.sockets.borrow_mut().remove(&id);
        for core in &self.cores {
            core.mailbox.send(ToCore::Port(id, None));
        }
    }

    /// The enabled receive queues of a port, in the order of its queue pairs.
    fn receivers(&self, port: PortId) -> Arc<[Receiver]> {
        let mut entries: Vec<&RunningReceiver> =
            self.network.receivers.iter().filter(|entry| entry.port == port && entry.enabled).collect();
        entries.sort_by_key(|entry| entry.index);
        let receiver = |entry: &&RunningReceiver| Some(Receiver { core: self.core_of(entry.key)?, key: entry.key });
        entries.iter().filter_map(receiver).collect()
    }

    pub(crate) fn send_receivers(&self, port: PortId) {
        let receivers = self.receivers(port);
        for core in &self.cores {
            core.mailbox.send(ToCore::Receivers(port, Arc::clone(&receivers)));
        }
    }

    pub(crate) fn enable_receiver(&mut self, key: QueueKey, enabled: bool) {
        if let Some(entry) = self.network.receivers.iter_mut().find(|entry| entry.key == key) {
            entry.enabled = enabled;
            let port = entry.port;
            self.send_receivers(port);
        }
    }

    pub(crate) fn remove_receiver(&mut self, key: QueueKey) {
        if let Some(at) = self.network.receivers.iter().position(|entry| entry.key == key) {
            let port = self.network.receivers.swap_remove(at).port;
            self.send_receivers(port);
        }
    }
}
