//! Upgrades: which data plane serves at which moment, and what becomes of an upgrade when one of its steps fails.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use softdpu_api::status::{NodeStatus, UpgradeStage};
use softdpu_api::{ApiError, Change, ErrorCode, Id, Query, Upgrade, UpgradePart};
use softdpu_link::{Call, ConnectionId, Down, Formats, SharedFd, Up};
use softdpu_site::volume_from_json;

use super::super::supervisor::Timing;
use super::bed::{ApiStub, Bed, FORMATS, FakePlane, FrontEndStub, message};

/// A daemon with a front end at its device `a`, and a client that has asked for an upgrade.
struct Scene {
    bed: Bed,
    old: Option<FakePlane>,
    front_end: FrontEndStub,
    connection: ConnectionId,
    client: ApiStub,
    asked: Id,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(Timing::default(), false)
    }

    fn with(timing: Timing, force: bool) -> Scene {
        let bed = Bed::with(timing, false);
        let mut old = bed.ready_plane();
        let mut front_end = bed.connect("a");
        let (connection, ..) = old.attach();
        front_end.send(&message(1, b""));
        old.message();
        old.handled(connection, b".", "session");
        front_end.receive(1);
        let mut client = bed.api();
        let asked = client.ask(upgrade(force));
        Scene { bed, old: Some(old), front_end, connection, client, asked }
    }

    /// The new data plane, which knows what to be.
    fn briefed(&self) -> FakePlane {
        let mut new = self.bed.plane();
        assert_eq!(new.program.to_str(), Some("/new"));
        new.greet("2", FORMATS);
        match new.next() {
            (Down::Start { standby: true, incarnation, .. }, _) => assert!(incarnation > 1),
            other => panic!("expected a start on standby, got {other:?}"),
        }
        new
    }

    /// The new data plane, prepared; the old one was told to quiesce.
    fn quiescing(&mut self) -> FakePlane {
        let mut new = self.briefed();
        new.say(&Up::Prepared { problems: vec![] }, vec![]);
        assert!(matches!(self.old().next(), (Down::Quiesce { .. }, _)));
        new
    }

    fn old(&mut self) -> &mut FakePlane {
        self.old.as_mut().expect("it lives")
    }

    fn take_old(&mut self) -> FakePlane {
        self.old.take().expect("it lives")
    }

    fn fails(&mut self, why: &str) {
        let error = self.client.answer(self.asked.clone()).unwrap_err();
        assert_eq!(error.code, ErrorCode::Failed);
        assert!(error.message.contains(why), "{error:?}");
    }

    /// The old data plane still serves, and gets what waits.
    fn old_serves(mut self) {
        self.front_end.send(&message(9, b""));
        assert_eq!(self.old().message().1, message(9, b""));
        {
            let connection = self.connection;
            self.old().handled(connection, b"!", "session")
        };
        assert_eq!(self.front_end.receive(1), b"!");
        // Another attempt may follow.
        let asked = self.client.ask(upgrade(false));
        assert_eq!(self.bed.plane().program.to_str(), Some("/new"));
        drop(asked);
    }

    /// `new` is told to serve, and given the connection.
    fn new_serves(mut self, mut new: FakePlane) -> (FakePlane, Scene) {
        assert!(matches!(new.next(), (Down::TakeOver { .. }, _)));
        let (connection, session, ..) = new.attach();
        assert_eq!((connection, session.as_deref()), (self.connection, Some("session")));
        let result = self.client.answer(self.asked.clone()).unwrap();
        assert_eq!((&result["from"], &result["to"]), (&json!("1"), &json!("2")));
        self.front_end.send(&message(9, b""));
        assert_eq!(new.message().1, message(9, b""));
        new.handled(self.connection, b"!", "session");
        assert_eq!(self.front_end.receive(1), b"!");
        (new, self)
    }
}

fn upgrade(force: bool) -> Query {
    Query::Upgrade(Upgrade { program: "/new".into(), force, only: Some(UpgradePart::DataPlane) })
}

#[test]
fn the_new_data_plane_serves_from_the_moment_at_which_the_old_one_has_let_go() {
    let mut scene = Scene::new();
    // A message that is under way is answered by the one that has it, or applied again by the other.
    let mut new = scene.quiescing();
    scene.front_end.send(&message(7, b""));
    assert!(scene.old().hears_nothing(), "it was told that no message follows");
    assert!(new.hears_nothing(), "it does not serve yet");
    scene.old().say(&Up::Quiesced { abandoned: 3 }, vec![]);
    assert!(matches!(new.next(), (Down::TakeOver { since_ns: 1.., .. }, _)));
    let (_, session, ..) = new.attach();
    assert_eq!(session.as_deref(), Some("session"));
    assert_eq!(new.message().1, message(7, b""));
    new.handled(scene.connection, b"!", "session");
    assert_eq!(scene.front_end.receive(1), b"!");
    let result = scene.client.answer(scene.asked.clone()).unwrap();
    assert_eq!(result["abandoned"], 3);
    assert!(matches!(scene.old().next(), (Down::Shutdown, _)), "the old one leaves");
    scene.take_old().die("exit status 0");
    new.say(&Up::FirstCompletion { ns: 5_000 }, vec![]);
    let is_done = |status: &NodeStatus| {
        let upgrade = status.data_plane.upgrade.as_ref();
        upgrade.is_some_and(|upgrade| upgrade.first_completion_us == Some(5) && upgrade.stage == UpgradeStage::Done)
    };
    // Asked of the data plane, which does not answer here; the next is started, and is not ready.
    new.die("killed by SIGKILL");
    scene.bed.status_becomes(is_done);
    scene.bed.status_becomes(|status| status.data_plane.restarts == 1);
}

#[test]
fn a_program_that_cannot_take_over_changes_nothing() {
    for (formats, why) in [
        (Formats { link: FORMATS.link + 1, ..FORMATS }, "link format"),
        (Formats { oldest_session: 2, session: 3, ..FORMATS }, "reads sessions of formats 2 to 3"),
    ] {
        let mut scene = Scene::new();
        let mut new = scene.bed.plane();
        new.greet("2", formats);
        scene.fails(why);
        assert!(new.was_killed());
        scene.old_serves();
    }
}

#[test]
fn a_new_data_plane_that_ends_or_hangs_before_it_serves_changes_nothing() {
    let mut scene = Scene::new();
    scene.bed.plane().die("exit status 1");
    scene.fails("has ended: exit status 1");
    scene.old_serves();

    let mut scene = Scene::new();
    scene.briefed().die("killed by SIGSEGV");
    scene.fails("has ended: killed by SIGSEGV");
    scene.old_serves();

    let mut scene = Scene::with(Timing { startup: Duration::from_millis(100), ..Timing::default() }, false);
    let silent = scene.bed.plane();
    scene.fails("silent for too long");
    assert!(silent.was_killed());
    scene.old_serves();

    let mut scene = Scene::new();
    let mut liar = scene.briefed();
    liar.say(
        &Up::Handled {
            connection: scene.connection,
            reply: b"lie".to_vec(),
            reply_fds: 0,
            session: "lie".into(),
            kept: vec![],
            released: vec![],
            close: None,
        },
        vec![],
    );
    scene.fails("says what it may not");
    scene.old_serves();
}

#[test]
fn a_program_that_is_not_there_is_refused_at_once() {
    let bed = Bed::new();
    let mut client = bed.api();
    let plane = bed.plane();
    let asked = client.ask(upgrade(false));
    assert_eq!(client.answer(asked).unwrap_err().code, ErrorCode::Unavailable, "nothing serves yet");
    plane.die("exit status 1");
    let mut plane = bed.ready_plane();
    let _front_end = bed.connect("a");
    // It is given connections once it serves.
    plane.attach();
    let absent = Query::Upgrade(Upgrade { program: "/absent".into(), force: false, only: None });
    let asked = client.ask(absent);
    let error: ApiError = client.answer(asked).unwrap_err();
    assert!(error.message.contains("/absent"), "{error:?}");
}

#[test]
fn volumes_that_do_not_open_stop_an_upgrade_unless_it_is_forced() {
    let problems = vec!["volume 'disk': it is gone".to_owned()];
    let mut scene = Scene::new();
    scene.briefed().say(&Up::Prepared { problems: problems.clone() }, vec![]);
    scene.fails("volume 'disk': it is gone");
    scene.old_serves();

    let mut scene = Scene::with(Timing::default(), true);
    let mut new = scene.briefed();
    new.say(&Up::Prepared { problems }, vec![]);
    assert!(matches!(scene.old().next(), (Down::Quiesce { .. }, _)));
    scene.old().say(&Up::Quiesced { abandoned: 0 }, vec![]);
    scene.new_serves(new);
}

#[test]
fn an_old_data_plane_that_dies_while_it_lets_go_is_followed_by_the_new_one() {
    let mut scene = Scene::new();
    let new = scene.quiescing();
    scene.take_old().die("killed by SIGSEGV");
    let (_, scene) = scene.new_serves(new);
    assert_eq!(scene.bed.starts.lock().unwrap().len(), 2, "no other is started");
}

#[test]
fn the_death_of_a_data_plane_that_has_let_go_is_not_the_new_ones() {
    // Its last word and its end come in either order.
    for _ in 0..20 {
        let mut scene = Scene::new();
        let new = scene.quiescing();
        scene.take_old().die_saying(&Up::Quiesced { abandoned: 0 }, "killed by SIGSEGV");
        let (mut new, scene) = scene.new_serves(new);
        assert_eq!(scene.bed.starts.lock().unwrap().len(), 2, "no other is started");
        assert!(new.hears_nothing(), "it serves on");
    }
}

#[test]
fn an_old_data_plane_that_does_not_let_go_is_killed() {
    let mut scene = Scene::new();
    let new = scene.quiescing();
    let old = scene.take_old();
    assert!(old.was_killed());
    old.die("killed by SIGKILL");
    scene.new_serves(new);
}

#[test]
fn a_new_data_plane_that_dies_when_the_old_one_has_stopped_its_queues_is_followed_by_one_of_the_program_before() {
    let mut scene = Scene::new();
    scene.quiescing().die("killed by SIGSEGV");
    scene.fails("has ended: killed by SIGSEGV");
    let old = scene.take_old();
    assert!(old.was_killed(), "it will not start its queues again");
    old.die("killed by SIGKILL");
    let mut next = scene.bed.ready_plane();
    assert_eq!(next.program.to_str(), Some("first"));
    assert_eq!(next.attach().1.as_deref(), Some("session"));
}

#[test]
fn a_program_that_dies_young_is_followed_by_the_one_before() {
    let mut scene = Scene::new();
    let new = scene.quiescing();
    scene.old().say(&Up::Quiesced { abandoned: 0 }, vec![]);
    let (new, scene) = scene.new_serves(new);
    new.die("killed by SIGSEGV");
    let mut next = scene.bed.ready_plane();
    assert_eq!(next.program.to_str(), Some("first"));
    assert_eq!(next.attach().1.as_deref(), Some("session"));
}

#[test]
fn the_old_data_plane_dies_while_the_new_one_prepares() {
    let mut scene = Scene::new();
    let new = scene.briefed();
    scene.take_old().die("killed by SIGSEGV");
    scene.fails("has died meanwhile");
    assert!(new.was_killed());
    assert_eq!(scene.bed.ready_plane().program.to_str(), Some("first"));
}

#[test]
fn what_the_old_data_plane_has_kept_meanwhile_reaches_the_new_one_and_what_that_keeps_counts_once_it_serves() {
    let null = || -> SharedFd { Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()).into()) };
    let keep = |key: &str| Up::Keep { key: key.into() };
    let mut scene = Scene::new();
    let mut new = scene.briefed();
    scene.old().say(&keep("by the old"), vec![null()]);
    new.say(&keep("by the new"), vec![null()]);
    new.say(&Up::Prepared { problems: vec![] }, vec![]);
    assert!(matches!(scene.old().next(), (Down::Quiesce { .. }, _)));
    scene.old().say(&keep("at the end"), vec![null()]);
    scene.old().say(&Up::Quiesced { abandoned: 0 }, vec![]);
    match new.next() {
        (Down::TakeOver { kept, forgotten, .. }, fds) => {
            assert_eq!((kept, forgotten, fds.len()), (vec!["at the end".into(), "by the old".into()], vec![], 2));
        }
        other => panic!("expected to take over, got {other:?}"),
    }
    new.die("killed by SIGKILL");
    let (_, _, kept, _) = {
        let mut next = scene.bed.plane();
        next.greet("1", FORMATS);
        next.start()
    };
    assert_eq!(kept, ["at the end", "by the new", "by the old"]);
}

#[test]
fn changes_wait_for_an_upgrade_and_an_upgrade_for_changes() {
    let volume = volume_from_json(&json!({"name": "more", "null": {"size": "4 MiB"}})).unwrap();
    let mut scene = Scene::new();
    let mut new = scene.quiescing();
    let mut other = scene.bed.api();
    let asked = other.ask(Change::VolumeCreate(volume.clone()));
    assert!(scene.old().hears_nothing());
    scene.old().say(&Up::Quiesced { abandoned: 0 }, vec![]);
    assert!(matches!(new.next(), (Down::TakeOver { .. }, _)));
    new.attach();
    let (id, call) = new.call();
    assert_eq!(call, Call::Change(Change::VolumeCreate(volume)));
    let mut third = scene.bed.api();
    let refused = third.ask(upgrade(false));
    assert_eq!(third.answer(refused).unwrap_err().code, ErrorCode::Unavailable);
    new.say(&Up::Answer { id, result: Ok(json!({})) }, vec![]);
    other.answer(asked).unwrap();
}

#[test]
fn a_daemon_that_stops_ends_both() {
    let mut scene = Scene::new();
    let new = scene.briefed();
    scene.bed.handle.stop();
    assert!(matches!(scene.old().next(), (Down::Shutdown, _)));
    assert!(new.was_killed());
    scene.take_old().die("exit status 0");
    scene.bed.finished().unwrap();
}
