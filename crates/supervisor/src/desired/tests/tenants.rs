//! Tenants.

use super::*;

#[test]
fn what_a_tenant_may_do_survives_the_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    let set = |weight, guarantee| {
        Change::TenantSet(TenantChange {
            name: "default".into(),
            weight,
            class: None,
            guarantee,
            limits: None,
            meter: None,
        })
    };
    for change in [set(Some(7), None), set(None, Some(config::Percent(250)))] {
        desired.check(&change, None).unwrap();
        commit(&mut desired, &change);
    }
    let again = Desired::load(site(folder.path())).unwrap();
    assert_eq!(again.site(), desired.site());
    let tenant = again.site().tenant("default").unwrap();
    assert_eq!((tenant.weight, tenant.guarantee), (7, config::Percent(250)));
    let refused = desired.check(&set(None, Some(config::Percent(1_000))), None).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Refused, "{refused}");
}

#[test]
fn tenants_come_and_go_and_are_as_they_were_left_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let with_two = || {
        let mut site = site(folder.path());
        site.tenants.extend(["acme", "globex"].map(config::Tenant::called));
        site
    };
    let mut desired = Desired::load(with_two()).unwrap();
    let weight = |name: &str, weight| {
        Change::TenantSet(TenantChange {
            name: name.into(),
            weight: Some(weight),
            class: None,
            guarantee: None,
            limits: None,
            meter: None,
        })
    };
    let of = |name: &str, volume: &str, tenant: &str| config::Device {
        tenant: tenant.into(),
        domain: tenant.into(),
        ..device(name, volume)
    };
    for change in [
        weight("globex", 5),
        Change::TenantRemove { name: "globex".into() },
        // One that comes back begins anew.
        Change::TenantAdd(config::Tenant::called("globex")),
        Change::TenantAdd(config::Tenant { weight: 2, ..config::Tenant::called("initech") }),
        weight("initech", 3),
        Change::VolumeCreate(volume("v")),
        Change::DeviceAdd(of("e", "v", "initech")),
        Change::TenantRemove { name: "acme".into() },
    ] {
        desired.check(&change, None).unwrap_or_else(|error| panic!("{change:?}: {error}"));
        commit(&mut desired, &change);
    }
    let again = Desired::load(with_two()).unwrap();
    let weights = |desired: &Desired| {
        let mut weights: Vec<_> = desired.site().tenants.iter().map(|it| (it.name.clone(), it.weight)).collect();
        weights.sort();
        weights
    };
    let expected = [("default", 1), ("globex", 1), ("initech", 3)].map(|(name, weight)| (name.to_owned(), weight));
    assert_eq!((weights(&again), weights(&desired)), (expected.to_vec(), expected.to_vec()));
    let refused = |change: Change| again.check(&change, None).unwrap_err();
    let busy = refused(Change::TenantRemove { name: "initech".into() });
    assert_eq!(busy.code, ErrorCode::Busy);
    assert!(busy.message.contains("device \"e\""), "{busy}");
    assert_eq!(refused(Change::TenantRemove { name: "acme".into() }).code, ErrorCode::NotFound);
    assert_eq!(refused(Change::TenantRemove { name: "default".into() }).code, ErrorCode::Refused);
    assert_eq!(refused(Change::TenantAdd(config::Tenant::called("default"))).code, ErrorCode::Refused);
    assert_eq!(refused(Change::TenantAdd(config::Tenant::called("globex"))).code, ErrorCode::Exists);
    let too_much = config::Tenant { guarantee: config::Percent(950), ..config::Tenant::called("hooli") };
    assert_eq!(refused(Change::TenantAdd(too_much)).code, ErrorCode::Refused);
}
