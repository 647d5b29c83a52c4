//! Tenants as schedulers know them: by number.
//!
//! A number is its tenant's for as long as the data plane runs, also of one that was removed: what cores counted for it
//! is not to be taken for another's. The same name gets the same number again.

use std::collections::HashMap;

use softdpu_sched::{LatencyClass, Limits, Rate, Share, TenantId};

use softdpu_api::{ApiError, ErrorCode};
use softdpu_engine::{Engine, RateLimit};

use super::networks::Networks;
use super::nic;
use softdpu_site as config;

/// So many numbers there are; the one behind them is left unused.
const MOST: usize = u16::MAX as usize;

/// The configured tenants, and the numbers of those that were removed.
#[derive(Default)]
pub(super) struct Tenants {
    by_number: Vec<NumberedTenant>,
    numbers: HashMap<String, u16>,
}

struct NumberedTenant {
    settings: config::Tenant,
    /// It has not been removed.
    is_configured: bool,
}

impl Tenants {
    /// Configures `tenant`. None: there is no number left for one more.
    fn put(&mut self, tenant: &config::Tenant) -> Option<TenantId> {
        let numbered = NumberedTenant { settings: tenant.clone(), is_configured: true };
        if let Some(&number) = self.numbers.get(&tenant.name) {
            self.by_number[usize::from(number)] = numbered;
            return Some(TenantId(number));
        }
        let number = u16::try_from(self.by_number.len()).ok().filter(|number| usize::from(*number) < MOST)?;
        self.by_number.push(numbered);
        self.numbers.insert(tenant.name.clone(), number);
        Some(TenantId(number))
    }

    fn get(&self, name: &str) -> Option<(TenantId, &config::Tenant)> {
        let number = *self.numbers.get(name)?;
        let tenant = &self.by_number[usize::from(number)];
        tenant.is_configured.then_some((TenantId(number), &tenant.settings))
    }

    fn remove(&mut self, name: &str) -> Option<TenantId> {
        let (id, _) = self.get(name)?;
        self.by_number[usize::from(id.0)].is_configured = false;
        Some(id)
    }

    /// The configured ones.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TenantId, &config::Tenant)> {
        let numbered = self.by_number.iter().enumerate().filter(|(_, tenant)| tenant.is_configured);
        numbered.map(|(index, tenant)| (TenantId(index as u16), &tenant.settings))
    }

    /// All numbers, also of those that were removed.
    pub(super) fn ids(&self) -> impl Iterator<Item = TenantId> + use<> {
        (0..self.by_number.len() as u16).map(TenantId)
    }
}

/// What a tenant may claim of the node, and what it may not exceed, as schedulers know it.
fn share(tenant: &config::Tenant) -> Share {
    let config::TenantLimits { iops, iops_burst, bandwidth, bandwidth_burst, packets, packets_burst, .. } =
        tenant.limits;
    let rate = |rate: Option<u64>, burst: Option<u64>| Some(Rate { rate: rate?, burst: burst.or(rate)? });
    Share {
        weight: tenant.weight,
        guarantee: tenant.guarantee.0,
        class: match tenant.class {
            config::LatencyClass::Latency => LatencyClass::Latency,
            config::LatencyClass::Normal => LatencyClass::Normal,
            config::LatencyClass::Background => LatencyClass::Background,
        },
        limits: Limits {
            requests: rate(iops, iops_burst),
            bytes: rate(bandwidth.map(|rate| rate.0), bandwidth_burst.map(|burst| burst.0)),
            packets: rate(packets, packets_burst),
        },
        ..Share::default()
    }
}

/// The same with the smallest bursts.
fn spent(share: Share) -> Share {
    let least = |rate: Option<Rate>| rate.map(|rate| Rate { burst: 1, ..rate });
    let Limits { requests, bytes, packets } = share.limits;
    Share { limits: Limits { requests: least(requests), bytes: least(bytes), packets: least(packets) }, ..share }
}

/// What wires may bring a tenant; none: as much as they do. `is_spent`: its burst may have been given.
fn received(limits: &config::TenantLimits, is_spent: bool) -> Option<RateLimit> {
    let bucket = |rate| nic::bucket(rate, is_spent);
    let (packets, bytes) = (limits.received_packet_bucket().map(bucket), limits.received_byte_bucket().map(bucket));
    (packets.is_some() || bytes.is_some()).then(|| RateLimit::new(packets, bytes))
}

impl Tenants {
    /// Configures `tenant`, and has cores give it its share. None: there is no number left for it.
    pub(super) fn set(&mut self, tenant: &config::Tenant, engine: &mut Engine) -> Option<TenantId> {
        let buckets = |it: &config::TenantLimits| (it.received_packet_bucket(), it.received_byte_bucket());
        let before = self.get(&tenant.name).map(|(_, before)| buckets(&before.limits)).unwrap_or_default();
        let id = self.put(tenant)?;
        engine.configure_tenant(id, share(tenant));
        // Other changes do not refill the buckets.
        if buckets(&tenant.limits) != before {
            engine.limit_ingress(id, received(&tenant.limits, false));
        }
        Some(id)
    }

    /// Another data plane may have given the bursts of all limits until now: there is nothing left of any.
    pub(super) fn spend(&self, engine: &mut Engine) {
        for (id, tenant) in self.iter() {
            // What was left of a bucket is all that there is in a larger one.
            engine.configure_tenant(id, spent(share(tenant)));
            engine.configure_tenant(id, share(tenant));
            if let Some(limit) = received(&tenant.limits, true) {
                engine.limit_ingress(id, Some(limit));
            }
        }
    }

    /// The tenant of a device; the default tenant comes with its first device.
    pub(super) fn of(&mut self, device: &config::Device, engine: &mut Engine) -> Option<TenantId> {
        match self.get(&device.tenant) {
            Some((id, _)) => Some(id),
            None if device.tenant == config::DEFAULT_TENANT => {
                self.set(&config::Tenant::called(&device.tenant), engine)
            }
            None => None,
        }
    }

    pub(super) fn add(
        &mut self,
        tenant: &config::Tenant,
        networks: &mut Networks,
        engine: &mut Engine,
    ) -> Result<(), ApiError> {
        let Some(id) = self.set(tenant, engine) else {
            let message = format!(
                "{MOST} tenants have been here since the data plane started, which is all it can tell apart: restart softdpu"
            );
            return Err(ApiError::new(ErrorCode::Failed, message));
        };
        networks.know_tenant(&tenant.name, id);
        networks.meter_tenant(&tenant.name, tenant.meter, engine).inspect_err(|_| self.forget(&tenant.name, engine))
    }

    /// Takes a tenant away that has no device.
    pub(super) fn take_away(
        &mut self,
        name: &str,
        networks: &mut Networks,
        engine: &mut Engine,
    ) -> Result<(), ApiError> {
        networks.meter_tenant(name, None, engine)?;
        self.forget(name, engine);
        Ok(())
    }

    pub(super) fn change(
        &mut self,
        change: &config::TenantChange,
        networks: &mut Networks,
        engine: &mut Engine,
    ) -> Result<(), ApiError> {
        let settings = self.get(&change.name).map(|(_, tenant)| tenant.clone());
        let unknown = || ApiError::new(ErrorCode::NotFound, format!("there is no tenant '{}'", change.name));
        let mut tenant = settings.ok_or_else(unknown)?;
        if let Some(meter) = change.meter {
            networks.meter_tenant(&change.name, meter, engine)?;
        }
        tenant.change(change);
        self.set(&tenant, engine);
        Ok(())
    }

    /// The tenant has no claim any more.
    fn forget(&mut self, name: &str, engine: &mut Engine) {
        if let Some(id) = self.remove(name) {
            engine.configure_tenant(id, share(&config::Tenant::called(name)));
            engine.limit_ingress(id, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_its_tenants_though_that_is_removed_and_comes_again() {
        let mut tenants = Tenants::default();
        let put = |tenants: &mut Tenants, name: &str| tenants.put(&config::Tenant::called(name));
        assert_eq!(put(&mut tenants, "a"), Some(TenantId(0)));
        assert_eq!(put(&mut tenants, "b"), Some(TenantId(1)));
        assert_eq!(tenants.remove("a"), Some(TenantId(0)));
        assert_eq!((tenants.remove("a"), tenants.get("a")), (None, None));
        assert_eq!(put(&mut tenants, "c"), Some(TenantId(2)));
        let names = |tenants: &Tenants| tenants.iter().map(|(_, it)| it.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&tenants), ["b", "c"]);
        assert_eq!(put(&mut tenants, "a"), Some(TenantId(0)));
        assert_eq!(names(&tenants), ["a", "b", "c"]);
        assert_eq!(tenants.ids().count(), 3);
    }

    #[test]
    fn the_last_number_is_never_given() {
        let mut tenants = Tenants::default();
        let last = (0..MOST).map(|it| tenants.put(&config::Tenant::called(it.to_string()))).last().flatten();
        assert_eq!(last, Some(TenantId(u16::MAX - 1)));
        assert_eq!(tenants.put(&config::Tenant::called("more")), None);
        assert_eq!(tenants.put(&config::Tenant::called("7")), Some(TenantId(7)), "a tenant keeps its number");
    }
}
