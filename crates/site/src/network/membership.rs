//! What an interface is in and what its packets pass, as it is changed while it runs.

use serde::{Deserialize, Deserializer, Serialize};

use super::{MeterSettings, NetworkPort};

/// Other security groups, another access control list, another meter, or other functions, of a device. What is left out
/// stays as it is.
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
    /// What its packets pass from now on; `Some(None)`, written as null: no meter of its own.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub meter: Option<Option<MeterSettings>>,
    /// The functions that its frames pass from now on, in this order both ways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub functions: Option<Vec<String>>,
}

/// Null is said, too.
pub(crate) fn given<'de, D, T>(from: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
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
        port.meter = self.meter.unwrap_or(port.meter);
        if let Some(functions) = &self.functions {
            port.functions.clone_from(functions);
        }
    }

    /// Whether cores are to forward by other tables.
    pub fn is_about_tables(&self) -> bool {
        self.security_groups.is_some() || self.acl.is_some() || self.meter.is_some()
    }

    /// Both, this one first.
    pub fn then(&mut self, later: DeviceChange) {
        self.security_groups = later.security_groups.or(self.security_groups.take());
        self.acl = later.acl.or(self.acl.take());
        self.meter = later.meter.or(self.meter);
        self.functions = later.functions.or(self.functions.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_is_read_as_in_the_site_file_and_null_takes_it_away() {
        let read =
            |meter: &str| serde_json::from_str::<DeviceChange>(&format!("{{\"name\": \"nic\", \"meter\": {meter}}}"));
        let mut change = read(r#"{"committed": "1 Gbit/s", "peak": "2 Gbit/s"}"#).unwrap();
        let meter = change.meter.flatten().unwrap();
        assert_eq!(meter.committed_burst, crate::Bytes(1_250_000), "what comes in a hundredth of a second");
        let again: DeviceChange = serde_json::from_value(serde_json::to_value(&change).unwrap()).unwrap();
        assert_eq!(again, change);
        change.then(read("null").unwrap());
        assert_eq!(change.meter, Some(None));
        let error = read(r#"{"committed": "1 Gbit/s", "peak": "1 Mbit/s"}"#).unwrap_err().to_string();
        assert!(error.contains("the peak rate is below the committed rate"), "{error}");
    }

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
