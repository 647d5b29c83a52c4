//! What people call objects, for traces.

use super::{Egress, Hop, Tables};
use crate::id::{HopId, NetworkId, ObjectId};
use crate::policy::group::SecurityGroupId;
use crate::stamp::{Stamp, StampSubject};

impl Tables {
    /// What a stamp is of, in words; None of what is no more.
    pub(crate) fn stamp_name(&self, stamp: Stamp) -> Option<String> {
        match stamp.subject() {
            StampSubject::Object(object) => self.object_name(object),
            StampSubject::Bucket(bucket) => {
                let (group, bucket) = self.ecmp_groups.bucket(bucket)?;
                Some(format!("bucket {bucket} of ECMP group {} of {}", group.name, group.network))
            }
            StampSubject::Guests(_) => self.guests.as_ref().map(|_| "loaded guests with its hash".to_owned()),
        }
    }

    fn object_name(&self, object: ObjectId) -> Option<String> {
        if let Some((_, endpoint)) = self.endpoint_with(object) {
            let address = endpoint.addresses.first().map(ToString::to_string).unwrap_or_default();
            return Some(format!("endpoint {address} of {}", self.network_name(endpoint.network)));
        }
        if let Some(group) = self.ecmp_groups.iter().find(|group| group.object == object) {
            return Some(format!("members of ECMP group {} of {}", group.name, group.network));
        }
        if let Some(network) = self.network_with(object) {
            return Some(format!("routes of {}", network.name));
        }
        match self.hop(HopId::from(object)) {
            Some(Hop { egress: Egress::Tunnel(tunnel), network, .. }) => {
                Some(format!("way of {} to {}", self.network_name(network), self.tunnel(tunnel)?.host))
            }
            _ => self.route_table_name(object),
        }
    }

    fn route_table_name(&self, object: ObjectId) -> Option<String> {
        let table = self.route_tables.iter().find(|table| table.object == object)?;
        Some(format!("route table {} of {}", table.name, self.network(table.network)?.name))
    }

    pub(crate) fn network_name(&self, network: NetworkId) -> &str {
        self.network(network).map_or("?", |network| &network.name)
    }

    /// The name of a security group.
    pub(crate) fn group_name(&self, group: SecurityGroupId) -> Option<&str> {
        self.policies.group_name(group)
    }
}
