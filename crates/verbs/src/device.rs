//! Devices: one for each socket of the daemon to which we may connect, and for each window of a virtual machine.

use crate::abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, VIADUCT, ibv_device, viaduct_device};
use crate::link::Link;
use crate::sysfs::root;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::sync::{Mutex, OnceLock, PoisonError};
use uverbs::{Endpoint, dial};

const DIRECTORY: &str = "/run/viaduct/rdma";
/// Names a variable that lists other devices ([`Endpoint::parse`]), separated by colons.
const VARIABLE: &CStr = c"VIADUCT_RDMA";

/// A device. It is never freed: programs keep pointers to devices, and there are few.
#[repr(C)]
pub struct Device {
    c: viaduct_device,
    endpoint: Endpoint,
    index: usize,
    guid: OnceLock<u64>,
}

impl Device {
    fn new(endpoint: Endpoint, index: usize) -> Self {
        let name = format!("{VIADUCT}{index}");
        let uverbs = format!("uverbs{index}");
        let class = root().to_string_lossy() + "/class";
        let device = ibv_device {
            _ops: [None; 2],
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            dev_path: text(&format!("{class}/infiniband_verbs/{uverbs}")),
            ibdev_path: text(&format!("{class}/infiniband/{name}")),
            dev_name: text(&uverbs),
            name: text(&name),
        };
        let c = viaduct_device { device, socket: text(&endpoint.to_string()) };
        Self { c, endpoint, index, guid: OnceLock::new() }
    }

    /// Returns the device behind a pointer of the C interface.
    ///
    /// # Safety
    /// The pointer must come from [`ibv_get_device_list`].
    pub unsafe fn of<'a>(device: *mut ibv_device) -> &'a Self {
        // SAFETY: the caller's promise; the C part comes first, and devices are never freed.
        unsafe { &*device.cast() }
    }

    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn guid(&self) -> u64 {
        // A device that can't be reached now may be reachable later.
        let known = self.guid.get().copied();
        known
            .or_else(|| {
                let asked = Link::open(&self.endpoint).ok()?.info().node_guid;
                Some(*self.guid.get_or_init(|| asked))
            })
            .unwrap_or(0)
    }
}

/// Returns text for a field of the C interface, truncated if it is too long.
pub fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    field
}

/// Returns the devices to try, in order.
fn endpoints() -> Vec<Endpoint> {
    // If the program has more rights than its user, the user's variable must not determine to whom the program shows
    // its memory.
    if let Some(all) = crate::environment::variable(VARIABLE) {
        let all = all.to_bytes().split(|byte| *byte == b':').filter(|it| !it.is_empty());
        return all.map(|it| Endpoint::parse(OsStr::from_bytes(it))).collect();
    }
    let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    let mut paths: Vec<_> = sockets.map(|entry| entry.path()).collect();
    paths.retain(|path| dial(path).is_ok());
    paths.sort();
    paths.into_iter().map(Endpoint::Socket).chain(Endpoint::windows()).collect()
}

static KNOWN: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// Returns the devices. Every call returns the same object for the same endpoint and name.
fn devices() -> Vec<&'static Device> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let find = |(index, endpoint): (usize, Endpoint)| {
        let same = known.iter().find(|device| device.index == index && device.endpoint == endpoint).copied();
        same.unwrap_or_else(|| {
            let device: &'static Device = Box::leak(Box::new(Device::new(endpoint, index)));
            known.push(device);
            device
        })
    };
    endpoints().into_iter().enumerate().map(find).collect()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices = devices();
    // SAFETY: room for all and an end; the program's counter, if it gave one.
    unsafe {
        let list = libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()).cast::<*mut ibv_device>();
        if list.is_null() {
            crate::errno::set(libc::ENOMEM);
            return list;
        }
        for (at, device) in devices.iter().enumerate() {
            list.add(at).write((&raw const **device).cast_mut().cast());
        }
        if !count.is_null() {
            count.write(c_int::try_from(devices.len()).unwrap_or(c_int::MAX));
        }
        list
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: it was made by `calloc`.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device of ours.
    unsafe { (*device).name.as_ptr() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: a device of ours.
    c_int::try_from(unsafe { Device::of(device) }.index).unwrap_or(-1)
}

/// Returns the GUID in wire order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: a device of ours.
    unsafe { Device::of(device) }.guid().to_be()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_index_and_text_is_cut() {
        let device = Device::new(Endpoint::Socket("/x".into()), 3);
        // SAFETY: terminated, as `text` does.
        let name = |field: *const c_char| unsafe { CStr::from_ptr(field) }.to_str().unwrap().to_owned();
        let c = &device.c.device;
        assert_eq!(name(c.name.as_ptr()), "viaduct3");
        assert_eq!(name(c.ibdev_path.as_ptr()), "/sys/class/infiniband/viaduct3");
        assert_eq!(name(c.dev_path.as_ptr()), "/sys/class/infiniband_verbs/uverbs3");
        assert_eq!(name(device.c.socket.as_ptr()), "/x");
        assert_eq!(text::<4>("abcdef").map(|c| c as u8), *b"abc\0");
    }
}
