//! Windows of virtual machines: memory for them, and vsock.

use super::{Finding, Level, Machine, Subject};
use config::{CommonWindows, GuestKind};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, statfs};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Directory of windows, in the run-dir.
const WINDOWS: &str = "rdma/vm";
/// The largest page size that a window may have, bytes.
const LARGEST_PAGE: u64 = 2 << 20;

/// Checks that there is memory for the windows in the file, and that VMs can have vsock. Returns nothing if
/// the file has no windows.
pub fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let sizes = sizes(subject);
    if sizes.is_empty() {
        return Vec::new();
    }
    let dir = subject.run_dir.join(WINDOWS);
    let room = match Memory::of(&dir, subject.machine) {
        Ok(memory) => memory.judge(&dir, &sizes),
        Err(e) => {
            Finding::broken("windows", format!("{}: {e}", dir.display()), "look at what is mounted there")
        }
    };
    vec![room, vsock(subject.machine)]
}

/// Returns the bytes of each window: those of single guests, and those that guests of a trust share.
fn sizes(subject: &Subject<'_>) -> Vec<u64> {
    let guests = || subject.guests(GuestKind::Vhost).filter(|guest| guest.window().is_some());
    let trusts: BTreeSet<_> = guests().filter_map(|guest| guest.rdma_trust.as_ref()).collect();
    let commons = CommonWindows::of(guests());
    let commons = trusts.into_iter().filter_map(|trust| Some(commons.get(trust)?.mb));
    guests()
        .filter_map(|guest| Some(guest.window()?.mb))
        .chain(commons)
        .map(|mb| u64::from(mb) << 20)
        .collect()
}

/// The memory behind windows' files. All numbers are bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Memory {
    /// `room`: free memory and that of existing windows (`None`: no limit). `others`: memory of other files.
    Tmpfs { room: Option<u64>, others: u64 },
    /// `page`: size of a page. `room`: free huge pages and those of existing windows.
    HugePages { page: u64, room: u64 },
    /// No memory, but a disk.
    Disk,
}

impl Memory {
    fn of(dir: &Path, machine: &Machine) -> io::Result<Self> {
        // The daemon will make missing directories.
        let at = dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir);
        let of = statfs(at)?;
        let block = u64::try_from(of.block_size()).unwrap_or(0);
        let files = || std::fs::read_dir(dir).into_iter().flatten().flatten();
        let files = || files().filter_map(|file| file.metadata().ok());
        Ok(if of.filesystem_type() == TMPFS_MAGIC {
            let taken: u64 = files().map(|file| 512 * file.blocks()).sum();
            let room = of.blocks_available() * block + taken;
            let others = (of.blocks() * block).saturating_sub(room);
            Self::Tmpfs { room: (of.blocks() > 0).then_some(room), others }
        } else if of.filesystem_type() == HUGETLBFS_MAGIC {
            let free = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/free_hugepages", block >> 10);
            let taken: u64 = files().map(|file| file.len()).sum();
            Self::HugePages { page: block, room: machine.number(&free).unwrap_or(0) * block + taken }
        } else {
            Self::Disk
        })
    }

    /// Checks whether windows of these sizes fit into `dir`.
    pub(super) fn judge(self, dir: &Path, sizes: &[u64]) -> Finding {
        const CHECK: &str = "windows";
        let (all, largest) = (sizes.iter().sum::<u64>(), sizes.iter().copied().max().unwrap_or(0));
        let (at, all_mb) = (dir.display(), all >> 20);
        let tmpfs = format!("mount -t tmpfs -o mode=755,size={all_mb}M,huge=within_size windows {at}");
        let large = format!("mkdir -p {at} && {tmpfs}, before the daemon starts");
        match self {
            Self::Disk => Finding::broken(CHECK, format!("{at} is not in memory"), large),
            Self::Tmpfs { room: Some(room), others } if room < all => Finding {
                level: if room < largest { Level::Broken } else { Level::Warning },
                ..Finding::warning(
                    CHECK,
                    format!(
                        "{at} has room for {} MB, windows have {all_mb} MB, the largest {} MB: a VM that uses memory \
                         which is not there ends",
                        room >> 20,
                        largest >> 20
                    ),
                    format!(
                        "{large}; or, where one is mounted there: mount -o remount,size={}M {at}",
                        (all + others).div_ceil(1 << 20)
                    ),
                )
            },
            Self::HugePages { page, .. } if page > LARGEST_PAGE => Finding::broken(
                CHECK,
                format!("{at} has pages of {} MB, and those of windows have 2 MB at most", page >> 20),
                format!("mount -t hugetlbfs -o mode=755,pagesize=2M windows {at}"),
            ),
            Self::HugePages { page, room } if room < all => Finding::broken(
                CHECK,
                format!(
                    "huge pages of {} MB for {at}, and windows of {all_mb} MB, which take all at once",
                    room >> 20
                ),
                format!("{} pages more: sysctl vm.nr_hugepages=N", (all - room).div_ceil(page.max(1))),
            ),
            Self::Tmpfs { .. } => Finding::good(CHECK, format!("{at} is a tmpfs with room for {all_mb} MB")),
            Self::HugePages { .. } => Finding::good(CHECK, format!("{at} has huge pages for {all_mb} MB")),
        }
    }
}

fn vsock(machine: &Machine) -> Finding {
    const CHECK: &str = "vsock";
    if machine.path("/dev/vhost-vsock").exists() {
        return Finding::good(CHECK, "/dev/vhost-vsock: VMs can have the kernel's vsock");
    }
    Finding::warning(
        CHECK,
        format!(
            "no /dev/vhost-vsock: programs in VMs reach the daemon only by RUN_DIR/{WINDOWS}/NAME.vsock_4791"
        ),
        "modprobe vhost_vsock, and its name in a file of /etc/modules-load.d; without it: cloud-hypervisor, or QEMU with \
         vhost-device-vsock",
    )
}
