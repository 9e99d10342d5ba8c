//! On-demand paging: all memory here is paged on demand, so a region that requests it is like any other. A program may
//! announce which pages it will need.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Outcome, code};
use crate::mapping::may_use;
use std::ffi::c_int;
use uverbs::Region;
use uverbs::qp::access;

/// All requests may use memory that is paged on demand.
pub const CAPABILITIES: ibv_odp_caps = {
    let message = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let rc = message | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    let per_transport_caps = [rc, message | IBV_ODP_SUPPORT_WRITE, message];
    ibv_odp_caps { general_caps: IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT, per_transport_caps }
};

/// The capabilities of a device that reaches only pages of its window: pages that come in later are not there.
pub const NO_CAPABILITIES: ibv_odp_caps = ibv_odp_caps { general_caps: 0, per_transport_caps: [0; 3] };

/// Returns address and length of the requested pages, if the region permits this prefetch (`ibv_advise_mr(3)`).
fn find(region: &Region, pd: u32, sge: &ibv_sge, writes: bool) -> Outcome<(usize, usize)> {
    let needs = if writes { access::LOCAL_WRITE } else { 0 };
    if region.pd != pd || region.access & needs != needs {
        return Err(libc::EPERM);
    }
    if region.access & access::ON_DEMAND == 0 {
        return Err(libc::EINVAL);
    }
    let address = region.find_local(pd, sge.addr, sge.length.into(), needs).ok_or(libc::EFAULT)?;
    let (address, len) = (address as usize, sge.length as usize);
    if may_use(address, len, writes) { Ok((address, len)) } else { Err(libc::EFAULT) }
}

/// Fetches pages, or makes the kernel start to. Ignores errors, because a prefetch is only advice.
fn fetch((address, len): (usize, usize), writes: bool, waits: bool) {
    let page = rustix::param::page_size();
    let start = address / page * page;
    let advice = match (waits, writes) {
        (false, _) => libc::MADV_WILLNEED,
        (true, false) => libc::MADV_POPULATE_READ,
        (true, true) => libc::MADV_POPULATE_WRITE,
    };
    // SAFETY: no content changes by these.
    unsafe { libc::madvise(start as *mut _, len + address - start, advice) };
}

unsafe fn advise(pd: *mut ibv_pd, advice: u32, flags: u32, list: &[ibv_sge]) -> Outcome<()> {
    let writes = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    if advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
        return Err(libc::ENOTSUP);
    }
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || list.is_empty() {
        return Err(libc::EINVAL);
    }
    // SAFETY: a domain of ours, and its context.
    let (handle, context) = unsafe { ((*pd).handle, Context::of((*pd).context)) };
    let found: Outcome<Vec<_>> = {
        let regions = context.regions();
        let find = |sge: &ibv_sge| find(regions.get(&sge.lkey).ok_or(libc::EFAULT)?, handle, sge, writes);
        list.iter().map(find).collect()
    };
    for pages in found?.into_iter().filter(|_| advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) {
        fetch(pages, writes, flags & IBV_ADVISE_MR_FLAG_FLUSH != 0);
    }
    Ok(())
}

pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: a domain of ours, and a list as long as the program says.
    code(unsafe {
        let list = if count == 0 { &[][..] } else { std::slice::from_raw_parts(list, count as usize) };
        advise(pd, advice, flags, list)
    })
}
