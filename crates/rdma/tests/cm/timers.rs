//! Missing answers: how often and when a message is sent again, and the event in the end.

use super::hosts::{CLIENT, ip, parameters};
use super::peer::{Kind, STAGES, Stage, Talk};
use packet::roce::cm::{Ids, Message};
use std::time::Duration;

/// Returns 4.096 us times 2 to the power of `exponent`.
fn time(exponent: u32) -> Duration {
    Duration::from_nanos(4096 * 2_u64.pow(exponent))
}

const START: Duration = Duration::from_secs(1000);

/// Returns all messages and events from now on, each with its delay, until nothing is awaited any more.
fn waited(talk: &mut Talk) -> Vec<(Duration, String)> {
    let (start, mut all) = (talk.now, Vec::new());
    while let Some(next) = talk.host.manager.poll(talk.now) {
        // Nothing happens a moment earlier.
        talk.host.manager.poll(next - Duration::from_nanos(1));
        assert_eq!(talk.said(), "");
        talk.now = next;
        talk.host.manager.poll(next);
        talk.host.take_events();
        let events: Vec<_> = talk.host.events.drain(..).collect();
        let told = events.iter().map(|event| format!("{:?}:{}", event.kind, event.status));
        let heard: Vec<_> =
            std::iter::once(talk.said()).chain(told).filter(|word| !word.is_empty()).collect();
        all.push((next - start, heard.join(" ")));
    }
    all
}

/// Returns a message that is sent again 15 times, 4.3 s apart, and the end when it is given up.
fn in_vain(message: &str, end: &str) -> Vec<(Duration, String)> {
    let again = (1..=15).map(|round| (round * time(20), message.to_owned()));
    again.chain([(16 * time(20), end.to_owned())]).collect()
}

#[test]
fn a_message_is_sent_sixteen_times() {
    let mut talk = Talk::at(Stage::RouteResolved);
    talk.now = START;
    talk.host.manager.connect(START, CLIENT, talk.id, &parameters(1, b"")).unwrap();
    assert_eq!(talk.said(), "REQ");
    assert_eq!(waited(&mut talk), in_vain("REQ", "REJ2:4 Unreachable:-110"));

    let mut talk = Talk::at(Stage::ReqReceived);
    talk.now = START;
    talk.host.manager.accept(START, CLIENT, talk.id, &parameters(1, b"")).unwrap();
    assert_eq!(talk.said(), "REP");
    assert_eq!(waited(&mut talk), in_vain("REP", "REJ2:4 Unreachable:-110"));

    let mut talk = Talk::at(Stage::SidrReqSent);
    assert_eq!(waited(&mut talk), in_vain("SIDR_REQ", "Unreachable:-110"));

    for stage in [Stage::Active, Stage::Passive] {
        let mut talk = Talk::at(stage);
        talk.now = START;
        talk.host.manager.disconnect(START, CLIENT, talk.id).unwrap();
        assert_eq!(talk.said(), "DREQ");
        let mut expected = in_vain("DREQ", "Disconnected:-110");
        expected.push((16 * time(20) + time(17), "TimewaitExit:0".to_owned()));
        assert_eq!(waited(&mut talk), expected);
        assert_eq!(talk.state(), "disconnected");
    }
}

#[test]
fn an_end_is_remembered_for_half_a_second() {
    for stage in [Stage::Active, Stage::Passive, Stage::RepSent, Stage::RepReceived, Stage::DreqSent] {
        let mut talk = Talk::at(stage);
        if talk.host.manager.poll(talk.now).is_none() {
            talk.now = START;
        }
        assert_eq!(talk.tell(Kind::Dreq), "DREP Disconnected:0", "{stage:?}");
        talk.host.events.clear();
        assert_eq!(waited(&mut talk), [(time(17), "TimewaitExit:0".to_owned())]);
    }
}

#[test]
fn nothing_is_awaited_where_there_is_nothing_to_wait_for() {
    for stage in [
        Stage::RouteResolved,
        Stage::RepReceived,
        Stage::Active,
        Stage::ReqReceived,
        Stage::Passive,
        Stage::Ended,
        Stage::Rejected,
        Stage::Refused,
        Stage::SidrReqReceived,
        Stage::SidrFound,
        Stage::SidrAnswered,
    ] {
        assert_eq!(waited(&mut Talk::at(stage)), [], "{stage:?}");
    }
}

/// An MRA adds the time that it asks for, at most 69 s, and uses up no retry. A second one counts once the message was
/// sent again.
#[test]
fn who_is_asked_for_patience_waits() {
    for (stage, which, message) in [(Stage::ReqSent, 0, "REQ"), (Stage::RepSent, 1, "REP")] {
        for (asked, waits) in [(0, time(0)), (21, time(21)), (24, time(24)), (25, time(24)), (31, time(24))] {
            let mut talk = Talk::at(stage);
            talk.now = Duration::from_secs(1);
            let mra = |talk: &Talk| {
                let Message::Mra { ids, private, .. } = talk.message(Kind::Mra(0)) else { panic!() };
                let ids: Ids = ids;
                Message::Mra { ids, which, timeout: asked, private }
            };
            assert_eq!(talk.hear(talk.from, talk.to, talk.transaction, mra(&talk)), "later");
            assert_eq!(talk.hear(talk.from, talk.to, talk.transaction, mra(&talk)), "", "once");
            let first = waits + time(20);
            talk.now += first;
            assert_eq!(talk.host.manager.poll(talk.now), Some(talk.now + time(20)));
            assert_eq!(talk.said(), message);
            talk.now += Duration::from_secs(1);
            assert_eq!(talk.hear(talk.from, talk.to, talk.transaction, mra(&talk)), "later");
            let rest = waited(&mut talk);
            assert_eq!((rest.len(), rest[0].0, rest[1].0), (15, first, first + time(20)));
        }
    }
}

/// Returns the events that a quoted message of the identifier causes.
fn undelivered(
    talk: &mut Talk,
    from: std::net::IpAddr,
    to: std::net::IpAddr,
    head: &[u8; 28],
) -> Vec<String> {
    talk.host.manager.undelivered(from, to, head);
    talk.host.take_events();
    talk.host.events.drain(..).map(|event| format!("{:?}:{}", event.kind, event.status)).collect()
}

#[test]
fn a_request_that_can_not_be_delivered_ends_at_once() {
    for stage in STAGES {
        let mut talk = Talk::at(stage);
        let mut head = [0; 28];
        head[8..16].copy_from_slice(&talk.transaction.to_be_bytes());
        head[24..].copy_from_slice(&talk.name.to_be_bytes());
        let (us, peer) = (talk.to, talk.from);
        let (mut other, mut elsewhere) = (head, head);
        (other[15], elsewhere[27]) = (other[15] ^ 1, elsewhere[27] ^ 1);
        for (to, head) in [(peer, other), (peer, elsewhere), (ip("10.0.0.66"), head)] {
            assert_eq!(undelivered(&mut talk, us, to, &head), [""; 0], "{stage:?}");
        }
        let waits = matches!(stage, Stage::ReqSent | Stage::SidrReqSent);
        let told = if waits { vec!["Unreachable:-113".to_owned()] } else { Vec::new() };
        assert_eq!(undelivered(&mut talk, us, peer, &head), told, "{stage:?}");
        assert!(!waits || talk.host.manager.poll(talk.now).is_none(), "nothing is sent again");
    }
}
