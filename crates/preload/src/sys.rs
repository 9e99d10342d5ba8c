//! System calls that this library makes for itself: past the functions that it stands before, and without their
//! cancellation points.

use libc::{c_int, c_long, c_void, iovec, msghdr};

macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {
        // SAFETY: every function below says what it passes, and for pointers what the caller promises.
        unsafe { libc::syscall($number $(, $argument as c_long)*) }
    };
}

/// Returns the error of the last call of this thread.
pub fn errno() -> c_int {
    // SAFETY: every thread has the place.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(to: c_int) {
    // SAFETY: every thread has the place.
    unsafe { *libc::__errno_location() = to };
}

/// Turns the result of a system call into the number or the error; the thread's error stays what it was.
fn checked(result: c_long, before: c_int) -> Result<usize, c_int> {
    if result >= 0 {
        return Ok(result as usize);
    }
    let error = errno();
    set_errno(before);
    Err(error)
}

/// Receives from a kernel socket.
///
/// # Safety
/// `len` bytes can be written at `to`, unless the flags discard them.
pub unsafe fn recv(fd: c_int, to: *mut u8, len: usize, flags: c_int) -> Result<usize, c_int> {
    let before = errno();
    checked(call!(libc::SYS_recvfrom, fd, to, len, flags, 0, 0), before)
}

/// Sends by a kernel socket.
///
/// # Safety
/// `len` bytes can be read at `from`.
pub unsafe fn send(fd: c_int, from: *const u8, len: usize, flags: c_int) -> Result<usize, c_int> {
    let before = errno();
    checked(call!(libc::SYS_sendto, fd, from, len, flags, 0, 0), before)
}

/// Discards bytes that wait in a kernel socket. Returns how many.
pub fn discard(fd: c_int, mut len: u64) -> Result<u64, c_int> {
    let mut done = 0;
    while len > 0 {
        // SAFETY: with MSG_TRUNC, TCP writes nothing.
        let n = match unsafe {
            recv(fd, std::ptr::null_mut(), len as usize, libc::MSG_TRUNC | libc::MSG_DONTWAIT)
        } {
            Ok(0) | Err(libc::EAGAIN) => break,
            n => n?,
        };
        done += n as u64;
        len -= n as u64;
    }
    Ok(done)
}

pub fn getsockopt<T>(fd: c_int, level: c_int, name: c_int, value: &mut T) -> Result<usize, c_int> {
    let before = errno();
    let mut len = size_of::<T>() as libc::socklen_t;
    let value: *mut T = value;
    let len_at: *mut libc::socklen_t = &mut len;
    checked(call!(libc::SYS_getsockopt, fd, level, name, value, len_at), before).map(|_| len as usize)
}

pub fn setsockopt(fd: c_int, level: c_int, name: c_int, value: c_int) -> Result<usize, c_int> {
    let before = errno();
    let value: *const c_int = &value;
    checked(call!(libc::SYS_setsockopt, fd, level, name, value, size_of::<c_int>()), before)
}

/// Returns how many bytes wait in a kernel socket.
pub fn waiting(fd: c_int) -> u64 {
    let before = errno();
    let mut bytes: c_int = 0;
    let at: *mut c_int = &mut bytes;
    checked(call!(libc::SYS_ioctl, fd, libc::FIONREAD, at), before).map_or(0, |_| bytes.max(0) as u64)
}

pub fn is_inherited(fd: c_int) -> bool {
    let before = errno();
    let flags = checked(call!(libc::SYS_fcntl, fd, libc::F_GETFD, 0), before);
    flags.is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0)
}

/// Returns whether the kernel has one of these events of a descriptor now.
pub fn has(fd: c_int, events: i16) -> bool {
    poll(fd, events, 0).is_ok_and(|got| got & events != 0)
}

/// Returns the events of these that a descriptor has, after at most so many milliseconds; -1: any time.
pub fn poll(fd: c_int, events: i16, milliseconds: c_int) -> Result<i16, c_int> {
    let before = errno();
    let mut wanted = libc::pollfd { fd, events, revents: 0 };
    let wanted_at: *mut libc::pollfd = &mut wanted;
    let time = libc::timespec { tv_sec: 0, tv_nsec: c_long::from(milliseconds.max(0)) * 1_000_000 };
    let time_at: *const libc::timespec = if milliseconds < 0 { std::ptr::null() } else { &time };
    checked(call!(libc::SYS_ppoll, wanted_at, 1, time_at, 0, 8), before).map(|_| wanted.revents)
}

pub fn close(fd: c_int) {
    let before = errno();
    _ = checked(call!(libc::SYS_close, fd), before);
}

pub fn write(fd: c_int, bytes: &[u8]) -> Result<usize, c_int> {
    let before = errno();
    checked(call!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()), before)
}

/// Makes an event descriptor.
pub fn event() -> Result<c_int, c_int> {
    let before = errno();
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    checked(call!(libc::SYS_eventfd2, 0, flags), before).map(|fd| fd as c_int)
}

/// Takes from an event descriptor, which wakes who waits for room in it. It never waits: whoever shares the descriptor
/// can say whether reading does, and whether writing does, but not this.
pub fn take_event(fd: c_int) -> Result<usize, c_int> {
    let before = errno();
    let mut one = 0_u64;
    let part = iovec { iov_base: (&raw mut one).cast(), iov_len: size_of::<u64>() };
    let part: *const iovec = &part;
    // The position -1 is the descriptor's own.
    checked(call!(libc::SYS_preadv2, fd, part, 1, -1, 0, libc::RWF_NOWAIT), before)
}

/// Duplicates a descriptor to a number from `least` on, for this program alone.
pub fn duplicate(fd: c_int, least: c_int) -> Result<c_int, c_int> {
    let before = errno();
    checked(call!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least), before).map(|fd| fd as c_int)
}

pub fn socket(family: c_int, kind: c_int) -> Result<c_int, c_int> {
    let before = errno();
    checked(call!(libc::SYS_socket, family, kind, 0), before).map(|fd| fd as c_int)
}

pub fn connect(fd: c_int, address: &libc::sockaddr_un) -> Result<usize, c_int> {
    let before = errno();
    let address: *const libc::sockaddr_un = address;
    checked(call!(libc::SYS_connect, fd, address, size_of::<libc::sockaddr_un>()), before)
}

/// Ends a connection with a reset.
pub fn reset(fd: c_int) {
    let before = errno();
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    let nowhere: *const libc::sockaddr = &nowhere;
    _ = checked(call!(libc::SYS_connect, fd, nowhere, size_of::<libc::sockaddr>()), before);
}

/// Sends a message with at most one descriptor, without waiting.
pub fn send_message(fd: c_int, bytes: &[u8], descriptor: Option<c_int>) -> Result<usize, c_int> {
    let before = errno();
    let mut part = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 32]);
    // SAFETY: zeros are a valid header.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        header.msg_control = (&raw mut control).cast::<c_void>();
        header.msg_controllen = CONTROL;
        control.write(descriptor);
    }
    let header: *const msghdr = &header;
    checked(call!(libc::SYS_sendmsg, fd, header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT), before)
}

/// Receives a message with at most one descriptor. With `waits`, waits for it.
pub fn receive_message(
    fd: c_int,
    bytes: &mut [u8],
    waits: bool,
) -> Result<(usize, [Option<c_int>; FILES]), c_int> {
    let before = errno();
    let mut part = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 32]);
    // SAFETY: zeros are a valid header.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast::<c_void>();
    header.msg_controllen = size_of::<Control>();
    let header_at: *mut msghdr = &mut header;
    let flags = libc::MSG_CMSG_CLOEXEC | if waits { 0 } else { libc::MSG_DONTWAIT };
    let n = checked(call!(libc::SYS_recvmsg, fd, header_at, flags), before)?;
    Ok((n, if header.msg_controllen as usize >= HEADER + 4 { control.read() } else { [None; FILES] }))
}

/// Bytes of the header of a control message.
const HEADER: usize = size_of::<libc::cmsghdr>();
/// Most descriptors of a message.
pub const FILES: usize = 4;
/// Bytes of a control message with one descriptor.
const CONTROL: usize = HEADER + 8;

#[repr(C, align(8))]
struct Control([u8; 32]);

impl Control {
    fn write(&mut self, descriptor: c_int) {
        self.0[..8].copy_from_slice(&(HEADER + 4).to_ne_bytes());
        self.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
        self.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
        self.0[HEADER..HEADER + 4].copy_from_slice(&descriptor.to_ne_bytes());
    }

    fn read(&self) -> [Option<c_int>; FILES] {
        let word = |at: usize| self.0[at..at + 4].try_into().map(c_int::from_ne_bytes).ok();
        if word(8) != Some(libc::SOL_SOCKET) || word(12) != Some(libc::SCM_RIGHTS) {
            return [None; FILES];
        }
        let len = word(0).unwrap_or_default() as usize;
        std::array::from_fn(|at| {
            let begin = HEADER + 4 * at;
            if begin + 4 <= len { word(begin) } else { None }
        })
    }
}

/// Waits for two descriptors, as [`poll`] does for one. Returns what came of the first.
pub fn poll_two(one: c_int, events: i16, other: c_int, nanoseconds: Option<u64>) -> Result<i16, c_int> {
    let before = errno();
    let mut wanted = [
        libc::pollfd { fd: one, events, revents: 0 },
        libc::pollfd { fd: other, events: libc::POLLIN, revents: 0 },
    ];
    let time = nanoseconds.map(|span| libc::timespec {
        tv_sec: (span / 1_000_000_000) as i64,
        tv_nsec: (span % 1_000_000_000) as c_long,
    });
    let time_at: *const libc::timespec = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    checked(call!(libc::SYS_ppoll, wanted.as_mut_ptr(), 2, time_at, 0, 8), before).map(|_| wanted[0].revents)
}

/// Makes a set with a bell, which becomes readable when somebody takes from the bell.
pub fn set_of(bell: c_int) -> Result<c_int, c_int> {
    let before = errno();
    let set = checked(call!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC), before)? as c_int;
    let events = (libc::EPOLLOUT | libc::EPOLLET) as u32;
    epoll_ctl(set, libc::EPOLL_CTL_ADD, bell, events, 0).inspect_err(|_| close(set))?;
    Ok(set)
}

/// Notes that what was told by the bell of a set is heard.
pub fn drain(set: c_int) {
    let before = errno();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let event: *mut libc::epoll_event = &mut event;
    _ = checked(call!(libc::SYS_epoll_pwait, set, event, 1, 0, 0, 8), before);
}

pub fn map(fd: c_int, offset: u64, len: usize, flags: c_int) -> Option<*mut u8> {
    let before = errno();
    let at = call!(libc::SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset);
    if (-4095..0).contains(&at) {
        set_errno(before);
        return None;
    }
    Some(at as *mut u8)
}

/// Moves a mapping to an address, in place of what is mapped there. Returns whether it is done.
///
/// # Safety
/// The mapping is the caller's, and whoever uses the other one goes on with what it holds.
pub unsafe fn replace(at: *mut u8, len: usize, with: *mut u8) -> bool {
    let (before, flags) = (errno(), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
    checked(call!(libc::SYS_mremap, with, len, len, flags, at), before).is_ok()
}

/// Unmaps memory.
///
/// # Safety
/// Nobody uses it any more.
pub unsafe fn unmap(at: *const u8, len: usize) {
    let before = errno();
    _ = checked(call!(libc::SYS_munmap, at, len), before);
}

pub fn nap(microseconds: i64) {
    let before = errno();
    let time = libc::timespec { tv_sec: microseconds / 1_000_000, tv_nsec: microseconds % 1_000_000 * 1000 };
    let time: *const libc::timespec = &time;
    _ = checked(call!(libc::SYS_nanosleep, time, 0), before);
}

/// Lets other threads run on this CPU.
pub fn give_way() {
    call!(libc::SYS_sched_yield);
}

pub fn thread_number() -> u32 {
    call!(libc::SYS_gettid) as u32
}

pub fn is_alive(thread: u32) -> bool {
    let before = errno();
    checked(call!(libc::SYS_kill, thread, 0), before) != Err(libc::ESRCH)
}

pub fn epoll_ctl(epoll: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Result<usize, c_int> {
    let before = errno();
    let mut event = libc::epoll_event { events, u64: data };
    let event: *mut libc::epoll_event = &mut event;
    checked(call!(libc::SYS_epoll_ctl, epoll, op, fd, event), before)
}

/// Returns a time in nanoseconds.
pub fn now(clock: c_int) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is there; the vDSO answers without a system call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn cpu() -> u32 {
    // SAFETY: it takes nothing.
    unsafe { libc::sched_getcpu() }.max(0) as u32
}

/// The kernel's counts of a connection (`struct tcp_info`, as far as it is used).
#[derive(Clone, Copy)]
pub struct TcpInfo([u8; 232]);

impl TcpInfo {
    pub fn of(fd: c_int) -> Option<Self> {
        let mut info = [0; 232];
        let len = getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
        // `bytes_retrans` came with Linux 4.19.
        (len >= 216).then_some(Self(info))
    }

    fn word(&self, at: usize) -> u64 {
        self.0[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
    }

    fn half(&self, at: usize) -> u64 {
        self.0[at..at + 4].try_into().map_or(0, u32::from_ne_bytes).into()
    }

    pub const fn is_established(&self) -> bool {
        self.0[0] == 1
    }

    pub const fn is_closed(&self) -> bool {
        self.0[0] == 7
    }

    /// Returns the bytes given to the kernel, whether they were sent yet or not.
    pub fn sent(&self) -> u64 {
        let (sent, again, notsent) = (self.word(200), self.word(208), self.half(144));
        sent.wrapping_sub(again).wrapping_add(notsent)
    }

    pub fn received(&self) -> u64 {
        self.word(128)
    }
}

/// Returns the bytes that the program has taken from an established connection on which nobody reads now.
pub fn taken(fd: c_int) -> Option<u64> {
    for _ in 0..100 {
        let before = TcpInfo::of(fd)?;
        let waits = waiting(fd);
        let after = TcpInfo::of(fd)?;
        if !after.is_established() {
            return None;
        }
        if before.received() == after.received() {
            return after.received().checked_sub(waits);
        }
    }
    None
}

/// Reads the address of one end of a socket: by `SYS_getsockname` or `SYS_getpeername`.
pub fn address(which: c_long, fd: c_int, to: &mut [u8; 128]) -> Option<usize> {
    let before = errno();
    let mut len: libc::socklen_t = 128;
    let (to, len_at): (*mut u8, *mut libc::socklen_t) = (to.as_mut_ptr(), &mut len);
    checked(call!(which, fd, to, len_at), before).ok().map(|_| len as usize)
}
