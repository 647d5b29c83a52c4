//! The driver's side against the device's.

mod common;

use common::*;
use softdpu_transport::vhost_user::client::{Answer, Client, ClientError};
use softdpu_transport::vhost_user::*;

fn exchange(client: &mut Client, link: &mut Link, message: Message) -> Option<Result<Answer, ClientError>> {
    let sent = client.request(&message);
    let header = Header::parse(sent.bytes.first_chunk().unwrap()).unwrap();
    link.need_reply = header.need_reply;
    let outcome = link.send_raw(header.request, &sent.bytes[HEADER_SIZE..], sent.fds).unwrap();
    assert_eq!(outcome.replies.len(), usize::from(sent.answer.is_some()), "{message:?}");
    let (payload, _) = outcome.replies.first()?;
    Some(client.answer(sent.answer?, &Header::reply(header.request, payload.len() as u32), payload))
}

#[test]
fn a_client_knows_what_is_answered_and_reads_it() {
    let (mut client, mut link) = (Client::default(), Link::new());
    let mut ask = |message| exchange(&mut client, &mut link, message);
    assert_eq!(ask(Message::SetOwner), None);
    assert_eq!(ask(Message::GetProtocolFeatures), Some(Ok(Answer::Number(ProtocolFeatures::IMPLEMENTED.0))));
    assert_eq!(ask(Message::SetProtocolFeatures(ProtocolFeatures::IMPLEMENTED.0)), None);
    assert_eq!(ask(Message::SetFeatures(RING | F_PROTOCOL_FEATURES)), Some(Ok(Answer::Done)));
    assert_eq!(ask(Message::SetMemTable(vec![region(0, 0x10_0000, USER, 0)])), Some(Ok(Answer::Done)));
    let config = |offset| Message::GetConfig(ConfigSpace { offset, flags: 0, bytes: vec![0; 4] });
    let bytes = vec![8, 9, 10, 11];
    assert_eq!(ask(config(8)), Some(Ok(Answer::Config(ConfigSpace { offset: 8, flags: 0, bytes }))));
    let failed = |id| ClientError::Failed { request: RequestId(id), status: 1 };
    assert_eq!(ask(config(128)), Some(Err(failed(request::GET_CONFIG))));
    assert_eq!(ask(kick(0)), Some(Err(failed(request::SET_VRING_KICK))));
    assert_eq!(ask(stop(2)), Some(Ok(Answer::Base { index: 2, number: 0 })));
    let inflight = InflightDescription { mmap_size: 0, mmap_offset: 0, num_queues: 1, queue_size: 64, padded: true };
    let made = InflightDescription { mmap_size: 1088, ..inflight };
    assert_eq!(ask(Message::GetInflightFd(inflight)), Some(Ok(Answer::Inflight(made))));
    let log = LogDescription { size: 4096, offset: 0 };
    assert_eq!(ask(Message::SetLogBase(log)), Some(Ok(Answer::Log(log))));
}

#[test]
fn a_client_does_not_take_another_requests_answer() {
    let client = Client::default();
    let expected = RequestId(request::GET_STATUS);
    let error = client.answer(expected, &Header::reply(request::GET_FEATURES, 8), &[0; 8]).unwrap_err();
    assert_eq!(error.to_string(), "waited for the reply to GET_STATUS, found the reply to GET_FEATURES");
    let error = client.answer(expected, &Header::reply(request::GET_STATUS, 4), &[0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "reply to GET_STATUS: payload is 4 bytes, expected 8");
}
