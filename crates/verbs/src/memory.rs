//! Protection domains, memory regions, thread domains and parent domains.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Outcome, code, pointer, set};
use crate::mapping::may_use;
use crate::moved_pages::{MovedPages, RegionPages};
use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use uverbs::qp::access;
use uverbs::{Kind, Lent, Region, Reply, Request};

/// A protection domain, or a parent domain, which is the same domain with its own pointer.
#[repr(C)]
struct Pd {
    c: ibv_pd,
    /// Number of the domain's parent domains.
    children: AtomicU32,
    parent: *mut Pd,
    thread: *mut Td,
}

/// A thread domain: a promise of the program that we do not use.
#[repr(C)]
struct Td {
    c: ibv_td,
    users: AtomicU32,
}

#[repr(C)]
struct Mr {
    c: ibv_mr,
    /// `ibv_access_flags`.
    access: u32,
    /// The region's pages that others may map.
    pages: Option<MovedPages>,
}

fn make(pd: Pd) -> *mut ibv_pd {
    Box::into_raw(Box::new(pd)).cast()
}

unsafe fn alloc_pd(context: *mut ibv_context) -> Outcome<*mut ibv_pd> {
    // SAFETY: a context of ours.
    let Reply::Handle(handle) = unsafe { Context::of(context) }.link.ask(&Request::AllocPd)? else {
        return Err(libc::EIO);
    };
    let none = std::ptr::null_mut();
    let children = AtomicU32::new(0);
    Ok(make(Pd { c: ibv_pd { context, handle }, children, parent: none, thread: std::ptr::null_mut() }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: a context of ours.
    pointer(unsafe { alloc_pd(context) })
}

unsafe fn dealloc_pd(pd: *mut Pd) -> Outcome<()> {
    // SAFETY: a domain of ours, which the program gives up.
    unsafe {
        if (*pd).children.load(Ordering::Acquire) > 0 {
            return Err(libc::EBUSY);
        }
        if (*pd).parent.is_null() {
            let request = Request::DeallocPd { pd: (*pd).c.handle };
            Context::of((*pd).c.context).link.take_away(&request)?;
        } else {
            (*(*pd).parent).children.fetch_sub(1, Ordering::AcqRel);
            if !(*pd).thread.is_null() {
                (*(*pd).thread).users.fetch_sub(1, Ordering::AcqRel);
            }
        }
        drop(Box::from_raw(pd));
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a domain of ours.
    code(unsafe { dealloc_pd(pd.cast()) })
}

pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: the program's attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return pointer(Err(libc::EINVAL));
    }
    Box::into_raw(Box::new(Td { c: ibv_td { context }, users: AtomicU32::new(0) })).cast()
}

pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let td = td.cast::<Td>();
    // SAFETY: a thread domain of ours, which the program gives up.
    unsafe {
        if (*td).users.load(Ordering::Acquire) > 0 {
            return set(libc::EBUSY);
        }
        drop(Box::from_raw(td));
    }
    0
}

/// Creates a parent domain. We never call the program's allocators, because we allocate nothing that they are for.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    // SAFETY: the program's attributes, with domains of ours.
    unsafe {
        let (parent, thread) = ((*attr).pd.cast::<Pd>(), (*attr).td.cast::<Td>());
        if parent.is_null() || (*attr).comp_mask & !known != 0 {
            return pointer(Err(libc::EINVAL));
        }
        (*parent).children.fetch_add(1, Ordering::AcqRel);
        if !thread.is_null() {
            (*thread).users.fetch_add(1, Ordering::AcqRel);
        }
        let c = ibv_pd { context, handle: (*parent).c.handle };
        make(Pd { c, children: AtomicU32::new(0), parent, thread })
    }
}

/// Checks that the program itself may do with this memory what the device will be allowed to do.
fn check_pages(addr: *mut c_void, length: usize, access: u32) -> Outcome<()> {
    let writes = access & (access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    if may_use(addr.addr(), length, writes) { Ok(()) } else { Err(libc::EFAULT) }
}

unsafe fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Outcome<*mut ibv_mr> {
    // SAFETY: a domain of ours.
    let (context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
    let iova = if access & access::ZERO_BASED != 0 { 0 } else { iova };
    let is_on_demand = access & access::ON_DEMAND != 0;
    // SAFETY: its context.
    let ours = unsafe { Context::of(context) };
    if is_on_demand && ours.link.is_remote() {
        return Err(libc::EOPNOTSUPP);
    }
    let (address, len) = (addr as u64, length as u64);
    let region = Region { pd: pd_handle, address, len, iova, access, file: 0, kind: Kind::Region };
    if !region.is_implicit() {
        check_pages(addr, length, access)?;
    }
    // Memory that is paged on demand may be mapped to something else by the next access; a file can't follow that.
    let pages =
        if is_on_demand { RegionPages::AsTheyAre } else { MovedPages::of(&ours.link, addr.addr(), length)? };
    let (pages, stand_in) = match pages {
        RegionPages::AsTheyAre => (None, None),
        RegionPages::Moved(moved) => (Some(moved), None),
        RegionPages::StandIn(stand_in) => (None, Some(stand_in)),
    };
    let extents = pages.as_ref().map_or_else(Vec::new, |pages| pages.extents().to_vec());
    let request = match &stand_in {
        None => Request::RegMr { pd: pd_handle, address, length: len, iova, access, pages: extents },
        Some(it) => {
            Request::RegStandIn { pd: pd_handle, address, length: len, iova, access, pages: it.extents() }
        }
    };
    let file = pages.as_ref().and_then(MovedPages::file).map(|file| Lent::from(file.as_fd()));
    let answer = ours.link.ask_with(&request, file.as_slice())?;
    let (Reply::Mr { mr, lkey, rkey }, _) = answer else { return Err(libc::EIO) };
    ours.regions().insert(lkey, region);
    if let Some(stand_in) = stand_in {
        ours.link.stand_ins().insert(lkey, stand_in);
    }
    let c = ibv_mr { context, pd, addr, length, handle: mr, lkey, rkey };
    Ok(Box::into_raw(Box::new(Mr { c, access, pages })).cast())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: a domain of ours.
    pointer(unsafe { reg_mr(pd, addr, length, addr as u64, access as u32) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: a domain of ours.
    pointer(unsafe { reg_mr(pd, addr, length, iova, access as u32) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: a domain of ours.
    pointer(unsafe { reg_mr(pd, addr, length, iova, access) })
}

/// Changes a region to another memory range, whose pages move.
///
/// # Safety
/// `mr` and `pd` must be a region and a domain of ours.
unsafe fn replace(
    mr: *mut Mr,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
) -> Outcome<()> {
    // SAFETY: the caller's promise; a region that was just made, which nobody else knows.
    unsafe {
        let other = reg_mr(pd, addr, length, addr as u64, access)?.cast::<Mr>();
        let taken = deregister(mr);
        let gone = if taken.is_ok() {
            std::ptr::swap(mr, other);
            Ok(())
        } else {
            deregister(other)
        };
        if gone.is_ok() {
            drop(Box::from_raw(other));
        }
        taken
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let known = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    let (moves, to_other_pd) =
        (flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0, flags & IBV_REREG_MR_CHANGE_PD != 0);
    let changes_access = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
    let is_wrong = flags & !known != 0
        || moves && (length == 0 || addr.is_null())
        || to_other_pd && pd.is_null()
        || access != 0 && !changes_access;
    if is_wrong {
        set(libc::EINVAL);
        return IBV_REREG_MR_ERR_INPUT;
    }
    let change = Change {
        pd: to_other_pd.then_some(pd),
        range: moves.then_some((addr, length)),
        access: changes_access.then_some(access as u32),
    };
    // SAFETY: a region and, where it is meant, a domain of ours.
    match unsafe { reregister(mr.cast(), &change) } {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            IBV_REREG_MR_ERR_CMD
        }
    }
}

/// Changes to a region by `ibv_rereg_mr`.
struct Change {
    pd: Option<*mut ibv_pd>,
    range: Option<(*mut c_void, usize)>,
    access: Option<u32>,
}

/// Changes a region, which gets new keys.
///
/// # Safety
/// `mr` must be a region of ours, and the change's domain one of ours.
unsafe fn reregister(mr: *mut Mr, change: &Change) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let context = Context::of((*mr).c.context);
        let access = change.access.unwrap_or((*mr).access);
        let (addr, length) = change.range.unwrap_or(((*mr).c.addr, (*mr).c.length));
        let is_whole = addr.is_null() && length == usize::MAX;
        if let Some(errno) = check_pages(addr, length, access).err().filter(|_| !is_whole) {
            return Err(errno);
        }
        if change.range.is_some() && context.link.is_remote() {
            return replace(mr, change.pd.unwrap_or((*mr).c.pd), addr, length, access);
        }
        let request = Request::ReregMr {
            mr: (*mr).c.handle,
            pd: change.pd.map(|pd| (*pd).handle),
            range: change.range.map(|(addr, length)| (addr as u64, length as u64)),
            access: change.access,
        };
        let Reply::Mr { mr: handle, lkey, rkey } = context.link.ask(&request)? else {
            return Err(libc::EIO);
        };
        {
            let mut regions = context.regions();
            if let Some(old) = regions.remove(&(*mr).c.lkey) {
                let pd = change.pd.map_or(old.pd, |pd| (*pd).handle);
                let (address, len, iova) = match change.range {
                    Some(_) => (addr as u64, length as u64, addr as u64),
                    None => (old.address, old.len, old.iova),
                };
                regions.insert(lkey, Region { pd, address, len, iova, access, ..old });
                context.link.stand_ins().rename((*mr).c.lkey, lkey);
            }
            ((*mr).c.handle, (*mr).c.lkey, (*mr).c.rkey) = (handle, lkey, rkey);
            context.settle();
        }
        (*mr).access = access;
        if let Some(pd) = change.pd {
            (*mr).c.pd = pd;
        }
        if change.range.is_some() {
            ((*mr).c.addr, (*mr).c.length) = (addr, length);
            (*mr).pages = None;
        }
        Ok(())
    }
}

/// Deregisters a region.
///
/// # Safety
/// It must be a region of ours.
unsafe fn deregister(mr: *mut Mr) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let (context, lkey) = (Context::of((*mr).c.context), (*mr).c.lkey);
        // Removed now: later its key may belong to another region.
        let region = context.regions().remove(&lkey);
        let taken = context.link.take_away(&Request::DeregMr { mr: (*mr).c.handle });
        context.settle();
        match taken {
            Ok(()) => context.link.stand_ins().remove(lkey),
            Err(_) => context.regions().extend(region.map(|region| (lkey, region))),
        }
        taken
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let mr = mr.cast::<Mr>();
    // SAFETY: a region of ours, which the program gives up. Only after that does nobody work with its pages any more.
    code(unsafe { deregister(mr).map(|()| drop(Box::from_raw(mr))) })
}
