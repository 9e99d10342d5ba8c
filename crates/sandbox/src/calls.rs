//! System calls, filtered by seccomp(2).
//!
//! There are three filters, and the kernel applies the strictest result. Calls that only an intruder would
//! make end the process. `clone3` appears to be missing, so that programs use `clone`, whose flags show what
//! new threads share. All other calls that are not on the list fail. A call without conditions costs the
//! kernel one look-up in a bitmap.

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use std::collections::BTreeMap;

/// The system calls that a process keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// A process that carries packets and serves an API: memory, threads, and descriptors that it was given or
    /// receives in messages.
    Daemon,
    /// A process that also opens devices and sockets.
    Helper,
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls that neither process makes: they execute programs, inspect other processes, or change the machine.
const HOSTILE: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_mknodat,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
];

const COMMON: &[c_long] = &[
    // Descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    // Files, as far as Landlock allows.
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    // Sockets.
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Threads and time.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_tgkill,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_prlimit64,
];

/// More calls of the daemon.
const DAEMON: &[c_long] = &[
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstatfs,
    libc::SYS_memfd_create,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    // Sockets that it was given, and other parties' rings.
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    // Signals eventfds that others hold.
    libc::SYS_io_setup,
    libc::SYS_io_destroy,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_io_cancel,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_membarrier,
    libc::SYS_getcpu,
    libc::SYS_getrusage,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setscheduler,
    libc::SYS_pidfd_open,
    libc::SYS_waitid,
    libc::SYS_wait4,
];

/// More calls of the helper.
const HELPER: &[c_long] = &[
    libc::SYS_socket,
    // Landlock lets everybody connect to unix sockets that have a path.
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_ioctl,
    libc::SYS_bpf,
    libc::SYS_openat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_linkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_fstatfs,
    // Memory for frames.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    // Look-ups of users.
    libc::SYS_sendmmsg,
];

/// `fchmodat2` (since Linux 6.6), which this version of libc does not name on all machines.
const SYS_FCHMODAT2: c_long = 452;

/// Older forms of these calls, which only x86-64 has.
#[cfg(target_arch = "x86_64")]
const OLD: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_epoll_wait,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[c_long] = &[];

/// Older calls that remove files and give them away.
#[cfg(target_arch = "x86_64")]
const OLD_HELPER: &[c_long] = &[libc::SYS_unlink, libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown];
#[cfg(not(target_arch = "x86_64"))]
const OLD_HELPER: &[c_long] = &[];

/// The ioctl(2) queries that the daemon may make about descriptors of files, terminals and devices. None of
/// them changes a device.
const QUESTIONS: &[libc::Ioctl] = &[
    libc::FIONBIO,
    libc::FIONREAD,
    libc::FIOCLEX,
    libc::TCGETS,
    libc::TIOCGWINSZ,
    libc::SIOCGIFINDEX,
    libc::SIOCGIFNAME,
    libc::SIOCGIFFLAGS,
    libc::SIOCGIFMTU,
    libc::SIOCGIFHWADDR,
    libc::SIOCETHTOOL,
    libc::TUNGETIFF,
];

/// Filters the calls of this thread and of those it starts later.
pub(crate) fn restrict(calls: Calls) -> Result<(), String> {
    let filters = filters(calls).map_err(|e| e.to_string())?;
    filters.iter().try_for_each(|filter| apply_filter(filter)).map_err(|e| e.to_string())
}

fn filters(calls: Calls) -> Result<[BpfProgram; 3], seccompiler::BackendError> {
    let errno = |errno: i32| SeccompAction::Errno(errno.unsigned_abs());
    let hostile = HOSTILE.iter().chain((calls == Calls::Daemon).then_some(&libc::SYS_bpf));
    Ok([
        program(plain(hostile), SeccompAction::Allow, SeccompAction::KillProcess)?,
        program(plain([&libc::SYS_clone3]), SeccompAction::Allow, errno(libc::ENOSYS))?,
        program(allowed(calls)?, errno(libc::EPERM), SeccompAction::Allow)?,
    ])
}

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let machine = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, otherwise, matching, machine)?.try_into()
}

/// Returns rules without conditions.
fn plain<'a>(calls: impl IntoIterator<Item = &'a c_long>) -> Rules {
    calls.into_iter().map(|call| (*call, Vec::new())).collect()
}

fn allowed(calls: Calls) -> Result<Rules, seccompiler::BackendError> {
    let besides = match calls {
        Calls::Daemon => [DAEMON, &[]],
        Calls::Helper => [HELPER, OLD_HELPER],
    };
    let mut rules = plain([COMMON, OLD].iter().chain(&besides).copied().flatten());
    // The second filter answers this call, so this filter must not refuse it.
    rules.insert(libc::SYS_clone3, Vec::new());
    let thread = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, vec![when(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
    // No memory becomes executable.
    let executable = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![when(2, executable.clone(), 0)?]);
    }
    let named = [libc::PR_SET_NAME, PR_SET_VMA].map(|option| when(0, SeccompCmpOp::Eq, option as u64));
    rules.insert(libc::SYS_prctl, named.into_iter().collect::<Result<_, _>>()?);
    if calls == Calls::Daemon {
        let asked = QUESTIONS.iter().map(|number| when(1, SeccompCmpOp::Eq, *number));
        rules.insert(libc::SYS_ioctl, asked.collect::<Result<_, _>>()?);
        let families =
            [libc::AF_UNIX, libc::AF_NETLINK].map(|family| when(0, SeccompCmpOp::Eq, family as u64));
        rules.insert(libc::SYS_socket, families.into_iter().collect::<Result<_, _>>()?);
        // With this flag, to send is to connect, which Landlock does not see.
        let fast_open = SeccompCmpOp::MaskedEq(libc::MSG_FASTOPEN as u64);
        for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
            rules.insert(call, vec![when(flags, fast_open.clone(), 0)?]);
        }
    }
    Ok(rules)
}

/// The prctl that names a mapping (linux/prctl.h). The allocator and thread stacks use it.
const PR_SET_VMA: libc::c_int = 0x5356_4d41;

/// Returns a rule with one condition, on the lower half of an argument.
fn when(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
    SeccompRule::new(vec![condition])
}
