//! Tests the checks on machines made of files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use std::fs;

/// Makes a machine with these files, in which RUN_DIR is the daemon's, and returns the findings of `check` for a `host.toml` on it.
fn found(check: fn(&Subject<'_>) -> Vec<Finding>, toml: &str, files: &[(&str, &str)]) -> Vec<Finding> {
    let root = tempfile::tempdir().unwrap();
    let machine = Machine { root: root.path().to_owned() };
    let run_dir = root.path().join("run");
    for (path, text) in files {
        let path = machine.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.replace("RUN_DIR", &run_dir.display().to_string())).unwrap();
    }
    let document = config::parse(&format!("[host]\nname = \"a\"\n{toml}")).unwrap_or_else(|e| panic!("{e}"));
    check(&Subject { machine: &machine, document: &document, run_dir: &run_dir })
}

/// Returns the levels, and asserts that each finding which is not good has advice.
fn levels(found: &[Finding]) -> Vec<Level> {
    for one in found {
        assert_eq!(one.advice.is_some(), one.level != Level::Good, "{one:?}");
    }
    found.iter().map(|one| one.level).collect()
}

const CPUS: &[(&str, &str)] = &[
    ("/sys/devices/system/cpu/online", "0-3\n"),
    ("/sys/devices/system/cpu/isolated", "2-3\n"),
    ("/sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2\n"),
    ("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n"),
    ("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n"),
];

#[test]
fn workers_want_cpus_of_their_own() {
    let cpus = |workers: &str| found(cpus::check, &format!("workers = {workers}"), CPUS);
    assert_eq!(levels(&cpus("[2, 3]")), [Level::Good]);
    let absent = cpus("[2, 99]");
    assert_eq!(levels(&absent), [Level::Broken]);
    assert!(absent[0].message.contains("99") && !absent[0].message.contains('2'), "{absent:?}");
    let shared = cpus("[1, 2]");
    assert_eq!(levels(&shared), [Level::Warning]);
    assert!(shared[0].advice.as_ref().unwrap().contains("isolcpus=1"), "{shared:?}");
    assert!(cpus("[0, 1]").iter().any(|one| one.message.contains("threads of the same cores")));
    assert!(cpus("[0, 1, 2, 3]").iter().any(|one| one.message.contains("every CPU")));
    assert_eq!(levels(&found(cpus::check, "", CPUS)), [Level::Warning], "isolated for nobody");
}

const VM: &str = "[[network]]\nname = \"blue\"\nvrf = 1\n[[guest]]\nname = \"vm1\"\nnetwork = \"blue\"\n\
    kind = \"vhost\"\n";

#[test]
fn huge_pages_count_for_vms() {
    let none = |toml| found(memory::check, toml, &[]);
    assert_eq!(levels(&none("")), [Level::Good]);
    assert_eq!(levels(&none(VM)), [Level::Warning]);
    let some = |free| {
        let directory = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        let free_pages = format!("{directory}/free_hugepages");
        found(memory::check, VM, &[(&format!("{directory}/nr_hugepages"), "8\n"), (&free_pages, free)])
    };
    assert_eq!(levels(&some("3\n")), [Level::Good]);
    assert_eq!(levels(&some("0\n")), [Level::Warning]);
}

#[test]
fn devices_count_for_guests_that_need_them() {
    let files = &[("/dev/kvm", "")];
    let no_kvm = found(guests::check, VM, files);
    assert_eq!(levels(&no_kvm), [Level::Warning, Level::Good]);
    assert!(no_kvm[0].message.contains("makes no virtual machine"), "{no_kvm:?}");
    assert_eq!(levels(&found(guests::check, VM, &[])), [Level::Warning, Level::Good]);
    let tap = VM.replace("vhost\"", "tap\"\ndevice = \"t\"");
    assert_eq!(levels(&found(guests::check, &tap, files)), [Level::Good, Level::Broken]);
}

#[test]
fn windows_want_memory_and_vsock() {
    use windows::Memory;
    const MB: u64 = 1 << 20;
    let judged = |memory: Memory, sizes: &[u64]| {
        let sizes: Vec<_> = sizes.iter().map(|mb| mb * MB).collect();
        let found = memory.judge(Path::new("/run/viaduct/rdma/vm"), &sizes);
        (levels(std::slice::from_ref(&found))[0], found.advice.unwrap_or_default())
    };
    let tmpfs = |room: u64| Memory::Tmpfs { room: Some(room * MB), others: 0 };
    assert_eq!(judged(tmpfs(96), &[64, 32]).0, Level::Good);
    assert_eq!(judged(Memory::Tmpfs { room: None, others: 0 }, &[64]).0, Level::Good);
    let (level, advice) = judged(tmpfs(95), &[64, 32]);
    assert!(level == Level::Warning && advice.contains("remount,size=96M"), "{advice}");
    assert_eq!(judged(tmpfs(63), &[64]).0, Level::Broken);
    assert_eq!(judged(Memory::Disk, &[64]).0, Level::Broken);
    let huge = |room: u64| Memory::HugePages { page: 2 * MB, room: room * MB };
    assert_eq!(judged(huge(96), &[64, 32]).0, Level::Good);
    let (level, advice) = judged(huge(90), &[64, 32]);
    assert!(level == Level::Broken && advice.starts_with("3 pages more"), "{advice}");
    assert_eq!(judged(Memory::HugePages { page: 1 << 30, room: 1 << 40 }, &[64]).0, Level::Broken);

    assert_eq!(found(windows::check, VM, &[]), []);
    let window = format!(
        "{VM}mac = \"02:00:00:00:00:01\"\naddresses = [\"10.1.1.1\"]\nrdma = \"vm1\"\nwindow_mb = 64\n\
         rdma_trust = \"t\"\n"
    );
    let vsock = |files: &[(&str, &str)]| found(windows::check, &window, files).pop().unwrap();
    assert_eq!((vsock(&[]).check, vsock(&[]).level), ("vsock", Level::Warning));
    assert_eq!(vsock(&[("/dev/vhost-vsock", "")]).level, Level::Good);
    // The guest's own window, and the common one.
    assert!(
        found(windows::check, &window, &[])[0].advice.as_ref().is_none_or(|said| said.contains("size=128M"))
    );
}

const WIRE: &str = "[[wire]]\nname = \"up0\"\ndriver = \"af-xdp\"\ndevice = \"e1\"\nmtu = 1500\n\
    addresses = [\"192.0.2.1/24\"]\n";

#[test]
fn a_wires_device_is_there_up_and_takes_its_packets() {
    let wire = |flags, mtu| {
        let files = &[
            ("/sys/class/net/e1/flags", flags),
            ("/sys/class/net/e1/mtu", mtu),
            ("/sys/class/net/e1/queues/rx-0/rps_cpus", "0\n"),
        ];
        let mut found = found(wires::check, &format!("workers = [0, 1]\n{WIRE}"), files);
        assert_eq!(found.pop().unwrap().check, "mtu");
        assert!(found.pop().unwrap().message.contains("1 receive queues for 2 workers"));
        levels(&found)
    };
    assert_eq!(wire("0x1003\n", "1500\n"), []);
    assert_eq!(wire("0x1002\n", "1500\n"), [Level::Broken]);
    assert_eq!(wire("0x1003\n", "1400\n"), [Level::Broken]);
    let absent = found(wires::check, WIRE, &[]);
    assert_eq!(levels(&absent)[0], Level::Broken, "{absent:?}");
}

#[test]
fn the_way_out_wants_a_kernel_that_forwards() {
    let toml = "[[network]]\nname = \"blue\"\nvrf = 1\ngateways = [\"10.1.1.254/24\"]\nsnat = \"host\"\n";
    let forward = |value| found(ways_out::check, toml, &[("/proc/sys/net/ipv4/ip_forward", value)]);
    assert_eq!(levels(&found(ways_out::check, "", &[])), []);
    assert_eq!(levels(&forward("1\n")), [Level::Good]);
    let closed = forward("0\n");
    assert_eq!(levels(&closed), [Level::Broken]);
    assert_eq!(closed[0].advice.as_deref(), Some("sysctl -w net.ipv4.ip_forward=1"));
}

#[test]
fn packets_fit_the_tunnels_of_their_network() {
    let route = "[[route]]\nnetwork = \"blue\"\nprefix = \"10.9.0.0/16\"\n\
        to = [{ tunnel = \"mpls-over-udp\", remote = \"192.0.2.2\", label = 100 }]\n";
    let chain = |mtu: &str| {
        let toml = format!("{WIRE}{}{route}", VM.replace("vrf = 1\n", &format!("vrf = 1\n{mtu}")));
        found(wires::check, &toml, &[]).pop().unwrap()
    };
    assert_eq!(chain("").level, Level::Good);
    // 20 bytes of IPv4, 8 of UDP, 4 of the label.
    assert_eq!(chain("mtu = 1468\n").level, Level::Good);
    let long = chain("mtu = 1469\n");
    assert!(long.level == Level::Warning && long.advice.as_ref().unwrap().contains("mtu = 1468"), "{long:?}");
}

#[test]
fn qemu_of_libvirt_reaches_its_sockets() {
    let users = ("/etc/passwd", "root:x:0:0::/:/bin/sh\nlibvirt-qemu:x:64055:108::/:/bin/false\n");
    let groups = ("/etc/group", "viaduct:x:998:libvirt-qemu\n");
    assert_eq!(levels(&found(libvirt::check, VM, &[])), [Level::Good], "no libvirt");
    assert_eq!(levels(&found(libvirt::check, VM, &[users, groups])), [Level::Good], "guests of bare QEMU");
    let other = ("/etc/libvirt/qemu/vm2.xml", "<source type='unix' path='RUN_DIR/vm2.sock' mode='client'/>");
    assert_eq!(levels(&found(libvirt::check, VM, &[users, groups, other])), [Level::Good]);
    let domain = ("/etc/libvirt/qemu/vm1.xml", "<source type='unix' path='RUN_DIR/vm1.sock' mode='client'/>");
    let foreign = found(libvirt::check, VM, &[users, groups, other, domain]);
    assert_eq!(levels(&foreign), [Level::Warning]);
    assert!(foreign[0].advice.as_ref().unwrap().contains("owner = \"libvirt-qemu:kvm\""), "{foreign:?}");
    let owned = format!("{VM}owner = \"libvirt-qemu:kvm\"\n");
    assert_eq!(levels(&found(libvirt::check, &owned, &[users, groups, domain])), [Level::Good]);
}

#[test]
fn a_socket_that_is_there_is_looked_at() {
    let listening = |mode: u32| {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let socket = directory.path().join("vm1.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let machine = Machine { root: directory.path().to_owned() };
        fs::create_dir(machine.path("/etc")).unwrap();
        fs::write(machine.path("/etc/passwd"), "libvirt-qemu:x:64055:64055::/:/bin/false\n").unwrap();
        fs::create_dir_all(machine.path("/run/libvirt/qemu")).unwrap();
        let domain = format!("<source path=\"{}\"/>", socket.display());
        fs::write(machine.path("/run/libvirt/qemu/vm1.xml"), domain).unwrap();
        let document = config::parse(&format!("[host]\nname = \"a\"\n{VM}")).unwrap();
        levels(&libvirt::check(&Subject {
            machine: &machine,
            document: &document,
            run_dir: directory.path(),
        }))
    };
    assert_eq!(listening(0o666), [Level::Good]);
    assert_eq!(listening(0o660), [Level::Warning]);
}

#[test]
fn users_the_sandbox_and_the_kernel_are_looked_at() {
    let privileges = found(privileges::check, "", &[("/etc/passwd", "viaduct:x:998:998::/:/bin/false\n")]);
    assert_eq!(
        privileges.iter().map(|one| one.check).collect::<Vec<_>>(),
        ["capabilities", "user", "sandbox"]
    );
    assert_eq!(privileges[1].level, Level::Good);
    assert_eq!(found(privileges::check, "", &[])[1].level, Level::Warning);
    levels(&privileges);
    let readers = |group| found(privileges::check, &format!("readers = \"{group}\""), &[]);
    assert_eq!([readers("root").len(), readers("4711").len()], [3, 3]);
    assert_eq!(levels(&readers("no-such-group")[3..]), [Level::Warning]);
    let owner = |owner| found(privileges::check, &format!("{VM}owner = \"{owner}\""), &[]);
    assert_eq!([owner("root:root").len(), owner("4711").len()], [3, 3]);
    let unknown = owner("root:no-such-group");
    assert_eq!(levels(&unknown[3..]), [Level::Broken]);
    assert!(
        unknown[3].message.contains("guest \"vm1\": owner: there is no group \"no-such-group\""),
        "{unknown:?}"
    );
    levels(&found(kernel::check, WIRE, &[]));
}
