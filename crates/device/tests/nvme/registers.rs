//! Registers, enabling, resets and shutdowns.

use softdpu_device::nvme::{Action, VERSION};

use super::*;

#[test]
fn capabilities_and_version_are_what_drivers_look_for() {
    let host = Host::new(config());
    let cap = u64::from(host.get(0)) | u64::from(host.get(4)) << 32;
    assert_eq!(cap & 0xffff, 1023, "MQES");
    assert_eq!(cap >> 16 & 1, 1, "CQR: contiguous queues");
    assert_eq!(cap >> 24 & 0xff, 30, "TO");
    assert_eq!(cap >> 32 & 0xf, 0, "DSTRD");
    assert_eq!(cap >> 37 & 0xff, 1, "CSS: the NVM command set");
    assert_eq!(cap >> 48 & 0xff, 0, "MPSMIN and MPSMAX: 4 KiB");
    assert_eq!(host.get(8), VERSION);
    assert_eq!(host.get(0x68), 30, "CRTO.CRWMT");
    // Whole and in parts.
    let mut bytes = [0; 8];
    host.controller.read(0, &mut bytes);
    assert_eq!(u64::from_le_bytes(bytes), cap);
    let mut byte = [0];
    host.controller.read(1, &mut byte);
    assert_eq!(u64::from(byte[0]), cap >> 8 & 0xff);
}

#[test]
fn a_controller_is_ready_when_it_is_enabled_and_not_before() {
    let mut host = Host::new(config());
    assert_eq!(host.get(CSTS), 0);
    host.enable();
    assert_eq!((host.get(CSTS), host.get(CC)), (1, ENABLE));
    // Not while it is enabled.
    host.set(0x24, 0);
    assert_eq!(host.get(0x24), 0x000f_000f);
    host.set(CC, 0);
    assert_eq!(host.get(CSTS), 0);
    assert_eq!(host.get(0x28), ASQ as u32, "the admin queue's registers stay");
}

#[test]
fn what_it_cannot_do_is_a_fatal_status_with_a_reason_until_it_is_reset() {
    let cases: [(u32, &str); 4] = [
        (ENABLE | 1 << 4, "CC.CSS is 1"),
        (ENABLE | 1 << 7, "CC.MPS is 1"),
        (ENABLE | 1 << 11, "CC.AMS is 1"),
        (ENABLE | 6 << 4, "CC.CSS is 6"),
    ];
    for (cc, reason) in cases {
        let mut host = Host::new(config());
        host.set(0x24, 0x000f_000f);
        host.set(0x28, ASQ as u32);
        host.set(0x30, ACQ as u32);
        host.set(CC, cc);
        assert_eq!(host.get(CSTS), 2, "CFS, and not ready");
        assert!(host.controller.failure().unwrap().contains(reason), "{:?}", host.controller.failure());
        assert!(matches!(&host.actions[..], [Action::Failed(text)] if text.contains(reason)));
        host.set(CC, 0);
        assert_eq!(host.get(CSTS), 0);
        host.enable();
    }
}

#[test]
fn an_admin_queue_that_is_not_there_is_a_fatal_status() {
    for (aqa, asq, acq) in
        [(0x000f_000f, MEMORY, ACQ), (0x000f_000f, ASQ, MEMORY), (0, ASQ, ACQ), (0x000f_000f, !0xfff, ACQ)]
    {
        let mut host = Host::new(config());
        host.set(0x24, aqa);
        host.controller.write(0x28, &asq.to_le_bytes());
        host.controller.write(0x30, &acq.to_le_bytes());
        host.set(CC, ENABLE);
        assert_eq!(host.get(CSTS), 2);
        assert!(host.controller.failure().unwrap().contains("admin queue"));
        host.set(CC, 0);
        host.enable();
    }
}

#[test]
fn enabling_and_disabling_a_thousand_times_leaves_nothing_behind() {
    let mut host = Host::enabled();
    for round in 0..1000 {
        host.create_pair(1 + round % 4);
        if round % 3 == 0 {
            host.submit(0x0c, &[]);
        }
        host.set(CC, 0);
        assert!(host.running.is_empty());
        assert_eq!(host.get(CSTS), 0);
        assert!((0..16).all(|index| host.doorbells().load(index) == 0), "doorbells are forgotten");
        host.enable();
    }
    host.create_pair(1);
}

#[test]
fn it_is_not_ready_to_be_enabled_again_before_its_queues_are_gone() {
    let mut host = Host::enabled();
    host.create_pair(1);
    host.create_pair(2);
    host.answers = false;
    host.set(CC, 0);
    assert_eq!(host.get(CSTS), 1, "queues are being stopped");
    assert_eq!(host.actions, [Action::Stop { sq: 1 }, Action::Stop { sq: 2 }]);
    host.controller.stopped(1);
    // The host does not wait.
    host.set(CC, ENABLE);
    assert_eq!(host.get(CSTS), 1);
    host.controller.stopped(1);
    host.controller.stopped(2);
    assert_eq!(host.get(CSTS), 1, "it is enabled as soon as it may");
    host.answers = true;
    host.running.clear();
    host.enable_driver();
    host.create_pair(1);
}

impl Host {
    /// The driver of an admin queue that starts anew.
    fn enable_driver(&mut self) {
        let queue = |address| QueueMemory { id: 0, address: GuestAddress(address), size: ENTRIES };
        let pair = PairConfig { sq: queue(ASQ), cq: queue(ACQ), interrupts: true, resumed: false };
        self.driver = Some(PairDriver::new(&self.view, pair, self.doorbells()).unwrap());
    }
}

#[test]
fn a_shutdown_is_complete_when_volumes_are_flushed() {
    for notification in [1, 2] {
        let mut host = Host::enabled();
        host.set(CC, ENABLE | notification << 14);
        assert_eq!(host.get(CSTS), 1 | 1 << 2, "occurring");
        assert_eq!(host.actions, [Action::Flush]);
        host.controller.flushed(Ok(()));
        assert_eq!(host.get(CSTS), 1 | 2 << 2, "complete");
        host.set(CC, ENABLE | notification << 14);
        assert_eq!(host.actions.len(), 1, "once");
        host.set(CC, 0);
        assert_eq!(host.get(CSTS), 0);
        host.enable();
    }
}

#[test]
fn a_shutdown_whose_flush_failed_never_says_that_it_is_complete() {
    let mut host = Host::enabled();
    host.set(CC, ENABLE | 1 << 14);
    host.controller.flushed(Err("the volume is gone".to_owned()));
    assert_eq!(host.get(CSTS), 1 | 1 << 1 | 1 << 2);
    assert!(host.controller.failure().unwrap().contains("the volume is gone"));
}

#[test]
fn a_reset_of_the_device_is_one_of_the_controller_and_its_registers() {
    let mut host = Host::enabled();
    host.create_pair(2);
    host.controller.reset();
    host.settle();
    assert!(host.running.is_empty());
    assert_eq!((host.get(CC), host.get(CSTS), host.get(0x24), host.get(0x28)), (0, 0, 0, 0));
    host.enable();
}

#[test]
fn interrupt_masks_are_set_and_cleared_bit_by_bit() {
    let mut host = Host::new(config());
    host.set(0x0c, 0b1010);
    host.set(0x0c, 0b0001);
    host.set(0x10, 0b1000);
    assert_eq!((host.get(0x0c), host.get(0x10)), (0b0011, 0b0011));
}
