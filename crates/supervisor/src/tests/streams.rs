use serde_json::json;

use super::bed::Bed;
use softdpu_api::{ApiError, ErrorCode, PacketTrace, Query};
use softdpu_link::{Call, Up};

fn trace(port: &str) -> Query {
    Query::TracePacket(PacketTrace { ports: vec![port.to_owned()], ..PacketTrace::default() })
}

#[test]
fn only_ports_of_the_site_are_traced() {
    let bed = Bed::new();
    let _plane = bed.ready_plane();
    let mut client = bed.api();
    let asked = client.ask(trace("a"));
    let error = client.answer(asked).unwrap_err();
    // A disk is no port.
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::NotFound, "there is no port called \"a\""));
}

#[test]
fn a_client_whose_connection_was_not_taken_over_stays_a_client() {
    let bed = Bed::new();
    let mut plane = bed.ready_plane();
    let mut client = bed.api();
    let asked = client.ask(Query::TracePacket(PacketTrace::default()));
    let (id, call) = plane.call();
    let Call::TracePacket { greeting, .. } = call else { panic!("{call:?}") };
    assert_eq!(greeting, format!("{}\n", json!({ "softdpu": 1, "id": asked.clone(), "result": {} })));
    let refusal = ApiError::new(ErrorCode::Busy, "enough of them");
    plane.say(&Up::Answer { id, result: Err(refusal) }, vec![]);
    assert_eq!(client.answer(asked).unwrap_err().code, ErrorCode::Busy);
    let asked = client.ask(Query::DeviceArgs { name: "a".into() });
    client.answer(asked).unwrap();
}
