//! Policies by name, with their parameters: what a site file, a recording and the command line choose from.

use std::fmt;

use crate::{
    FairNic, Fcfs, Ipipe, LogNic, Mtda, Nanos, Occupancy, Scheduler, System, TenantId, Thresholds, Tuning, Weighted,
};

/// A policy with its parameters, not started yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// [`Fcfs`].
    Fcfs,
    /// [`Weighted`].
    Weighted(Tuning),
    /// [`Mtda::repaired`], and what each tenant occupies.
    Mtda(System, Vec<Occupancy>),
    /// [`Mtda::printed`], and what each tenant occupies.
    MtdaPrinted(System, Vec<Occupancy>),
    /// [`Ipipe`].
    Ipipe(Thresholds),
    /// [`FairNic`].
    FairNic,
    /// The parts that a [`LogNic`] planned, in millionths of the core's time, by tenant. Empty: it
    /// [learns](LogNic::learning) them.
    LogNic(Vec<u64>),
}

/// A name that no policy has, or a parameter that a policy does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownPolicy {
    /// The name.
    Name(String),
    /// The policy, and the parameter with its value: it has no such parameter, or not with such a value.
    Parameter(&'static str, String),
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnknownPolicy::Name(name) => {
                write!(f, "no policy is called {name:?}; there are {}", Policy::NAMES.join(", "))
            }
            UnknownPolicy::Parameter(policy, parameter) => {
                write!(f, "{policy} has no parameter {parameter:?}, or not with such a value")
            }
        }
    }
}

impl std::error::Error for UnknownPolicy {}

impl Policy {
    /// All names, the default's first.
    pub const NAMES: [&'static str; 7] = ["weighted", "fcfs", "mtda", "mtda-printed", "ipipe", "fairnic", "lognic"];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Policy::Fcfs => "fcfs",
            Policy::Weighted(_) => "weighted",
            Policy::Mtda(..) => "mtda",
            Policy::MtdaPrinted(..) => "mtda-printed",
            Policy::Ipipe(_) => "ipipe",
            Policy::FairNic => "fairnic",
            Policy::LogNic(_) => "lognic",
        }
    }

    /// The policy of a name, with default parameters.
    ///
    /// # Errors
    /// [`UnknownPolicy::Name`].
    pub fn named(name: &str) -> Result<Policy, UnknownPolicy> {
        Ok(match name {
            "fcfs" => Policy::Fcfs,
            "weighted" => Policy::Weighted(Tuning::default()),
            "mtda" => Policy::Mtda(System::default(), Vec::new()),
            "mtda-printed" => Policy::MtdaPrinted(System::default(), Vec::new()),
            "ipipe" => Policy::Ipipe(Thresholds::default()),
            "fairnic" => Policy::FairNic,
            "lognic" => Policy::LogNic(Vec::new()),
            _ => return Err(UnknownPolicy::Name(name.to_owned())),
        })
    }

    /// Its parameters, by name: what [`with`](Self::with) takes.
    pub fn parameters(&self) -> Vec<(String, u64)> {
        let named = |pairs: &[(&str, u64)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        match self {
            Policy::Fcfs | Policy::FairNic => Vec::new(),
            Policy::Weighted(Tuning { grant, urgent, alone, memory, byte }) => named(&[
                ("grant", grant.0),
                ("urgent", urgent.0),
                ("alone", alone.0),
                ("memory", memory.0),
                ("byte", *byte),
            ]),
            Policy::Mtda(system, tenants) | Policy::MtdaPrinted(system, tenants) => {
                let mut all: Vec<(String, u64)> = named(&[
                    ("credit", system.credit),
                    ("cores", system.cores.into()),
                    ("accelerators", system.accelerators.into()),
                ]);
                for (tenant, occupancy) in tenants.iter().enumerate() {
                    all.push((format!("cores-of-{tenant}"), occupancy.cores.into()));
                    all.push((format!("accelerators-of-{tenant}"), occupancy.accelerators.into()));
                }
                all
            }
            Policy::Ipipe(Thresholds { tail, back, migration, quantum }) => {
                named(&[("tail", tail.0), ("back", *back), ("migration", migration.0), ("quantum", quantum.0)])
            }
            Policy::LogNic(parts) => {
                parts.iter().enumerate().map(|(tenant, part)| (format!("part-of-{tenant}"), *part)).collect()
            }
        }
    }

    /// The same policy with other parameters.
    ///
    /// # Errors
    /// [`UnknownPolicy::Parameter`].
    pub fn with(mut self, parameters: &[(String, u64)]) -> Result<Policy, UnknownPolicy> {
        for (key, value) in parameters {
            self.set(key, *value).ok_or_else(|| UnknownPolicy::Parameter(self.name(), format!("{key}={value}")))?;
        }
        Ok(self)
    }

    fn set(&mut self, key: &str, value: u64) -> Option<()> {
        let small = u32::try_from(value).ok();
        match self {
            Policy::Fcfs | Policy::FairNic => return None,
            Policy::Weighted(tuning) => match key {
                "grant" => tuning.grant = Nanos(value),
                "urgent" => tuning.urgent = Nanos(value),
                "alone" => tuning.alone = Nanos(value),
                "memory" => tuning.memory = Nanos(value),
                "byte" => tuning.byte = value,
                _ => return None,
            },
            Policy::Mtda(system, tenants) | Policy::MtdaPrinted(system, tenants) => match key {
                "credit" => system.credit = value,
                "cores" => system.cores = small?,
                "accelerators" => system.accelerators = small?,
                _ => {
                    let (what, tenant) = key.split_once("-of-")?;
                    let occupancy = entry(tenants, tenant)?;
                    match what {
                        "cores" => occupancy.cores = small?,
                        "accelerators" => occupancy.accelerators = small?,
                        _ => return None,
                    }
                }
            },
            Policy::Ipipe(thresholds) => match key {
                "tail" => thresholds.tail = Nanos(value),
                "back" => thresholds.back = value,
                "migration" => thresholds.migration = Nanos(value),
                "quantum" => thresholds.quantum = Nanos(value),
                _ => return None,
            },
            Policy::LogNic(parts) => *entry(parts, key.strip_prefix("part-of-")?)? = value,
        }
        Some(())
    }

    /// The same policy on a node of so many cores, which only MTDA uses.
    #[must_use]
    pub fn on(mut self, count: usize) -> Policy {
        if let Policy::Mtda(system, _) | Policy::MtdaPrinted(system, _) = &mut self {
            system.cores = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        }
        self
    }

    /// Starts it.
    pub fn build(&self) -> Scheduler {
        let occupied = |mut mtda: Mtda, tenants: &[Occupancy]| {
            for (tenant, occupancy) in tenants.iter().enumerate() {
                mtda.occupy(TenantId(tenant as u16), *occupancy);
            }
            Scheduler::Mtda(mtda)
        };
        match self {
            Policy::Fcfs => Scheduler::Fcfs(Fcfs::new()),
            Policy::Weighted(tuning) => Scheduler::Weighted(Weighted::new(*tuning)),
            Policy::Mtda(system, tenants) => occupied(Mtda::repaired(*system), tenants),
            Policy::MtdaPrinted(system, tenants) => occupied(Mtda::printed(*system), tenants),
            Policy::Ipipe(thresholds) => Scheduler::Ipipe(Ipipe::new(*thresholds)),
            Policy::FairNic => Scheduler::FairNic(FairNic::new()),
            Policy::LogNic(parts) if parts.is_empty() => Scheduler::FairNic(LogNic::learning()),
            Policy::LogNic(parts) => Scheduler::FairNic(LogNic { parts: parts.clone() }.scheduler()),
        }
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::Weighted(Tuning::default())
    }
}

/// A tenant's entry, by its number as text.
fn entry<'a, T: Default + Clone>(of: &'a mut Vec<T>, tenant: &str) -> Option<&'a mut T> {
    let index = usize::from(tenant.parse::<u16>().ok()?);
    if of.len() <= index {
        of.resize(index + 1, T::default());
    }
    of.get_mut(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_policys_and_its_parameters_make_it_again() {
        for name in Policy::NAMES {
            let policy = Policy::named(name).expect("a policy");
            assert_eq!(policy.name(), name);
            assert_eq!(policy.clone().with(&policy.parameters()), Ok(policy));
        }
        let policy = Policy::LogNic(vec![300_000, 700_000]);
        assert_eq!(Policy::named("lognic").expect("a policy").with(&policy.parameters()), Ok(policy));
        let mtda = Policy::Mtda(System::default(), vec![Occupancy { cores: 3, accelerators: 1 }]);
        assert_eq!(Policy::named("mtda").expect("a policy").with(&mtda.parameters()), Ok(mtda));
    }

    #[test]
    fn what_there_is_not_is_named() {
        assert_eq!(Policy::NAMES[0], Policy::default().name());
        assert!(Policy::named("cfs").expect_err("no policy").to_string().contains("weighted"));
        for parameter in ["grants", "part-of-70000", "cores-of-"] {
            for name in Policy::NAMES {
                let policy = Policy::named(name).expect("a policy");
                assert!(policy.with(&[(parameter.to_owned(), 1)]).is_err(), "{name} {parameter}");
            }
        }
    }
}
