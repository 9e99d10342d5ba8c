//! Readable names of enumeration values.

use std::ffi::{CStr, c_char};

fn name(names: &[&'static CStr], number: usize) -> *const c_char {
    names.get(number).copied().unwrap_or(c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node_type: i32) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(&NAMES, usize::try_from(node_type).unwrap_or(0))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: u32) -> *const c_char {
    const NAMES: [&CStr; 6] = [c"no change", c"down", c"init", c"armed", c"active", c"active defer"];
    name(&NAMES, state as usize)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: u32) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CQ error",
        c"QP fatal error",
        c"QP request error",
        c"QP access error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration error",
        c"device fatal error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregister",
        c"GID change",
        c"WQ fatal error",
    ];
    name(&NAMES, event as usize)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: u32) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"work request flushed",
        c"memory window bind error",
        c"bad response",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"retries exceeded",
        c"RNR retries exceeded",
        c"local RDD violation",
        c"remote invalid RD request",
        c"remote abort",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout",
        c"general error",
        c"tag matching error",
        c"tag matching rendezvous incomplete",
    ];
    name(&NAMES, status as usize)
}

/// Returns the name of an opcode. The function is newer than Debian 12: the driver libraries of Ubuntu 24.04, with
/// which perftest is linked, don't load without it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wr_opcode_str(opcode: u32) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"write",
        c"write with immediate",
        c"send",
        c"send with immediate",
        c"read",
        c"compare and swap",
        c"fetch and add",
        c"local invalidate",
        c"bind memory window",
        c"send with invalidate",
        c"TSO",
        c"driver's",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic write",
    ];
    name(&NAMES, opcode as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_names() {
        // SAFETY: constants.
        let text = |name| unsafe { CStr::from_ptr(name) }.to_str().unwrap();
        assert_eq!(text(ibv_wc_status_str(13)), "RNR retries exceeded");
        assert_eq!(text(ibv_event_type_str(8)), "device fatal error");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        assert_eq!(text(ibv_node_type_str(1)), "InfiniBand channel adapter");
        assert_eq!(
            (text(ibv_wr_opcode_str(9)), text(ibv_wr_opcode_str(15))),
            ("send with invalidate", "atomic write")
        );
        for unknown in [
            ibv_wr_opcode_str(16),
            ibv_wc_status_str(24),
            ibv_port_state_str(6),
            ibv_node_type_str(-1),
            ibv_event_type_str(20),
        ] {
            assert_eq!(text(unknown), "unknown");
        }
    }
}
