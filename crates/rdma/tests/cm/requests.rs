//! Requests during a conversation with the same peer: repeated ones, ones that start anew, and ones for another
//! conversation.

use super::hosts::ip;
use super::peer::{Kind, NAME, STAGES, Stage, THEIRS, Talk};
use packet::roce::cm::{Message, Req};
use std::net::IpAddr;

const NEW: &str = "ConnectRequest:0";
const STALE: &str = "REJ0:10";
/// The host ends the connection that the peer has forgotten.
const ENDS_THE_OLD: &str = "DREQ REJ0:10";

/// Sends a request like an earlier one, except for this change. Returns its effect.
fn requested(stage: Stage, transaction: u64, change: fn(&mut Req)) -> String {
    let mut talk = Talk::at(stage);
    let mut req = talk.req();
    change(&mut req);
    talk.hear(talk.from, talk.to, transaction, Message::Req(req))
}

#[test]
fn a_request_comes_again() {
    for stage in STAGES {
        let expected = match stage {
            Stage::ReqReceived => "MRA0",
            Stage::RepSent => "REP",
            Stage::Refused => "REJ0:28",
            Stage::Passive | Stage::Withdrawn => "",
            // In a connection that we requested, the peer has the queue pair for a request.
            Stage::Active => ENDS_THE_OLD,
            Stage::RepReceived | Stage::DreqSent => STALE,
            _ => NEW,
        };
        assert_eq!(requested(stage, 0x55, |_| ()), expected, "{stage:?}");
    }
}

#[test]
fn a_name_or_a_queue_pair_that_is_used_again_is_stale() {
    for stage in STAGES {
        let by_queue_pair = match stage {
            Stage::ReqReceived | Stage::RepSent | Stage::RepReceived | Stage::DreqSent => STALE,
            Stage::Active | Stage::Passive => ENDS_THE_OLD,
            _ => NEW,
        };
        assert_eq!(requested(stage, 0x56, |_| ()), by_queue_pair, "{stage:?}");
        assert_eq!(requested(stage, 0x56, |req| req.local = NAME + 1), by_queue_pair, "{stage:?}");
        let is_passive = matches!(stage, Stage::ReqReceived | Stage::RepSent | Stage::Passive);
        let by_name = if is_passive { by_queue_pair } else { NEW };
        assert_eq!(requested(stage, 0x56, |req| req.queue_pair = THEIRS + 1), by_name, "{stage:?}");
        let another = requested(stage, 0x56, |req| (req.local, req.queue_pair) = (NAME + 1, THEIRS + 1));
        assert_eq!(another, NEW, "{stage:?}");
    }
}

#[test]
fn a_request_between_other_addresses_is_another() {
    for stage in STAGES {
        for (from, to) in [("10.0.0.66", "10.0.0.2"), ("10.0.0.1", "10.0.0.66")] {
            let mut talk = Talk::at(stage);
            (talk.from, talk.to) = (ip(from), ip(to));
            let (req, sidr_req) = (talk.message(Kind::Req), talk.message(Kind::SidrReq));
            assert_eq!(talk.hear(talk.from, talk.to, 0x55, req), NEW, "{stage:?}");
            talk.host.events.clear();
            assert_eq!(talk.hear(talk.from, talk.to, 0x55, sidr_req), NEW, "{stage:?}");
        }
    }
}

#[test]
fn a_question_comes_again() {
    for stage in STAGES {
        let expected = match stage {
            Stage::SidrReqReceived => "",
            Stage::SidrAnswered => "SIDR_REP:0",
            Stage::SidrRefused => "SIDR_REP:2",
            _ => NEW,
        };
        let asked = |transaction| {
            let mut talk = Talk::at(stage);
            talk.hear(talk.from, talk.to, transaction, talk.message(Kind::SidrReq))
        };
        assert_eq!((asked(0x55).as_str(), asked(0x56).as_str()), (expected, NEW), "{stage:?}");
    }
}

/// One of the peer's queue pairs has two conversations, of which the first is only remembered: its end does not affect
/// the other.
#[test]
fn the_last_conversation_of_a_queue_pair_counts() {
    let mut talk = Talk::at(Stage::Passive);
    assert_eq!(talk.tell(Kind::Dreq), "DREP Disconnected:0");
    talk.host.events.clear();
    let another = |talk: &mut Talk, name| {
        let req = Message::Req(Req { local: name, ..talk.req() });
        let heard = talk.hear(talk.from, talk.to, u64::from(name), req);
        talk.host.events.clear();
        heard
    };
    assert_eq!(another(&mut talk, 5), NEW);
    talk.now += std::time::Duration::from_secs(3600);
    talk.host.manager.poll(talk.now);
    talk.host.take_events();
    talk.host.events.clear();
    assert_eq!(another(&mut talk, 6), STALE);
}

/// A refused query gets an answer with the reason.
#[test]
fn questions_that_can_not_be_are_answered() {
    let mut talk = Talk::at(Stage::Listening);
    let asked = |talk: &mut Talk, at: usize, value: u8| {
        let Message::SidrReq { request, partition, service, mut private } = talk.message(Kind::SidrReq)
        else {
            panic!()
        };
        private[at] = value;
        let message = Message::SidrReq { request, partition, service, private };
        talk.hear(talk.from, talk.to, 1, message)
    };
    // The header has another version, or addresses other than the packet's.
    for at in [0, 19, 35] {
        assert_eq!(asked(&mut talk, at, 9), "SIDR_REP:2");
    }
    assert_eq!(asked(&mut talk, 3, 9), NEW);
    let unknown = Message::SidrReq { request: 1, partition: 0xffff, service: 7174, private: [0; 216] };
    let mut talk = Talk::at(Stage::Listening);
    let (from, to): (IpAddr, IpAddr) = (talk.from, talk.to);
    assert_eq!(talk.hear(from, to, 1, unknown), "SIDR_REP:1");
}
