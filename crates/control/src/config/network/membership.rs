//! What an interface is in, as it is changed while it runs.

use serde::{Deserialize, Deserializer, Serialize};

use super::NetworkPort;

/// Other security groups, or another access control list, of a device. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DeviceChange {
    /// The device.
    pub name: String,
    /// The security groups of its network that it is in from now on; none: everything passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<String>>,
    /// The list of its network that is asked from now on; `Some(None)`, written as null: none is.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub acl: Option<Option<String>>,
}

/// Null is said, too.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl DeviceChange {
    /// Makes it.
    pub fn apply(&self, port: &mut NetworkPort) {
        if let Some(groups) = &self.security_groups {
            port.security_groups.clone_from(groups);
        }
        if let Some(acl) = &self.acl {
            port.acl.clone_from(acl);
        }
    }

    /// Both, this one first.
    pub fn then(&mut self, later: DeviceChange) {
        self.security_groups = later.security_groups.or(self.security_groups.take());
        self.acl = later.acl.or(self.acl.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_stays_and_null_takes_the_list_away() {
        let read = |text: &str| serde_json::from_str::<DeviceChange>(text).unwrap();
        let mut both = read(r#"{"name": "nic", "security-groups": ["web"]}"#);
        assert_eq!((&both.security_groups, &both.acl), (&Some(vec!["web".to_owned()]), &None));
        both.then(read(r#"{"name": "nic", "acl": "edge"}"#));
        assert_eq!((&both.security_groups, &both.acl), (&Some(vec!["web".to_owned()]), &Some(Some("edge".to_owned()))));
        both.then(read(r#"{"name": "nic", "acl": null, "security-groups": []}"#));
        assert_eq!((&both.security_groups, &both.acl), (&Some(Vec::new()), &Some(None)));
        assert_eq!(serde_json::to_string(&both).unwrap(), r#"{"name":"nic","security-groups":[],"acl":null}"#);
    }
}
