//! What is translated at exits: rules are a part of the content of their exit, so that flows by an exit are computed
//! anew when its rules change.

use std::net::IpAddr;
use std::sync::Arc;

use super::Tables;
use super::build::Builder;
use super::error::Problem;
use crate::id::NetworkId;
use crate::nat::{self, Nat, NatId};
use crate::spec::{EndpointSpec, NatSpec, Place, Prefix};

/// An exit with translation, and what was counted there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit<'a> {
    /// Its network.
    pub network: &'a str,
    /// Its address there.
    pub address: IpAddr,
    /// Connections that have ports of shared addresses. Those that are over count until their guest opens others.
    pub translations: u64,
    /// Packets that found no port of their guest's.
    pub exhausted: u64,
}

impl<'a> Builder<'a> {
    /// The rules of an endpoint, if it is an exit with some at a port of this node.
    pub(super) fn nat_of(&self, spec: &EndpointSpec) -> Option<&'a NatSpec> {
        let is_of = |nat: &&NatSpec| nat.network == spec.network && spec.addresses.contains(&nat.exit);
        self.nat_specs().iter().find(is_of).filter(|_| matches!(spec.place, Place::Port(_)))
    }

    /// Adds the rules of an exit of `network`.
    pub(super) fn nat(
        &mut self,
        network: NetworkId,
        spec: &NatSpec,
        previous: Option<&Tables>,
    ) -> Result<NatId, Problem> {
        let subnets: Vec<Prefix> = self.subnets_of(network).collect();
        nat::check(spec, &subnets).map_err(Problem::Nat)?;
        let is_same = |nat: &&Arc<Nat>| *nat.network == *spec.network && nat.exit == spec.exit;
        let before = previous.and_then(|tables| tables.nats.iter().find(is_same));
        self.nats.push(Arc::new(Nat::new(spec, before.map(|nat| &**nat), self.keeper())));
        NatId::new(self.nats.len() - 1).ok_or(Problem::TooManyExits)
    }
}

impl Tables {
    /// Whether anything is translated.
    #[inline]
    pub(crate) fn has_nat(&self) -> bool {
        !self.nats.is_empty()
    }

    pub(crate) fn nat(&self, nat: NatId) -> Option<&Nat> {
        self.nats.get(nat.index()).map(|nat| &**nat)
    }

    /// The exits with translation.
    pub fn exits(&self) -> impl Iterator<Item = Exit<'_>> {
        self.nats.iter().map(|nat| Exit {
            network: &nat.network,
            address: nat.exit,
            translations: nat.translations() as u64,
            exhausted: nat.exhausted(),
        })
    }
}
