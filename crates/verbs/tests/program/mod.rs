//! Shorthands for a program's use of the library: two queue pairs on one device that communicate.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails by panicking, and not all of them use all of this"
)]

/// Makes each of these functions a test in each way, except those between a container and a virtual machine.
#[allow(unused_macros, reason = "not all tests use it")]
macro_rules! most_ways {
    ($($name:ident)*) => {
        mod copied {
            $(#[test] fn $name() { super::$name(super::Way::Copied); })*
        }
        mod shared {
            $(#[test] fn $name() { super::$name(super::Way::Shared); })*
        }
        mod own_windows {
            $(#[test] fn $name() { super::$name(super::Way::OwnWindows); })*
        }
        mod common_window {
            $(#[test] fn $name() { super::$name(super::Way::CommonWindow); })*
        }
    };
}

/// Makes each of these functions a test in each way.
#[allow(unused_macros, reason = "not all tests use it")]
macro_rules! all_ways {
    ($($name:ident)*) => {
        most_ways! { $($name)* }
        mod to_machine {
            $(#[test] fn $name() { super::$name(super::Way::ToMachine); })*
        }
        mod from_machine {
            $(#[test] fn $name() { super::$name(super::Way::FromMachine); })*
        }
    };
}

pub mod pages;
pub mod two;

use hca::{ClientDescription, Device, DeviceSpec, Fabric, GrantedMemory, Limits, Window};
use std::ffi::{CStr, c_int};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use uverbs::qp::mask;
use uverbs::{Uuid, WindowKind};
use verbs::abi::*;
use verbs::{address, completion, context, device, memory, modify, post, queue_pair};

const PATIENCE: Duration = Duration::from_secs(20);

/// Number of guests, all on one host and network, each with one device.
pub const DEVICES: usize = 28;
/// From this index on, each device trusts the one after it.
pub const TRUSTING: usize = 6;
/// From this index on, devices have windows, and programs use them as in virtual machines.
pub const WINDOWED: usize = 12;
/// From this index on, each of those also trusts the one after it, and the two have a window in common.
pub const COMMON: usize = 16;
/// From this index on, the first of each two such devices has programs that use it as in containers.
pub const TO_MACHINE: usize = 20;
/// From this index on, the second of each two has them.
pub const FROM_MACHINE: usize = 24;
/// Maximum number of memory regions of an application.
pub const REGIONS: u32 = 64;

/// The way in which messages travel between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Copied,
    Shared,
    /// Each program has a window of its own; the device copies.
    OwnWindows,
    /// Both programs have their memory in one window.
    CommonWindow,
    /// Messages go from a program in a container to one in a virtual machine.
    ToMachine,
    /// Messages go from a program in a virtual machine to one in a container.
    FromMachine,
}

impl Way {
    pub const ALL: [Self; 6] = [
        Self::Copied,
        Self::Shared,
        Self::OwnWindows,
        Self::CommonWindow,
        Self::ToMachine,
        Self::FromMachine,
    ];
    /// Returns the index of the first of the two devices.
    pub const fn first(self) -> usize {
        match self {
            Self::Copied => 0,
            Self::Shared => TRUSTING,
            Self::OwnWindows => WINDOWED,
            Self::CommonWindow => COMMON,
            Self::ToMachine => TO_MACHINE,
            Self::FromMachine => FROM_MACHINE,
        }
    }

    pub const fn shares(self) -> bool {
        !matches!(self, Self::Copied | Self::OwnWindows)
    }
}

struct Host {
    devices: Vec<Mutex<Option<Device>>>,
}

/// A policy that lets all communicate with all.
pub struct NoRules;

impl hca::Rules for NoRules {
    fn lets(&self, _: u16, _: &hca::RoceFlow, _: u16) -> bool {
        true
    }
}

/// Creates a device, and the port through which its packets leave; most devices need no port.
pub fn device_at(
    path: &Path,
    index: usize,
    fabric: &Arc<Fabric>,
    trust: Option<String>,
) -> (Device, mem::Opened) {
    let number = u8::try_from(index).unwrap() + 1;
    let spec = DeviceSpec {
        guest: format!("vm{number}"),
        vrf: 1,
        mac: [2, 0, 0, 0, 0, number],
        addresses: vec![IpAddr::V4(address_of(index))],
        mtu: 1500,
        limits: Limits { qps: 64, mrs: REGIONS, registered: 1 << 30, ..Limits::default() },
        trust,
        is_watched: false,
        rate: None,
    };
    let socket = sockets::Place { path: path.into(), owner: None, mode: 0o600 };
    let (port, uplink, downlink) = ringport::open(&ringport::RingPort { mtu: 1500, slots: 64 }).unwrap();
    let device = Device::open(spec, &socket, &sockets::Here, fabric, uplink, downlink).unwrap();
    device.set_port(number.into());
    (device, port)
}

/// Creates a window of 64 MiB, for a guest or a trust.
fn window(path: &Path, kind: WindowKind, name: &str) -> Arc<Window> {
    const BYTES: u64 = 64 << 20;
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(uverbs::window::DATA + BYTES).unwrap();
    let mut uuid = Uuid::default();
    rustix::rand::getrandom(&mut uuid.0, rustix::rand::GetRandomFlags::empty()).unwrap();
    Window::open(file.into(), kind, uuid, name).unwrap()
}

/// Gives a device windows, as a device of a virtual machine has them: its own, and perhaps a common one. Returns its
/// own.
pub fn open_windows(device: &Device, path: &Path, common: Option<&Arc<Window>>) -> Arc<Window> {
    let window = window(&path.with_extension("window"), WindowKind::Own, "a guest");
    device.set_windows(Some(window.clone()), common.cloned()).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(path.with_extension("stream")).unwrap();
    device.listen_streams(listener.into()).unwrap();
    window
}

/// Returns the name of such a device for programs.
pub fn name_of(path: &Path, common: Option<&Path>) -> String {
    let common = common.map_or_else(String::new, |path| format!("+{}", path.display()));
    let (own, socket) = (path.with_extension("window"), path.with_extension("stream"));
    format!("{}{common}@{}", own.display(), socket.display())
}

pub fn common_window(path: &Path) -> Arc<Window> {
    window(path, WindowKind::Common, "a trust")
}

/// The directory of sockets and windows, which is removed when the tests end.
static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

extern "C" fn remove_directory() {
    let _ = DIRECTORY.get().map(std::fs::remove_dir_all);
}

/// Returns the host. Sets the variable that names its devices before any use.
fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        // The files of windows must be memory.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap().keep();
        DIRECTORY.set(directory.clone()).unwrap();
        // SAFETY: a function that may be called at the end.
        unsafe { libc::atexit(remove_directory) };
        let fabric = Arc::new(Fabric::new(Box::new(NoRules)));
        let mut common = None;
        let opened = (0..DEVICES).map(|index| {
            let path = directory.join(format!("{index}"));
            let trusts = (TRUSTING..WINDOWED).contains(&index) || index >= COMMON;
            let device = device_at(&path, index, &fabric, trusts.then(|| format!("pair {}", index / 2))).0;
            let place = match index {
                0..WINDOWED => path.display().to_string(),
                WINDOWED..COMMON => {
                    open_windows(&device, &path, None);
                    name_of(&path, None)
                }
                _ => {
                    if index % 2 == 0 {
                        let path = path.with_extension("common");
                        common = Some((path.clone(), common_window(&path)));
                    }
                    let window = common.as_ref().map(|(_, window)| window);
                    if index >= TO_MACHINE && (index % 2 == 0) == (index < FROM_MACHINE) {
                        device.set_windows(None, window.cloned()).unwrap();
                        path.display().to_string()
                    } else {
                        open_windows(&device, &path, window);
                        name_of(&path, common.as_ref().map(|(path, _)| &**path))
                    }
                }
            };
            (Mutex::new(Some(device)), place)
        });
        let (devices, places): (Vec<_>, Vec<_>) = opened.unzip();
        // SAFETY: nobody reads it yet: whoever opens a device comes by here first.
        unsafe { std::env::set_var("VIADUCT_RDMA", places.join(":")) };
        Host { devices }
    })
}

const fn address_of(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, index as u8 + 1)
}

/// Returns the second of the device's GIDs, which peers use.
pub fn gid(index: usize) -> ibv_gid {
    ibv_gid { raw: address_of(index).to_ipv6_mapped().octets() }
}

/// Returns the device's report about its applications. Waits for all threads, unlike `Device::describe`: a busy machine
/// may give a thread no CPU for a while.
pub fn described(index: usize) -> Vec<ClientDescription> {
    let asked = host().devices[index].lock().unwrap().as_ref().unwrap().ask();
    asked.wait(Instant::now() + PATIENCE)
}

/// Returns the grants that others got to the memory of the device's applications.
pub fn given(index: usize) -> Vec<GrantedMemory> {
    let holders = host().devices[index].lock().unwrap().as_ref().unwrap().holders();
    holders.into_iter().map(|holder| holder.given).collect()
}

/// Ends the device, and with it its applications' connections.
pub fn end(index: usize) {
    drop(host().devices[index].lock().unwrap().take());
}

pub fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "what was awaited did not come");
        std::thread::yield_now();
    }
}

pub fn errno() -> c_int {
    // SAFETY: it is the thread's own.
    unsafe { *libc::__errno_location() }
}

pub fn open(index: usize) -> *mut ibv_context {
    host();
    // SAFETY: the list has as many devices as it says, which live on when it is freed; their names end with
    // zeros.
    unsafe {
        let mut count = 0;
        let list = device::ibv_get_device_list(&mut count);
        assert_eq!(count as usize, DEVICES);
        let chosen = list.add(index).read();
        device::ibv_free_device_list(list);
        let name = CStr::from_ptr(device::ibv_get_device_name(chosen)).to_str().unwrap();
        assert_eq!(name, format!("viaduct{index}"));
        let context = context::ibv_open_device(chosen);
        assert!(!context.is_null());
        context
    }
}

/// Bytes in pages of their own, from the middle of a page on. Programs in one process whose memory is in different
/// windows can't share a page.
pub struct Bytes {
    start: *mut u8,
    len: usize,
}

impl Bytes {
    /// Offset of the bytes in their first page.
    const BEFORE: usize = 1024;

    fn pages(len: usize) -> usize {
        (Self::BEFORE + len).next_multiple_of(4096)
    }

    pub fn new(bytes: &[u8]) -> Self {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, with room for as many bytes.
        unsafe {
            let pages = libc::mmap(null_mut(), Self::pages(bytes.len()), access, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let start = pages.cast::<u8>().add(Self::BEFORE);
            start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            Self { start, len: bytes.len() }
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: they are there until `drop`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: it was mapped so.
        unsafe { libc::munmap(self.start.sub(Self::BEFORE).cast(), Self::pages(self.len)) };
    }
}

pub struct Buffer {
    pub bytes: Bytes,
    pub mr: *mut ibv_mr,
}

impl Buffer {
    pub fn new(pd: *mut ibv_pd, bytes: &[u8]) -> Self {
        Self::with(pd, bytes, 15)
    }

    /// Registers a copy of these bytes with these access flags.
    pub fn with(pd: *mut ibv_pd, bytes: &[u8], access: c_int) -> Self {
        let mut bytes = Bytes::new(bytes);
        // SAFETY: the domain is the test's, and the memory is there until it is deregistered.
        let mr = unsafe { memory::ibv_reg_mr(pd, bytes.as_mut_ptr().cast(), bytes.len(), access) };
        assert!(!mr.is_null(), "{}", errno());
        Self { bytes, mr }
    }

    pub fn forget(&mut self) {
        // SAFETY: it is registered, and whoever forgets it does not use it any more.
        assert_eq!(unsafe { memory::ibv_dereg_mr(self.mr) }, 0);
    }

    pub fn sge(&mut self) -> ibv_sge {
        let (addr, length) = (self.bytes.as_mut_ptr() as u64, self.bytes.len() as u32);
        // SAFETY: it is registered.
        ibv_sge { addr, length, lkey: unsafe { (*self.mr).lkey } }
    }
}

pub fn forget<const N: usize>(buffers: [&mut Buffer; N]) {
    buffers.into_iter().for_each(Buffer::forget);
}

pub struct Pair {
    pub index: usize,
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub qps: [*mut ibv_qp; 2],
}

pub const DEPTH: u32 = 4;
/// Number of places of the smallest completion queue, unless it is resized.
pub const FEWEST: u32 = 16;

impl Pair {
    pub fn new(index: usize, qp_type: u32) -> Self {
        let context = open(index);
        // SAFETY: the context was just opened.
        let cq = unsafe { completion::ibv_create_cq(context, 16, null_mut(), null_mut(), 0) };
        Self::with(index, context, cq, null_mut(), qp_type)
    }

    pub fn with(
        index: usize,
        context: *mut ibv_context,
        cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        qp_type: u32,
    ) -> Self {
        assert!(!cq.is_null());
        // SAFETY: the context is the test's until its end.
        let pd = unsafe { memory::ibv_alloc_pd(context) };
        let qps = [(); 2].map(|()| create(context, pd, [cq; 2], srq, qp_type));
        let pair = Self { index, context, pd, cq, qps };
        for (at, qp) in qps.into_iter().enumerate() {
            // SAFETY: it was just made.
            connect(qp, index, unsafe { (*qps[1 - at]).qp_num });
        }
        pair
    }

    pub fn completions(&self, count: usize) -> Vec<ibv_wc> {
        take(self.cq, count)
    }

    pub fn poll(&self) -> Vec<ibv_wc> {
        poll(self.cq)
    }

    pub fn destroy(self) {
        // SAFETY: they are the test's, which uses them no more, and nothing is left that needs them.
        unsafe {
            for qp in self.qps {
                assert_eq!(queue_pair::ibv_destroy_qp(qp), 0);
            }
            assert_eq!(completion::ibv_destroy_cq(self.cq), 0);
            assert_eq!(memory::ibv_dealloc_pd(self.pd), 0);
            assert_eq!(context::ibv_close_device(self.context), 0);
        }
    }
}

/// Returns the completions that are in the queue now, up to 8.
pub fn poll(cq: *mut ibv_cq) -> Vec<ibv_wc> {
    let mut room = [ibv_wc::default(); 8];
    // SAFETY: the queue is the test's, which did not destroy it; there is room for as many completions.
    let taken = unsafe { completion::poll_cq(cq, 8, room.as_mut_ptr()) };
    room[..usize::try_from(taken).unwrap()].to_vec()
}

pub fn take(cq: *mut ibv_cq, count: usize) -> Vec<ibv_wc> {
    let mut found = Vec::new();
    until(|| {
        found.extend(poll(cq));
        found.len() >= count
    });
    assert_eq!(found.len(), count);
    found
}

pub fn create(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cqs: [*mut ibv_cq; 2],
    srq: *mut ibv_srq,
    qp_type: u32,
) -> *mut ibv_qp {
    create_of(DEPTH, context, pd, cqs, srq, qp_type)
}

/// Creates a queue pair with room for this many requests of each kind.
pub fn create_of(
    depth: u32,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    [send_cq, recv_cq]: [*mut ibv_cq; 2],
    srq: *mut ibv_srq,
    qp_type: u32,
) -> *mut ibv_qp {
    let cap = ibv_qp_cap {
        max_send_wr: depth,
        max_recv_wr: depth,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 64,
    };
    // SAFETY: numbers and pointers, which may all be zero.
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.send_cq, attr.recv_cq, attr.srq, attr.cap, attr.qp_type, attr.pd) =
        (send_cq, recv_cq, srq, cap, qp_type, pd);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = 1 << IBV_WR_SEND;
    // SAFETY: context, domain and queues are the test's, and the attributes are whole.
    let qp = unsafe { queue_pair::create_qp_ex(context, &mut attr) };
    assert!(!qp.is_null());
    qp
}

/// Returns attributes for a state, and the mask that selects them.
pub fn attributes(qp_type: u32, qp_state: u32, peer: usize, dest_qp_num: u32) -> (ibv_qp_attr, u32) {
    let mut attr = ibv_qp_attr {
        qp_state,
        path_mtu: 3,
        qkey: 3,
        dest_qp_num,
        qp_access_flags: 15,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        port_num: 1,
        timeout: 13,
        retry_cnt: 4,
        rnr_retry: 7,
        ..ibv_qp_attr::default()
    };
    attr.ah_attr = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
    (attr.ah_attr.grh.dgid, attr.ah_attr.grh.sgid_index) = (gid(peer), 1);
    let connected = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
    let reliable = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
    let needed = match (qp_state, qp_type) {
        (1, IBV_QPT_UD) => mask::PKEY_INDEX | mask::PORT | mask::QKEY,
        (1, _) => mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
        (IBV_QPS_RTR, IBV_QPT_RC) => connected | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER,
        (IBV_QPS_RTR, IBV_QPT_UC) => connected,
        (IBV_QPS_RTS, IBV_QPT_RC) => mask::SQ_PSN | reliable,
        (IBV_QPS_RTS, _) => mask::SQ_PSN,
        _ => 0,
    };
    (attr, mask::STATE | needed)
}

/// Changes a queue pair to the state in which it sends.
pub fn connect(qp: *mut ibv_qp, peer: usize, dest_qp_num: u32) {
    for state in [1, IBV_QPS_RTR, IBV_QPS_RTS] {
        // SAFETY: the queue pair is the test's, which did not destroy it.
        let (mut attr, mask) = attributes(unsafe { (*qp).qp_type }, state, peer, dest_qp_num);
        // SAFETY: the queue pair is the test's, and the attributes are whole.
        assert_eq!(unsafe { modify::ibv_modify_qp(qp, &mut attr, mask as c_int) }, 0, "to {state}");
    }
}

/// Changes a queue pair to a state that needs no peer.
pub fn modify_to(qp: *mut ibv_qp, qp_state: u32) -> c_int {
    // SAFETY: the queue pair is the test's, which did not destroy it.
    let (mut attr, mask) = attributes(unsafe { (*qp).qp_type }, qp_state, 0, 0);
    // SAFETY: the queue pair is the test's, and the attributes are whole.
    unsafe { modify::ibv_modify_qp(qp, &mut attr, mask as c_int) }
}

/// Returns a signaled SEND.
pub fn send(id: u64, list: &mut [ibv_sge]) -> ibv_send_wr {
    // SAFETY: numbers and pointers, which may all be zero.
    let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (id, IBV_WR_SEND, 2);
    (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), list.len() as c_int);
    wr
}

/// Posts; returns the result and the identifier of the request that was refused.
pub fn post_send(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> (c_int, Option<u64>) {
    let mut bad = null_mut();
    // SAFETY: the queue pair is the test's, which did not destroy it; requests and lists are whole, and what
    // they lead to is there or refused.
    unsafe { (post::post_send(qp, wr, &mut bad), bad.as_ref().map(|bad| bad.wr_id)) }
}

pub fn receive(id: u64, list: &mut [ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: list.as_mut_ptr(), num_sge: list.len() as c_int }
}

pub fn post_receive(qp: *mut ibv_qp, wr: &mut ibv_recv_wr) -> (c_int, Option<u64>) {
    let mut bad = null_mut();
    // SAFETY: the queue pair is the test's, which did not destroy it; requests and lists are whole, and what
    // they lead to is there or refused.
    unsafe { (post::post_recv(qp, wr, &mut bad), bad.as_ref().map(|bad| bad.wr_id)) }
}

pub fn handle(pd: *mut ibv_pd, index: usize) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
    (attr.grh.dgid, attr.grh.sgid_index) = (gid(index), 1);
    // SAFETY: the domain is the test's, and the attributes are whole.
    unsafe { address::ibv_create_ah(pd, &mut attr) }
}
