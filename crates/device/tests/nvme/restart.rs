//! What a process that follows another one finds: saved state, and admin commands that were on their way.

use softdpu_device::nvme::{Action, ControllerState};

use super::*;

/// A controller of another process, with this one's memory and the state.
fn next(host: &Host, state: &ControllerState) -> Controller {
    let mut controller = Controller::new(config(), memory(&host.doorbells, &host.admin)).unwrap();
    // As it is kept: text.
    let text = serde_json::to_string(state).unwrap();
    controller.restore(&serde_json::from_str(&text).unwrap(), &host.view).unwrap();
    controller
}

fn actions(controller: &mut Controller) -> Vec<Action> {
    std::iter::from_fn(|| controller.next_action()).collect()
}

#[test]
fn a_controller_goes_on_with_its_queues_and_what_its_host_set() {
    let mut host = Host::enabled();
    host.create_pair(1);
    host.create_pair(3);
    assert_eq!(host.run(0x09, &[(10, 6), (11, 0)]), (OK, 0));
    assert_eq!(host.run(0x09, &[(10, 0x0b), (11, 0x100)]), (OK, 0));
    assert_eq!(host.run(0x7c, &[(6, 0x9_0000), (8, 0x9_1000)]), (OK, 0));
    let event = host.submit(0x0c, &[]);
    let state = host.controller.save();
    host.controller = next(&host, &state);
    let started = actions(&mut host.controller);
    assert_eq!(started.len(), 2);
    for (action, id) in started.iter().zip([1, 3]) {
        let Action::Start { pair, vector, shadow } = action else { panic!("{action:?}") };
        assert_eq!((pair.sq.id, pair.cq.id, pair.resumed, *vector), (id, id, true, Some(id)));
        assert_eq!(shadow.unwrap().doorbells, GuestAddress(0x9_0000));
        host.controller.started(id, Ok(()));
    }
    assert_eq!(host.get(CSTS), 1);
    assert_eq!(host.run(0x0a, &[(10, 6)]), (OK, 0));
    assert_eq!(host.run(0x00, &[(10, 3)]), (OK, 0));
    host.controller.grow(1, 2 << 20);
    host.settle();
    assert_eq!(host.take().unwrap().command, event, "the request is still there");
}

#[test]
fn an_outcome_that_was_saved_and_not_shown_is_shown_and_not_executed_again() {
    let mut host = Host::enabled();
    let create = command(0x05, 7, &[(6, 0x3_0000), (10, 7 << 16 | 1), (11, 1)]);
    assert!(host.driver.as_mut().unwrap().submit(&create));
    host.driver.as_mut().unwrap().ring();
    let tail = host.doorbells().load(0);
    host.controller.write(0x1000, &tail.to_le_bytes());
    let state = host.controller.save();
    assert_eq!(state.outcomes.len(), 1);
    // Killed before it was published.
    host.controller = next(&host, &state);
    assert_eq!(host.take(), None);
    host.settle();
    let done = host.take().unwrap();
    assert_eq!((done.command, done.status), (7, OK), "executed twice, it would be an invalid identifier");
    // Killed after: it is shown once.
    host.controller = next(&host, &state);
    host.settle();
    assert_eq!(host.take(), None);
    assert_eq!(host.run(0x04, &[(10, 1)]), (OK, 0));
}

#[test]
fn a_command_that_was_taken_and_not_saved_is_executed() {
    let mut host = Host::enabled();
    let state = host.controller.save();
    assert!(host.driver.as_mut().unwrap().submit(&command(0x05, 7, &[(6, 0x3_0000), (10, 7 << 16 | 1), (11, 1)])));
    host.driver.as_mut().unwrap().ring();
    let tail = host.doorbells().load(0);
    host.controller.write(0x1000, &tail.to_le_bytes());
    host.controller = next(&host, &state);
    host.settle();
    assert_eq!(host.take().unwrap().status, OK);
    assert_eq!(host.run(0x04, &[(10, 1)]), (OK, 0), "it is there");
}

#[test]
fn creations_and_deletions_on_their_way_are_begun_again() {
    let mut host = Host::enabled();
    assert_eq!(host.run(5, &[(6, 0x3_0000), (10, 7 << 16 | 1), (11, 1)]), (OK, 0));
    host.answers = false;
    let create = host.submit(1, &[(6, 0x3_1000), (10, 7 << 16 | 1), (11, 1 << 16 | 1)]);
    let state = host.controller.save();
    host.controller = next(&host, &state);
    let begun = actions(&mut host.controller);
    assert!(matches!(&begun[..], [Action::Start { pair, .. }] if !pair.resumed), "{begun:?}");
    host.controller.started(1, Ok(()));
    host.settle();
    assert_eq!(host.take().unwrap().command, create);
    let delete = host.submit(0, &[(10, 1)]);
    let state = host.controller.save();
    host.controller = next(&host, &state);
    let begun = actions(&mut host.controller);
    assert!(matches!(&begun[..], [Action::Start { .. }, Action::Stop { sq: 1 }]), "{begun:?}");
    host.controller.started(1, Ok(()));
    host.controller.stopped(1);
    host.settle();
    assert_eq!(host.take().unwrap().command, delete);
}

#[test]
fn a_reset_and_a_shutdown_on_their_way_go_on() {
    let mut host = Host::enabled();
    host.create_pair(1);
    host.answers = false;
    host.set(CC, ENABLE | 1 << 14);
    let state = host.controller.save();
    let mut controller = next(&host, &state);
    assert!(actions(&mut controller).contains(&Action::Flush));
    controller.flushed(Ok(()));
    assert_eq!(controller.status(), 1 | 2 << 2);
    host.set(CC, 0);
    let state = host.controller.save();
    assert!(state.disabling);
    let mut controller = next(&host, &state);
    assert!(actions(&mut controller).is_empty(), "no process serves the queue");
    assert_eq!(controller.status(), 0);
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let host = Host::enabled();
    let state = host.controller.save();
    let refused = |change: &dyn Fn(&mut ControllerState)| {
        let mut state = state.clone();
        change(&mut state);
        let mut controller = Controller::new(config(), memory(&host.doorbells, &host.admin)).unwrap();
        controller.restore(&state, &host.view).unwrap_err().to_string()
    };
    assert!(refused(&|state| state.version = 9).contains("version 9"));
    assert!(refused(&|state| state.namespaces[0].1 = 1 << 40).contains("blocks"));
    let queue = softdpu_device::nvme::QueueState { cq: (9, 0x3000, 8), vector: None, sq: None };
    assert!(refused(&|state| state.queues.push(queue.clone())).contains("queues"));
}

#[test]
fn a_queue_that_cannot_be_served_any_more_breaks_the_controller() {
    let mut host = Host::enabled();
    host.create_pair(1);
    let state = host.controller.save();
    host.controller = next(&host, &state);
    actions(&mut host.controller);
    host.controller.started(1, Err("its memory is gone".to_owned()));
    assert_eq!(host.get(CSTS), 3);
    assert!(host.controller.failure().unwrap().contains("its memory is gone"));
}

const GOLDEN: &str = include_str!("../golden/nvme-state-v1.json");

/// The controller in the golden file's state.
fn golden() -> ControllerState {
    let mut host = Host::enabled();
    host.controller.set_time(5_000);
    host.create_pair(1);
    host.create_pair(2);
    assert_eq!(host.run(0x09, &[(10, 0x0b), (11, 0x100)]), (OK, 0));
    host.write(DATA, &77_u64.to_le_bytes());
    assert_eq!(host.run(0x09, &[(6, DATA as u32), (10, 0x0e)]), (OK, 0));
    assert_eq!(host.run(0x7c, &[(6, 0x9_0000), (8, 0x9_1000)]), (OK, 0));
    host.controller.grow(1, 2 << 20);
    host.controller.attach(3, false);
    host.driver.as_mut().unwrap().submit(&command(0x0a, 9, &[(10, 7)]));
    host.driver.as_mut().unwrap().ring();
    let tail = host.doorbells().load(0);
    host.controller.write(0x1000, &tail.to_le_bytes());
    host.controller.save()
}

#[test]
fn the_saved_state_is_what_the_golden_file_holds() {
    let saved = serde_json::to_string_pretty(&golden()).unwrap();
    assert_eq!(saved.trim(), GOLDEN.trim(), "a change of the format is another version");
}

#[test]
fn the_golden_state_is_restored_by_this_release() {
    let host = Host::enabled();
    let state: ControllerState = serde_json::from_str(GOLDEN).unwrap();
    let mut controller = Controller::new(config(), memory(&host.doorbells, &host.admin)).unwrap();
    controller.grow(1, 2 << 20);
    controller.restore(&state, &host.view).unwrap();
    assert_eq!(actions(&mut controller).len(), 2, "two pairs");
    assert_eq!(controller.save().namespaces, [(1, 4096, true), (3, 1024, false)]);
}
