//! The calls that programs may make for an identifier at each stage of its life, and the messages to its peer when it
//! ends.

use super::hosts::{CLIENT, parameters};
use super::peer::{STAGES, Stage, Talk};
use rdma::cm::{Choice, Refused, Target};

const VERBS: [&str; 14] = [
    "bind",
    "resolve",
    "route",
    "listen",
    "connect",
    "establish",
    "accept",
    "reject",
    "notify",
    "disconnect",
    "rtr",
    "rts",
    "reuse",
    "only-ipv6",
];

fn verb(talk: &mut Talk, verb: &str) -> Result<(), Refused> {
    let (id, now, manager) = (talk.id, talk.now, &mut talk.host.manager);
    let to = "10.0.0.1:7174".parse().unwrap();
    match verb {
        "bind" => manager.bind_addr(CLIENT, id, "10.0.0.2:6".parse().unwrap()).map(drop),
        "resolve" => manager.resolve_addr(CLIENT, id, None, to, |_, _| true),
        "route" => manager.resolve_route(CLIENT, id),
        "listen" => manager.listen(CLIENT, id, 1),
        "connect" => manager.connect(now, CLIENT, id, &parameters(1, b"")),
        "establish" => manager.establish(CLIENT, id),
        "accept" => manager.accept(now, CLIENT, id, &parameters(1, b"")),
        "reject" => manager.reject(CLIENT, id, 0, b""),
        "notify" => manager.notify(CLIENT, id),
        "disconnect" => manager.disconnect(now, CLIENT, id),
        "rtr" => manager.transition(CLIENT, id, Target::ReadyToReceive).map(drop),
        "rts" => manager.transition(CLIENT, id, Target::ReadyToSend).map(drop),
        "reuse" => manager.set_option(CLIENT, id, Choice::ReuseAddress(true)),
        "only-ipv6" => manager.set_option(CLIENT, id, Choice::OnlyIpv6(true)),
        other => panic!("{other}"),
    }
}

/// Returns the state in a word, the permitted calls, and the message to the peer if the identifier is destroyed.
fn row(stage: Stage) -> (&'static str, &'static str, &'static str) {
    match stage {
        Stage::Idle => ("idle", "bind resolve listen reuse only-ipv6", ""),
        Stage::Bound => ("bound", "resolve listen reuse", ""),
        Stage::AddressResolved => ("resolved", "route", ""),
        Stage::RouteResolved => ("resolved", "connect", ""),
        Stage::Listening => ("listen", "", ""),
        Stage::ReqSent => ("connect", "", "REJ2:4"),
        Stage::RepReceived => ("connect", "establish reject disconnect rtr rts", "REJ1:28"),
        Stage::Active | Stage::Passive => ("established", "notify disconnect rtr rts", "DREQ"),
        Stage::ReqReceived => ("request", "accept reject rtr rts", "REJ0:28"),
        Stage::RepSent => ("accept", "notify disconnect rtr rts", "REJ2:28"),
        Stage::DreqSent => ("disconnect", "disconnect rtr rts", ""),
        Stage::TimeWait => ("timewait", "disconnect", ""),
        // A program that knew the peer's queue pair may say that it no longer uses it.
        Stage::Ended | Stage::Refused | Stage::Withdrawn => ("disconnected", "disconnect", ""),
        Stage::Rejected => ("disconnected", "", ""),
        Stage::SidrReqSent => ("connect", "", ""),
        Stage::SidrReqReceived => ("request", "accept reject", "SIDR_REP:2"),
        Stage::SidrFound | Stage::SidrAnswered | Stage::SidrRefused => ("established", "", ""),
    }
}

#[test]
fn what_is_out_of_turn_is_refused_and_changes_nothing() {
    for stage in STAGES {
        let (state, allowed, _) = row(stage);
        assert_eq!(Talk::at(stage).state(), state, "{stage:?}");
        for name in VERBS {
            let mut talk = Talk::at(stage);
            let is_allowed = allowed.split(' ').any(|verb| verb == name);
            let expected = if is_allowed { Ok(()) } else { Err(Refused::State) };
            assert_eq!(verb(&mut talk, name), expected, "{name} of {stage:?}");
            if !is_allowed {
                talk.host.no_event();
                assert_eq!((talk.state(), talk.said()), (state, String::new()), "{name} of {stage:?}");
            }
        }
    }
}

#[test]
fn a_peer_is_told_where_an_identifier_is_destroyed() {
    for stage in STAGES {
        let mut talk = Talk::at(stage);
        let before = talk.host.manager.len();
        talk.host.manager.destroy_id(talk.now, CLIENT, talk.id).unwrap();
        assert_eq!(talk.said(), row(stage).2, "{stage:?}");
        // A connection that the peer may still ask about is remembered until the peer has had time for that.
        let is_known = matches!(stage, Stage::Active | Stage::Passive | Stage::DreqSent | Stage::TimeWait);
        assert_eq!(before - talk.host.manager.len(), usize::from(!is_known), "{stage:?}");
        assert_eq!((talk.state(), talk.host.manager.poll(talk.now).is_some()), ("gone", is_known));
        talk.host.no_event();
        while let Some(next) = talk.host.manager.poll(talk.now) {
            talk.now = next;
        }
        assert_eq!(talk.host.manager.len(), before - 1, "{stage:?}");
        talk.host.no_event();
    }
}

/// Each call of a program sends this message to the peer.
#[test]
fn the_peer_hears_what_is_done() {
    for (stage, name, said) in [
        (Stage::RouteResolved, "connect", "REQ"),
        (Stage::RepReceived, "establish", "RTU"),
        (Stage::RepReceived, "reject", "REJ1:28"),
        (Stage::RepReceived, "disconnect", "DREQ"),
        (Stage::ReqReceived, "accept", "REP"),
        (Stage::ReqReceived, "reject", "REJ0:28"),
        (Stage::RepSent, "disconnect", "DREQ"),
        (Stage::RepSent, "notify", ""),
        (Stage::Active, "disconnect", "DREQ"),
        (Stage::Passive, "disconnect", "DREQ"),
        (Stage::DreqSent, "disconnect", ""),
        (Stage::TimeWait, "disconnect", ""),
        (Stage::Ended, "disconnect", ""),
        (Stage::SidrReqReceived, "accept", "SIDR_REP:0"),
        (Stage::SidrReqReceived, "reject", "SIDR_REP:2"),
    ] {
        let mut talk = Talk::at(stage);
        verb(&mut talk, name).unwrap();
        assert_eq!(talk.said(), said, "{name} of {stage:?}");
    }
}
