use std::sync::mpsc::{Receiver as Channel, channel};

use super::*;

/// Sessions on the loopback interface, each node with an address of its own.
fn node(address: &str, kept: Option<BorrowedFd<'_>>) -> (Bfd, Channel<OwnedFd>) {
    let (sender, receiver) = channel();
    let keep = Box::new(move |fd| drop(sender.send(fd)));
    (Bfd::start(vec![address.parse().unwrap()], Wanted::default(), kept, keep).unwrap(), receiver)
}

fn fast() -> SessionParameters {
    SessionParameters { interval: Duration::from_millis(50), multiplier: 3 }
}

fn wait(bfd: &Bfd, host: &str, state: State) -> SessionStatus {
    let host = host.parse().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match bfd.status().get(&host) {
            Some(status) if status.state == state => return *status,
            status => assert!(Instant::now() < deadline, "{host} is {status:?} after 20 s, not {state:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn two_nodes_come_up_and_one_that_ends_is_noticed() {
    let (one, _kept) = node("127.77.0.1", None);
    let (other, _kept_too) = node("127.77.0.2", None);
    one.want(Wanted { hosts: vec!["127.77.0.2".parse().unwrap()], parameters: fast() });
    other.want(Wanted { hosts: vec!["127.77.0.1".parse().unwrap()], parameters: fast() });
    let status = wait(&one, "127.77.0.2", State::Up);
    assert!(status.forwards() && !status.multihop);
    wait(&other, "127.77.0.1", State::Up);
    assert!(one.changed(), "the bell was rung");
    drop(other);
    let status = wait(&one, "127.77.0.2", State::Down);
    assert_eq!(status.diagnostic, Diagnostic::DetectionTimeExpired);
    assert!(!status.forwards());
    one.want(Wanted { hosts: Vec::new(), parameters: fast() });
    let deadline = Instant::now() + Duration::from_secs(10);
    while !one.status().is_empty() {
        assert!(Instant::now() < deadline, "the session that is no longer wanted is still there after 10 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_data_plane_that_follows_another_keeps_the_session_up() {
    let slow = SessionParameters { interval: Duration::from_millis(300), multiplier: 10 };
    let (other, _kept) = node("127.77.0.4", None);
    other.want(Wanted { hosts: vec!["127.77.0.3".parse().unwrap()], parameters: slow });
    let (one, kept) = node("127.77.0.3", None);
    one.want(Wanted { hosts: vec!["127.77.0.4".parse().unwrap()], parameters: slow });
    wait(&one, "127.77.0.4", State::Up);
    wait(&other, "127.77.0.3", State::Up);
    let last = kept.recv_timeout(Duration::from_secs(5)).unwrap();
    let last = std::iter::from_fn(|| kept.recv_timeout(Duration::from_millis(500)).ok()).last().unwrap_or(last);
    drop(one);
    other.changed();
    let deadline = Instant::now() + Duration::from_secs(5);
    let (one, _kept) = loop {
        // The port is free when the thread has ended.
        let (one, kept) = node("127.77.0.3", Some(last.as_fd()));
        one.want(Wanted { hosts: vec!["127.77.0.4".parse().unwrap()], parameters: slow });
        std::thread::sleep(Duration::from_millis(100));
        if one.status().values().any(|status| status.state == State::Up) {
            break (one, kept);
        }
        assert!(Instant::now() < deadline, "the successor did not take the session over within 5 s");
    };
    std::thread::sleep(Duration::from_secs(4));
    let status = wait(&one, "127.77.0.4", State::Up);
    assert_eq!(status.diagnostic, Diagnostic::None);
    let status = wait(&other, "127.77.0.3", State::Up);
    assert_eq!(status.diagnostic, Diagnostic::None, "the neighbour has not noticed");
    assert!(!other.changed());
}

/// What a host says that does not name the other side's session.
fn packet(state: State) -> ControlPacket {
    ControlPacket {
        diagnostic: Diagnostic::None,
        state,
        poll: false,
        is_final: false,
        control_plane_independent: false,
        demand: false,
        detect_multiplier: 255,
        my_discriminator: NonZeroU32::new(5).unwrap(),
        your_discriminator: None,
        desired_min_tx: 1_000_000,
        required_min_rx: 1_000_000,
    }
}

#[test]
fn a_host_that_changes_its_mind_with_each_packet_wakes_the_control_thread_now_and_then() {
    let (one, _kept) = node("127.77.0.7", None);
    let host: IpAddr = "127.77.0.8".parse().unwrap();
    one.want(Wanted { hosts: vec![host], parameters: fast() });
    wait(&one, "127.77.0.8", State::Down);
    let socket = HopSocket::bind(SocketAddr::new(host, 0), SINGLE_HOP_TTL).unwrap();
    let (start, mut woken, mut sent) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_millis(400) {
        // Down makes Init of Down, and AdminDown makes Down of Init. Three, as packets are read by the batch.
        for state in [State::Down, State::AdminDown, State::Down] {
            let _ = socket.send_to(&packet(state).to_bytes(), "127.77.0.7:3784".parse().unwrap());
            sent += 1;
        }
        woken += usize::from(one.changed());
    }
    let most = start.elapsed().as_millis() / KEEP_INTERVAL.as_millis() + 2;
    println!("{sent} packets, {woken} changes");
    assert!(woken >= 1 && woken as u128 <= most, "{woken} changes are told in {:?}", start.elapsed());
}

#[test]
fn a_packet_from_further_away_is_not_taken_over_one_hop() {
    let (one, _kept) = node("127.77.0.5", None);
    let host: IpAddr = "127.77.0.6".parse().unwrap();
    one.want(Wanted { hosts: vec![host], parameters: fast() });
    let send = |hop_limit: u8| {
        let socket = HopSocket::bind(SocketAddr::new(host, 0), hop_limit).unwrap();
        socket.send_to(&packet(State::Down).to_bytes(), "127.77.0.5:3784".parse().unwrap()).unwrap();
    };
    wait(&one, "127.77.0.6", State::Down);
    send(254);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(wait(&one, "127.77.0.6", State::Down).state, State::Down);
    send(255);
    wait(&one, "127.77.0.6", State::Init);
}

#[test]
fn what_was_kept_by_another_release_or_cut_short_is_left_alone() {
    let file = |text: &[u8]| {
        let mut file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(text).unwrap();
        file
    };
    assert!(read_kept(file(b"").as_fd()).is_empty());
    assert!(read_kept(file(b"{\"version\":1,\"sess").as_fd()).is_empty());
    assert!(read_kept(file(b"{\"version\":2,\"sessions\":[]}").as_fd()).is_empty());
}
