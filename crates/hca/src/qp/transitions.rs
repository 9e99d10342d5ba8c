//! The attributes that a queue pair requires and accepts in each state transition (IBTA 11.2.5.2, table 91).

use uverbs::qp::mask::*;
use uverbs::{QpState, QpType};

/// The required and the optional attributes of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    pub required: u32,
    pub optional: u32,
}

/// Attributes that every transition may set.
const ALWAYS: u32 = STATE | CUR_STATE;

/// Returns the attributes of a transition; `None` if there is no such transition.
pub(crate) fn transition(kind: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use QpState as S;
    use QpType as T;
    let is_datagram = kind == T::Ud;
    let identity = PKEY_INDEX | PORT | if is_datagram { QKEY } else { ACCESS_FLAGS };
    let (required, optional) = match (from, to) {
        (_, S::Reset | S::Error) => (0, 0),
        (S::Reset, S::Init) => (identity, 0),
        (S::Init, S::Init) => (0, identity),
        (S::Init, S::ReadyToReceive) => match kind {
            T::Rc => (
                AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
                ACCESS_FLAGS | PKEY_INDEX,
            ),
            T::Uc => (AV | PATH_MTU | DEST_QPN | RQ_PSN, ACCESS_FLAGS | PKEY_INDEX),
            T::Ud => (0, PKEY_INDEX | QKEY),
        },
        (S::ReadyToReceive, S::ReadyToSend) => match kind {
            T::Rc => {
                (TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC, ACCESS_FLAGS | MIN_RNR_TIMER)
            }
            T::Uc => (SQ_PSN, ACCESS_FLAGS),
            T::Ud => (SQ_PSN, QKEY),
        },
        (S::ReadyToSend, S::ReadyToSend) | (S::SendQueueDrained, S::ReadyToSend) => (0, while_ready(kind)),
        (S::SendQueueError, S::ReadyToSend) if kind != T::Rc => (0, while_ready(kind)),
        (S::ReadyToSend, S::SendQueueDrained) => (0, EN_SQD_ASYNC_NOTIFY),
        (S::SendQueueDrained, S::SendQueueDrained) => (
            0,
            while_ready(kind) | PKEY_INDEX | if kind == T::Rc { TIMEOUT | RETRY_CNT | RNR_RETRY } else { 0 },
        ),
        _ => return None,
    };
    Some(Transition { required, optional: optional | ALWAYS })
}

const fn while_ready(kind: QpType) -> u32 {
    match kind {
        QpType::Rc => ACCESS_FLAGS | MIN_RNR_TIMER,
        QpType::Uc => ACCESS_FLAGS,
        QpType::Ud => QKEY,
    }
}

impl Transition {
    /// Is true if the transition accepts these attributes.
    pub const fn takes(self, mask: u32) -> bool {
        mask & self.required == self.required && mask & !(self.required | self.optional) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_a_connection() {
        let takes = |kind, from, to, mask| transition(kind, from, to).is_some_and(|t| t.takes(mask));
        let init = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
        assert!(takes(QpType::Rc, QpState::Reset, QpState::Init, init));
        assert!(!takes(QpType::Rc, QpState::Reset, QpState::Init, init & !PORT));
        assert!(!takes(QpType::Rc, QpState::Reset, QpState::Init, init | QKEY));
        assert!(!takes(QpType::Rc, QpState::Reset, QpState::ReadyToReceive, STATE));
        assert!(!takes(QpType::Rc, QpState::Error, QpState::Init, init));
        assert!(takes(QpType::Ud, QpState::Init, QpState::ReadyToReceive, STATE));
        assert!(takes(QpType::Ud, QpState::ReadyToReceive, QpState::ReadyToSend, STATE | SQ_PSN));
        for from in 0..7 {
            let from = QpState::from_number(from).unwrap_or_default();
            assert!(takes(QpType::Uc, from, QpState::Error, STATE));
            assert!(!takes(QpType::Uc, from, QpState::Reset, STATE | PORT));
        }
    }
}
