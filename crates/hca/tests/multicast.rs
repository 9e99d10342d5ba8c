//! Datagrams to multicast groups.

use crate::common::{
    App, Cq, Host, IP, Qp, SIGNALED, described, frame, gid, next, put, sealed, segment, until, vector,
};
use hca::Device;
use rustix::io::Errno;
use std::net::{Ipv4Addr, Ipv6Addr};
use uverbs::qp::access;
use uverbs::{QpType, Request, WorkRequest};

const GROUP_QPN: u32 = 0xff_ffff;
const QKEY: u32 = 0x1234;
/// Offset of an IPv4 header in a frame, and of the base transport header after it and UDP.
const BTH: usize = IP + 20 + 8;

fn group() -> Ipv6Addr {
    Ipv4Addr::new(239, 129, 2, 3).to_ipv6_mapped()
}

/// An application with a queue pair of datagrams and posted receives.
struct Member {
    app: App,
    cq: Cq,
    qp: Qp,
    /// Memory to send from, and memory to receive into.
    text: Box<[u8]>,
    buffer: Box<[u8]>,
    key: u32,
}

impl Member {
    fn new(host: &Host, number: u8) -> Self {
        let mut app = App::attach(&host.socket(number));
        let cq = app.cq(64, None);
        let mut qp = app.qp(QpType::Ud, &cq, None);
        app.connect(&qp, QpType::Ud, gid(number), 0);
        let (text, buffer): (Box<[u8]>, Box<[u8]>) = (vec![0; 64].into(), vec![0; 4096].into());
        let (key, into) = (app.register(&text, 0), app.register(&buffer, access::ALL));
        for id in 0..4 {
            app.post_receive(&mut qp, 100 + id, &[segment(&buffer, into)]);
        }
        Self { app, cq, qp, text, buffer, key }
    }

    fn attach(&mut self, gid: Ipv6Addr) -> Result<(), i32> {
        let asked = self.app.ask(&Request::AttachMcast { qpn: self.qp.qpn, gid });
        asked.map(drop).map_err(|refusal| refusal.errno)
    }

    fn detach(&mut self, gid: Ipv6Addr) -> Result<(), i32> {
        let asked = self.app.ask(&Request::DetachMcast { qpn: self.qp.qpn, gid });
        asked.map(drop).map_err(|refusal| refusal.errno)
    }

    fn send(&mut self, to: Ipv6Addr, text: &[u8]) {
        self.text[..text.len()].copy_from_slice(text);
        let ah = self.app.handle(&Request::CreateAh { pd: self.app.pd, vector: vector(to) });
        let (remote_qpn, remote_qkey) = (GROUP_QPN, QKEY);
        let request = WorkRequest {
            id: 1,
            ah,
            remote_qpn,
            remote_qkey,
            opcode: 2,
            flags: SIGNALED,
            ..WorkRequest::default()
        };
        self.app.post_send(&mut self.qp, request, &[segment(&self.text[..text.len()], self.key)]);
        let sent = next(&mut self.cq);
        assert_eq!((sent.id, sent.status), (1, 0), "its own message does not come before that, nor at all");
    }

    /// Waits for the next message, and returns its text.
    fn received(&mut self) -> String {
        let done = next(&mut self.cq);
        assert!((100..104).contains(&done.id) && done.status == 0, "{done:?}");
        // The network header is the group's.
        assert_eq!((self.buffer[20], &self.buffer[36..40]), (0x45, &group().octets()[12..]));
        String::from_utf8(self.buffer[40..done.byte_len as usize].to_vec()).unwrap()
    }

    fn errors(&self, device: &Device, name: &str) -> u64 {
        device.counters(&described(device)).iter().find(|(counter, _)| *counter == name).unwrap().1
    }
}

#[test]
fn a_message_reaches_who_is_attached() {
    let (host, other) = (Host::new(), Host::new());
    let (_here, mut port) = host.device_with_port(1, 1);
    let (_there, mut far_port) = other.device_with_port(2, 1);
    let [mut sender, mut sibling, mut stranger] = [(); 3].map(|()| Member::new(&host, 1));
    let mut far = [(); 2].map(|()| Member::new(&other, 2));
    for member in [&mut sender, &mut sibling].into_iter().chain(&mut far) {
        member.attach(group()).unwrap();
        member.attach(group()).unwrap();
    }
    stranger.attach(Ipv4Addr::new(239, 1, 2, 4).to_ipv6_mapped()).unwrap();
    sender.send(group(), b"to all");
    assert_eq!(sibling.received(), "to all");
    let sent = frame(&mut port);
    let (macs, to) = ([1, 0, 0x5e, 1, 2, 3, 2, 0, 0, 0, 0, 1], [239, 129, 2, 3]);
    assert_eq!((&sent[..12], &sent[IP + 16..IP + 20]), (&macs[..], &to[..]));
    assert_eq!((&sent[IP + 22..IP + 24], &sent[BTH + 5..BTH + 8]), (&[0x12, 0xb7][..], &[0xff; 3][..]));
    put(&mut far_port, &sent);
    far.iter_mut().for_each(|member| assert_eq!(member.received(), "to all"));
    // Each received it once; a detached queue pair receives no more, and a sender need not be attached.
    sibling.detach(group()).unwrap();
    stranger.send(group(), b"again");
    put(&mut far_port, &frame(&mut port));
    far.iter_mut().for_each(|member| assert_eq!(member.received(), "again"));
    assert_eq!(sender.received(), "again");
    sibling.attach(group()).unwrap();
    sender.send(group(), b"last");
    assert_eq!(sibling.received(), "last");
}

#[test]
fn what_a_wire_brings_is_checked() {
    let (host, other) = (Host::new(), Host::new());
    let (_here, mut port) = host.device_with_port(1, 1);
    let (there, mut far_port) = other.device_with_port(2, 1);
    let (mut sender, mut member) = (Member::new(&host, 1), Member::new(&other, 2));
    member.attach(group()).unwrap();
    sender.send(group(), b"text");
    let good = frame(&mut port);
    let qpn = member.qp.qpn.to_be_bytes();
    let unready = member.app.qp(QpType::Rc, &member.cq, None).qpn.to_be_bytes();
    let wrong = [
        // To a queue pair of the group's; to the group's number at a unicast address; with another key; for another
        // group; of another partition; for a queue pair that is not ready.
        sealed(good.clone(), |frame| frame[BTH + 5..BTH + 8].copy_from_slice(&qpn[1..])),
        sealed(good.clone(), |frame| frame[IP + 16..IP + 20].copy_from_slice(&[10, 1, 1, 2])),
        sealed(good.clone(), |frame| frame[BTH + 12] ^= 1),
        sealed(good.clone(), |frame| frame[IP + 19] ^= 1),
        sealed(good.clone(), |frame| frame[BTH + 3] ^= 1),
        sealed(good.clone(), |frame| {
            frame[IP + 16..IP + 20].copy_from_slice(&[10, 1, 1, 2]);
            frame[BTH + 5..BTH + 8].copy_from_slice(&unready[1..]);
        }),
    ];
    wrong.iter().for_each(|frame| put(&mut far_port, frame));
    let mut spoilt = good.clone();
    spoilt[BTH + 24] ^= 1;
    put(&mut far_port, &spoilt);
    for len in IP..good.len() {
        put(&mut far_port, &good[..len]);
    }
    put(&mut far_port, &good);
    assert_eq!(member.received(), "text");
    for name in [
        "rx_icrc_encapsulated",
        "qkey_violations",
        "pkey_violations",
        "rcvd_pkts_unknown_group",
        "rcvd_pkts_not_taken",
    ] {
        assert_eq!(member.errors(&there, name), 1, "{name}");
    }
    // Three receives are left.
    (0..4).for_each(|_| put(&mut far_port, &good));
    until(|| member.errors(&there, "out_of_buffer") == 1);
    assert!(member.errors(&there, "rcvd_pkts_malformed") >= 2);
}

#[test]
fn what_cannot_be_is_refused() {
    let host = Host::new();
    let device = host.device(1);
    let mut member = Member::new(&host, 1);
    let info = member.app.info.clone();
    assert_eq!(
        (info.max_mcast_grp, info.max_mcast_qp_attach, info.max_total_mcast_qp_attach),
        (1024, 128, 4096)
    );
    let invalid = Err(Errno::INVAL.raw_os_error());
    for nobody in
        [gid(1), Ipv6Addr::UNSPECIFIED, Ipv4Addr::BROADCAST.to_ipv6_mapped(), "fe80::1".parse().unwrap()]
    {
        assert_eq!(member.attach(nobody), invalid);
    }
    assert_eq!(member.detach(group()), invalid);
    let connected = member.app.qp(QpType::Rc, &member.cq, None).qpn;
    let refused = |app: &mut App, request: &Request| app.ask(request).unwrap_err().errno;
    let attach = |qpn| Request::AttachMcast { qpn, gid: group() };
    assert_eq!(refused(&mut member.app, &attach(connected)), Errno::INVAL.raw_os_error());
    assert_eq!(refused(&mut member.app, &attach(connected ^ 1)), Errno::INVAL.raw_os_error());
    // As with Linux, an attached queue pair can't be destroyed.
    member.attach(group()).unwrap();
    let destroy = Request::DestroyQp { qpn: member.qp.qpn };
    assert_eq!(refused(&mut member.app, &destroy), Errno::BUSY.raw_os_error());
    member.detach(group()).unwrap();
    member.app.ask(&destroy).unwrap();
    drop(device);
}

#[test]
fn who_is_gone_is_attached_no_more() {
    let host = Host::new();
    let (device, mut port) = host.device_with_port(1, 1);
    let mut stays = Member::new(&host, 1);
    // As many as allowed, twice.
    for _ in 0..2 {
        let mut gone = Member::new(&host, 1);
        for number in 0..1024_u32 {
            gone.attach(Ipv4Addr::from(0xef00_0000 + number).to_ipv6_mapped()).unwrap();
        }
        assert_eq!(stays.attach(group()), Err(Errno::NOMEM.raw_os_error()));
        drop(gone);
        until(|| device.describe().len() == 1);
    }
    stays.attach(group()).unwrap();
    stays.send(group(), b"anybody?");
    frame(&mut port);
}
