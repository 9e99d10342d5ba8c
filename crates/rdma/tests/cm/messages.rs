//! The effect of single messages on an identifier at each stage of its life (IBTA 12.9.5): correct ones, and ones with
//! one error.

use super::hosts::ip;
use super::peer::{Kind, NAME, OURS, STAGES, Stage, THEIRS, Talk};
use packet::roce::cm::{Ids, Message, Rej};

const ANSWERS: [Kind; 9] = [
    Kind::Mra(0),
    Kind::Mra(1),
    Kind::Rej,
    Kind::Rep,
    Kind::Rtu,
    Kind::Dreq,
    Kind::Drep,
    Kind::SidrRep(0),
    Kind::SidrRep(1),
];

/// Returns the effect of a message of the peer with the conversation's names, queue pair and transaction.
fn comes_of(stage: Stage, kind: Kind) -> &'static str {
    match (stage, kind) {
        (Stage::ReqSent, Kind::Mra(0)) | (Stage::RepSent, Kind::Mra(1)) => "later",
        (Stage::ReqSent, Kind::Rep) => "ConnectResponse:0",
        (Stage::ReqSent | Stage::RepReceived | Stage::ReqReceived | Stage::RepSent, Kind::Rej) => {
            "Rejected:28"
        }
        // The reply is repeated: the program is not ready, or the RTU was lost.
        (Stage::RepReceived, Kind::Rep) => "MRA1",
        (Stage::Active, Kind::Rep) => "RTU",
        (Stage::RepSent, Kind::Rtu) => "Established:0",
        // The peer never got the RTU.
        (Stage::Active, Kind::Rej) => "Disconnected:0",
        (
            Stage::RepReceived | Stage::RepSent | Stage::Active | Stage::Passive | Stage::DreqSent,
            Kind::Dreq,
        ) => "DREP Disconnected:0",
        (Stage::TimeWait, Kind::Dreq) => "DREP",
        (Stage::DreqSent, Kind::Drep) => "Disconnected:0",
        (Stage::SidrReqSent, Kind::SidrRep(0)) => "Established:0",
        (Stage::SidrReqSent, Kind::SidrRep(_)) => "Unreachable:1",
        _ if !is_known(stage) => unknown(kind),
        _ => "",
    }
}

/// Returns the effect of a message with a name that nobody has.
fn unknown(kind: Kind) -> &'static str {
    match kind {
        Kind::Rep => "REJ1:6",
        Kind::Dreq => "DREP",
        _ => "",
    }
}

/// Is true if the peer knows a name of the host that is still valid.
fn is_known(stage: Stage) -> bool {
    !matches!(
        stage,
        Stage::Idle
            | Stage::Bound
            | Stage::AddressResolved
            | Stage::RouteResolved
            | Stage::Listening
            | Stage::Ended
            | Stage::Rejected
            | Stage::Refused
            | Stage::Withdrawn
            | Stage::SidrReqReceived
            | Stage::SidrAnswered
            | Stage::SidrRefused
    )
}

#[test]
fn a_message_does_what_its_stage_lets_it() {
    for stage in STAGES {
        for kind in ANSWERS {
            assert_eq!(Talk::at(stage).tell(kind), comes_of(stage, kind), "{kind:?} at {stage:?}");
        }
    }
}

#[test]
fn a_message_of_another_conversation_does_nothing() {
    for stage in STAGES {
        for kind in ANSWERS {
            let nothing = if is_known(stage) { "" } else { unknown(kind) };
            let right = comes_of(stage, kind);
            let heard = |change: fn(&mut Talk)| {
                let mut talk = Talk::at(stage);
                let message = talk.message(kind);
                change(&mut talk);
                talk.hear(talk.from, talk.to, talk.transaction, message)
            };
            let context = format!("{kind:?} at {stage:?}");
            assert_eq!(heard(|talk| talk.from = ip("10.0.0.66")), nothing, "{context}");
            assert_eq!(heard(|talk| talk.to = ip("10.0.0.66")), nothing, "{context}");
            // A DREQ begins a transaction.
            let expected = if kind == Kind::Dreq { right } else { nothing };
            assert_eq!(heard(|talk| talk.transaction ^= 1), expected, "{context}");
        }
    }
}

fn renamed(mut message: Message, change: impl Fn(&mut Ids)) -> Message {
    match &mut message {
        Message::Mra { ids, .. }
        | Message::Rej(Rej { ids, .. })
        | Message::Rtu { ids, .. }
        | Message::Dreq { ids, .. }
        | Message::Drep { ids, .. } => change(ids),
        Message::Rep(rep) => change(&mut rep.ids),
        Message::SidrRep(rep) => {
            let mut ids = Ids { local: NAME, remote: rep.request };
            change(&mut ids);
            rep.request = ids.remote;
        }
        other => panic!("{other:?}"),
    }
    message
}

#[test]
fn a_message_with_wrong_names_does_nothing() {
    for stage in STAGES {
        for kind in ANSWERS {
            let heard = |change: fn(&mut Ids)| {
                let mut talk = Talk::at(stage);
                let message = renamed(talk.message(kind), change);
                talk.hear(talk.from, talk.to, talk.transaction, message)
            };
            let context = format!("{kind:?} at {stage:?}");
            assert_eq!(heard(|ids| ids.remote ^= 1), unknown(kind), "{context}");
            // The first answer tells the peer's name; a SIDR_REP has none.
            let tells_it = stage == Stage::ReqSent || matches!(kind, Kind::SidrRep(_));
            let nothing = if is_known(stage) { "" } else { unknown(kind) };
            let expected = if tells_it { comes_of(stage, kind) } else { nothing };
            assert_eq!(heard(|ids| ids.local ^= 1), expected, "{context}");
        }
    }
}

#[test]
fn a_dreq_is_of_the_queue_pair() {
    for stage in STAGES {
        let mut talk = Talk::at(stage);
        let Message::Dreq { ids, private, .. } = talk.message(Kind::Dreq) else { panic!() };
        for queue_pair in [OURS ^ 1, THEIRS, 0] {
            let nothing = if is_known(stage) { "" } else { "DREP" };
            let message = Message::Dreq { ids, queue_pair, private };
            assert_eq!(talk.hear(talk.from, talk.to, 5, message), nothing, "{stage:?}");
        }
    }
}

/// A peer that rejects without having got an answer knows only one name.
#[test]
fn a_rej_may_lack_a_name() {
    for stage in STAGES {
        let heard = |change: fn(&mut Ids)| {
            let mut talk = Talk::at(stage);
            let message = renamed(talk.message(Kind::Rej), change);
            talk.hear(talk.from, talk.to, talk.transaction, message)
        };
        let is_request = matches!(stage, Stage::ReqReceived | Stage::RepSent);
        let rejected = if is_request { "Rejected:28" } else { "" };
        assert_eq!(heard(|ids| ids.remote = 0), rejected, "{stage:?}");
        assert_eq!(heard(|ids| *ids = Ids { local: NAME ^ 1, remote: 0 }), "", "{stage:?}");
        assert_eq!(heard(|ids| ids.local = 0), comes_of(stage, Kind::Rej), "{stage:?}");
    }
}

/// The program receives a REJ's reason and private data.
#[test]
fn a_reason_is_told_with_what_the_peer_says() {
    let mut talk = Talk::at(Stage::ReqSent);
    let Message::Rej(mut rej) = talk.message(Kind::Rej) else { panic!() };
    (rej.reason, rej.private) = (0x0123, [7; 148]);
    assert_eq!(talk.hear(talk.from, talk.to, talk.transaction, Message::Rej(rej)), "Rejected:291");
    assert_eq!(talk.host.event().private, vec![7; 148]);
}
