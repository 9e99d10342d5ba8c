//! Structures compared with the headers of `librdmacm-dev`.

use rdmacm::abi::{AddrInfo, CmEvent, CmId, ConnParam, EventChannel, JoinMcAttrEx, UdParam};
use rdmacm::address::SockaddrIb;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

/// Questions to the compiler, and the expected answers.
#[derive(Default)]
struct Questions {
    program: String,
    expected: Vec<(String, usize)>,
}

impl Questions {
    fn ask(&mut self, expression: String, expected: usize) {
        writeln!(self.program, "  printf(\"%zu\\n\", (size_t)({expression}));").unwrap();
        self.expected.push((expression, expected));
    }
}

/// Compares the size of a structure, if it is complete, and the offsets of its members, with their names in C if those
/// differ.
macro_rules! compare {
    ($questions:ident, $rust:ty = $c:literal $(, $size:ident)? { $($member:ident $(= $name:literal)?),* $(,)? }) => {{
        $(compare!(@ $size $questions, $rust, $c);)?
        $({
            #[allow(unused_mut, unused_assignments)]
            let mut name = stringify!($member);
            $(name = $name;)?
            $questions.ask(format!("offsetof({}, {name})", $c), offset_of!($rust, $member));
        })*
    }};
    (@ whole $questions:ident, $rust:ty, $c:literal) => {
        $questions.ask(format!("sizeof({})", $c), size_of::<$rust>());
    };
}

fn questions() -> Questions {
    let mut q = Questions::default();
    compare!(
        q,
        CmId = "struct rdma_cm_id",
        whole {
            verbs,
            channel,
            context,
            qp,
            route,
            ps,
            port_num,
            event,
            send_cq_channel,
            send_cq,
            recv_cq_channel,
            recv_cq,
            srq,
            pd,
            qp_type,
        }
    );
    compare!(q, rdmacm::abi::Addr = "struct rdma_addr", whole {
        src_addr, dst_addr, sgid = "addr.ibaddr.sgid", dgid = "addr.ibaddr.dgid", pkey = "addr.ibaddr.pkey",
    });
    compare!(q, rdmacm::abi::Route = "struct rdma_route", whole { addr, path_rec, num_paths });
    compare!(q, EventChannel = "struct rdma_event_channel", whole { fd });
    compare!(
        q,
        ConnParam = "struct rdma_conn_param",
        whole {
            private_data,
            private_data_len,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            srq,
            qp_num,
        }
    );
    compare!(
        q,
        UdParam = "struct rdma_ud_param",
        whole { private_data, private_data_len, ah_attr, qp_num, qkey }
    );
    compare!(
        q,
        SockaddrIb = "struct sockaddr_ib",
        whole { sib_family, sib_pkey, sib_flowinfo, sib_addr, sib_sid, sib_sid_mask, sib_scope_id }
    );
    compare!(q, JoinMcAttrEx = "struct rdma_cm_join_mc_attr_ex", whole { comp_mask, join_flags, addr });
    compare!(q, CmEvent = "struct rdma_cm_event", whole { id, listen_id, event, status, param });
    compare!(
        q,
        AddrInfo = "struct rdma_addrinfo",
        whole {
            ai_flags,
            ai_family,
            ai_qp_type,
            ai_port_space,
            ai_src_len,
            ai_dst_len,
            ai_src_addr,
            ai_dst_addr,
            ai_src_canonname,
            ai_dst_canonname,
            ai_route_len,
            ai_route,
            ai_connect_len,
            ai_connect,
            ai_next,
        }
    );
    q
}

#[test]
fn structures_are_those_of_the_headers() {
    let header = std::path::Path::new("/usr/include/rdma/rdma_verbs.h");
    assert!(header.exists(), "librdmacm-dev is not installed: its headers are what this compares with");
    let Questions { program, expected } = questions();
    let directory = tempfile::tempdir().unwrap();
    let (source, binary) = (directory.path().join("layout.c"), directory.path().join("layout"));
    let includes = "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/ib.h>\n#include <rdma/rdma_cma.h>\n#include <rdma/rdma_verbs.h>\n";
    std::fs::write(&source, format!("{includes}int main(void) {{\n{program}  return 0;\n}}\n")).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&binary).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&binary).output().unwrap();
    let real: Vec<usize> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(real.len(), expected.len());
    let wrong: Vec<_> = expected.iter().zip(&real).filter(|((_, ours), real)| ours != *real).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(size_of::<CmId>(), 416);
}
