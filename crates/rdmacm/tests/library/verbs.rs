//! A `libibverbs` with two devices, whose objects only remember the calls.

use crate::devices::{ADDRESSES, DEVICES as PLACES};
use crate::fabric;
use libc::{c_char, c_int};
use rdmacm::abi::{
    Context, Device, DeviceAttr, Gid, Pd, Qp, QpAttr, QpInitAttr, Srq, SrqInitAttr, VIADUCT, ViaductDevice,
};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::{LazyLock, Mutex};

/// Attributes and masks with which queue pairs were modified, by their numbers.
static MODIFIED: Mutex<BTreeMap<u32, Vec<(QpAttr, u32)>>> = Mutex::new(BTreeMap::new());

/// Returns the attributes and masks with which a queue pair was modified.
pub fn modified(qp: *mut Qp) -> Vec<(QpAttr, u32)> {
    // SAFETY: a test asks for a queue pair that it has not destroyed.
    MODIFIED.lock().unwrap().get(&unsafe { (*qp).qp_num }).cloned().unwrap_or_default()
}

/// Groups to which queue pairs are attached, by their numbers.
static ATTACHED: Mutex<BTreeMap<u32, Vec<Ipv6Addr>>> = Mutex::new(BTreeMap::new());

/// A group to which no queue pair can be attached: it is full.
pub const FULL: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0xefff, 0xffff);

pub fn attached(qp: *mut Qp) -> Vec<Ipv6Addr> {
    // SAFETY: a test asks for a queue pair that it has not destroyed.
    groups_of(unsafe { (*qp).qp_num })
}

/// Returns the groups to which the queue pair with this number is attached.
pub fn groups_of(number: u32) -> Vec<Ipv6Addr> {
    ATTACHED.lock().unwrap().get(&number).cloned().unwrap_or_default()
}

struct Devices(Vec<(*mut Device, *mut Context)>);

// SAFETY: they are made once, and nobody changes them or lets them go.
unsafe impl Send for Devices {}
// SAFETY: as above.
unsafe impl Sync for Devices {}

static DEVICES: LazyLock<Devices> = LazyLock::new(|| {
    let device = |place: &uverbs::Endpoint| {
        // SAFETY: numbers and pointers, which may all be zero.
        let mut device: ViaductDevice = unsafe { std::mem::zeroed() };
        let write = |to: &mut [c_char], text: &str| {
            to.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from as c_char);
        };
        write(&mut device.device.name, VIADUCT);
        write(&mut device.socket, &place.to_string());
        let device: *mut Device = Box::into_raw(Box::new(device)).cast();
        // SAFETY: numbers, pointers and optional functions: no extensions.
        let context: *mut Context = make(unsafe { std::mem::zeroed() });
        // SAFETY: it was just made.
        unsafe {
            (*context).device = device;
            fabric::offer(&mut *context);
        }
        (device, context)
    };
    Devices(PLACES.iter().map(device).collect())
});

fn make<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

fn unmake<T>(pointer: *mut T) -> c_int {
    // SAFETY: `make` made it of this type, and programs destroy an object once.
    drop(unsafe { Box::from_raw(pointer) });
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
    let list: Vec<*mut Device> = DEVICES.0.iter().map(|(device, _)| *device).collect();
    // SAFETY: the library gives a place for it.
    unsafe { count.write(list.len() as c_int) };
    list.leak().as_mut_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(_: *mut *mut Device) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    DEVICES.0.iter().find(|(other, _)| *other == device).unwrap().1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(_: *mut Context) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_device(_: *mut Context, attr: *mut DeviceAttr) -> c_int {
    // SAFETY: the library gives a place for them, with all bits set to something.
    unsafe { ((*attr).max_qp_rd_atom, (*attr).max_qp_init_rd_atom) = (16, 16) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int {
    assert_eq!(port, 1);
    let which = DEVICES.0.iter().position(|(_, other)| *other == context).unwrap();
    let octets = match index {
        0 => "fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets(),
        1 => ADDRESSES[which].to_ipv6_mapped().octets(),
        _ => return -1,
    };
    // SAFETY: the library gives a place for it.
    unsafe { gid.write(Gid { raw: octets }) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    make(Pd { context, handle: 0 })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_srq(_: *mut Pd, _: *mut SrqInitAttr) -> *mut Srq {
    make([0_u64; 8]).cast()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    unmake(srq.cast::<[u64; 8]>())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the library gives whole attributes, and a domain that was made above.
    let (attr, context) = unsafe { (&*attr, (*pd).context) };
    assert!(!attr.send_cq.is_null() && !attr.recv_cq.is_null());
    // SAFETY: numbers and pointers, which may all be zero.
    let mut qp: Qp = unsafe { std::mem::zeroed() };
    (qp.context, qp.pd) = (context, pd);
    fabric::create_qp(&mut qp, attr);
    make(qp)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
    // SAFETY: the library gives a queue pair that was made above, and whole attributes.
    let (number, attr) = unsafe { ((*qp).qp_num, *attr) };
    MODIFIED.lock().unwrap().entry(number).or_default().push((attr, mask as u32));
    fabric::modify_qp(number, &attr);
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_attach_mcast(qp: *mut Qp, gid: *const Gid, _: u16) -> c_int {
    // SAFETY: the library gives a queue pair that was made above, and a GID.
    let (number, gid) = unsafe { ((*qp).qp_num, Ipv6Addr::from(*gid)) };
    if gid == FULL {
        return libc::ENOMEM;
    }
    ATTACHED.lock().unwrap().entry(number).or_default().push(gid);
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_detach_mcast(qp: *mut Qp, gid: *const Gid, _: u16) -> c_int {
    // SAFETY: as above.
    let (number, gid) = unsafe { ((*qp).qp_num, Ipv6Addr::from(*gid)) };
    let mut attached = ATTACHED.lock().unwrap();
    let of_it = attached.entry(number).or_default();
    let at = of_it.iter().position(|other| *other == gid).unwrap();
    of_it.remove(at);
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: the library gives a queue pair that was made above.
    fabric::destroy_qp(unsafe { (*qp).qp_num });
    unmake(qp)
}
