//! What would become of a packet: it is made up here, and a core tells.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};
use softdpu_vpc::trace::{Description, Subject};
use softdpu_vpc::{Mac, Probe, Verdict};

use super::networks::{Attached, Networks};
use super::{DataPlane, refusal};
use crate::api::{FUNCTIONS, PathAnswer, PathOutcome, PathQuestion, PathStep};
use crate::link::Refusal;

/// How long cores have to answer: a round of theirs is far shorter.
const PATIENCE: Duration = Duration::from_secs(1);

impl DataPlane {
    pub(super) fn trace_explain(&self, question: &PathQuestion) -> Result<Value, Refusal> {
        let invalid = |message: String| refusal("invalid-params", message);
        let service = question.service().map_err(|error| invalid(error.to_string()))?;
        let (name, port, source) = sender(&self.networks, question)?;
        let settings = &port.settings;
        let gateway = self.networks.iter().find(|network| network.name == settings.network);
        let gateway = gateway.map(|network| Mac(network.gateway_mac().0));
        let probe = Probe {
            from_mac: Mac(settings.mac.0),
            to_mac: gateway.ok_or_else(|| refusal("failed", format!("there is no network '{}'", settings.network)))?,
            addresses: (source, question.to),
            service,
            payload: question.payload.into(),
        };
        let frame =
            probe.frame().ok_or_else(|| invalid(format!("{source} and {} are of two families", question.to)))?;
        let answer = self.engine.explain(port.id, name, &frame, PATIENCE);
        let (core, explained) = answer.ok_or_else(|| {
            refusal("unavailable", "no core has answered: `softdpu status` says how they are".to_owned())
        })?;
        let (outcome, reason) = PathOutcome::of(&explained.verdict);
        let to = match explained.verdict {
            Verdict::Local { port, .. } | Verdict::Underlay { port, .. } => self.networks.port_name(port),
            Verdict::Software | Verdict::Consumed | Verdict::Drop(_) => None,
        };
        let mut steps: Vec<PathStep> = explained.steps.iter().map(Into::into).collect();
        let receiver = to.and_then(|name| Some((name, self.networks.port(name)?)));
        // As frames meet them.
        steps.splice(0..0, not_asked("switch-before", name, port));
        steps.extend(receiver.and_then(|(name, port)| not_asked("switch-after", name, port)));
        Ok(json!(PathAnswer {
            port: name.to_owned(),
            packet: Description(Subject::on_wire(&frame, frame.len(), 0)).to_string(),
            core: core.0,
            flow: explained.is_flow,
            outcome,
            to: to.map(str::to_owned),
            reason,
            steps,
        }))
    }
}

/// That the functions of an interface, if it has some, are not asked: what they say may depend on what they saw.
fn not_asked(tier: &str, device: &str, port: &Attached) -> Option<PathStep> {
    let functions = &port.settings.functions;
    (!functions.is_empty()).then(|| PathStep {
        tier: tier.to_owned(),
        table: FUNCTIONS.to_owned(),
        outcome: "pass".to_owned(),
        key: device.to_owned(),
        found: format!("not asked: {}", functions.join(", ")),
        versions: Vec::new(),
    })
}

/// Who sends: the device, its port, and the source address.
fn sender<'a>(networks: &'a Networks, question: &PathQuestion) -> Result<(&'a str, &'a Attached, IpAddr), Refusal> {
    let PathQuestion { from, to, network, .. } = question;
    let in_network = |port: &Attached| network.as_ref().is_none_or(|network| port.settings.network == *network);
    let Ok(address) = from.parse::<IpAddr>() else {
        let (name, port) = networks
            .ports()
            .find(|(name, port)| name == from && in_network(port))
            .ok_or_else(|| refusal("not-found", format!("there is no device '{from}' with a port here")))?;
        let own = port.settings.addresses.iter().find(|own| own.is_ipv4() == to.is_ipv4());
        let own = own.ok_or_else(|| {
            refusal("invalid-params", format!("device '{from}' has no address of the family of {to}"))
        })?;
        return Ok((name, port, *own));
    };
    let those: Vec<(&str, &Attached)> =
        networks.ports().filter(|(_, port)| in_network(port) && port.settings.addresses.contains(&address)).collect();
    match those[..] {
        [(name, port)] => Ok((name, port, address)),
        [] => {
            let elsewhere = networks.iter().flat_map(|network| &network.endpoints);
            let host = elsewhere.filter(|endpoint| endpoint.addresses.contains(&address)).map(|one| one.host).next();
            let text = match host {
                Some(host) => format!("{address} is on host {host}: ask there"),
                None => format!("no device here has the address {address}"),
            };
            Err(refusal("not-found", text))
        }
        _ => {
            let names: Vec<&str> = those.iter().map(|(_, port)| port.settings.network.as_str()).collect();
            let text = format!("{address} is in the networks {}: say which by `network`", names.join(", "));
            Err(refusal("invalid-params", text))
        }
    }
}
