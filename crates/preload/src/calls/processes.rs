//! Functions that make processes.

use super::get;
use crate::{conn, daemon, doors, epoll, leaving, lock, real, settings, sys, table};
use libc::{c_char, c_int, c_void, pid_t};
use std::sync::atomic::Ordering;

unsafe extern "C" {
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// Has forks share the connections.
pub fn follow_forks() {
    // SAFETY: the functions are there as long as the program.
    unsafe { pthread_atfork(Some(before_fork), None, Some(in_fork)) };
}

extern "C" fn before_fork() {
    // A match would reach the parent alone.
    table::each_conn(|conn| {
        if conn.state() == conn::OFFERED {
            conn.ends_offer();
        }
    });
    // A fork would see what the parent gets there later.
    doors::begin_anew();
    // The daemon does not know of a fork that has memory of a window.
    table::each(|fd, conn| {
        if conn.in_window.load(Ordering::Relaxed) == 1 {
            leaving::leave_window(conn, fd);
        }
    });
    table::fork(true);
}

extern "C" fn in_fork() {
    lock::forget_number();
    epoll::free_all();
    daemon::forget();
    daemon::FORKED.store(true, Ordering::Release);
}

/// Returns connections to TCP that another program is about to inherit.
fn before_exec() {
    if settings::is_on() {
        table::each(|fd, conn| {
            if sys::is_inherited(fd) {
                leaving::leave(conn, fd);
            }
        });
    }
}

extern "C" fn viaduct_before_exec() {
    before_exec();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> pid_t {
    // A child in the same memory would close the parent's connections.
    // SAFETY: it takes no memory.
    unsafe { libc::fork() }
}

macro_rules! exec {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                before_exec();
                // SAFETY: as the program calls it.
                unsafe { real::$name($($argument),*) }
            }
        )*
    };
}

exec! {
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char);
    execv(path: *const c_char, arguments: *const *const c_char);
    execvp(path: *const c_char, arguments: *const *const c_char);
    execvpe(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char);
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char);
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char);
    posix_spawnp(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, to: c_int) -> c_int {
    get(fd).iter().for_each(|conn| leaving::leave(conn, fd));
    // SAFETY: as the program calls it.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, to) }
}

/// The next library's functions with a list of arguments.
#[repr(C)]
struct Lists([*mut c_void; 3]);
// SAFETY: it is written once, by the constructor.
unsafe impl Sync for Lists {}
static mut LISTS: Lists = Lists([std::ptr::null_mut(); 3]);

/// Finds the functions with a list of arguments.
pub fn find_lists() {
    let names = ["execl\0", "execlp\0", "execle\0"];
    // SAFETY: the constructor runs before there are threads.
    unsafe { LISTS = Lists(names.map(real::find)) };
}

// The arguments stay where they are: in registers and on the stack.
#[cfg(target_arch = "x86_64")]
macro_rules! list {
    ($name:ident, $at:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() -> c_int {
            std::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "call {before}",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                concat!("mov r11, [rip + {lists} + ", $at, "]"),
                "jmp r11",
                before = sym viaduct_before_exec,
                lists = sym LISTS,
            )
        }
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! list {
    ($name:ident, $at:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() -> c_int {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!", "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "bl {before}",
                "ldp x6, x7, [sp, #64]", "ldp x4, x5, [sp, #48]", "ldp x2, x3, [sp, #32]", "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #80",
                "adrp x16, {lists}", "add x16, x16, :lo12:{lists}",
                concat!("ldr x16, [x16, #", $at, "]"),
                "br x16",
                before = sym viaduct_before_exec,
                lists = sym LISTS,
            )
        }
    };
}

list!(execl, "0");
list!(execlp, "8");
list!(execle, "16");
