//! Memory of the guest that comes and goes.

use super::*;

#[test]
fn memory_comes_and_goes() {
    let (_dir, mut port, mut vmm) = connected("hotplug", BASE, 1);
    assert_eq!(vmm.frontend.get_max_mem_slots().unwrap(), 509);
    let more = Memory::new(0x1_0000);
    // The region begins where the guest's memory ends, so that a buffer can span both.
    let end = GPA + vmm.memory.len as u64;
    let region = more.region(end, USER + 0x100_0000);
    let across = |vmm: &mut Vmm| {
        vmm.memory.ram.write(vmm.memory.len as u64 - 12, &[0; 12]);
        more.ram.write(0, &frame(100, 7));
        vmm.drivers[FROM_GUEST].offer(&[(end - 12, 112, false)], false).unwrap();
    };
    across(&mut vmm);
    assert_eq!(receive(&mut port, 0), []);
    assert_eq!(port.port.status().malformed, 1);
    vmm.frontend.add_mem_region(&region).unwrap();
    across(&mut vmm);
    assert_eq!(receive(&mut port, 0), [(frame(100, 7), Offload::default())]);
    works_after(&mut port, &mut vmm, 2);
    vmm.frontend.add_mem_region(&region).expect("the same again, for the next queue pair");
    vmm.frontend.remove_mem_region(&region).unwrap();
    across(&mut vmm);
    assert_eq!(receive(&mut port, 0), []);
    assert_eq!(port.port.status().malformed, 2);
    works_after(&mut port, &mut vmm, 1);
}

/// Sparse files cost a VMM nothing, so their length counts.
#[test]
fn memory_beyond_the_limits_is_refused() {
    let dir = Dir::new("quota");
    let host = std::sync::Arc::new(mem::HostQuota::new(0x20_0000, 0x28_0000));
    let config = |name: &str| GuestPort {
        name: name.to_owned(),
        socket: dir.0.join(name),
        memory: host.clone(),
        ..dir.port(Role::Server, 1)
    };
    let [mut one, mut other] = ["one", "other"].map(|name| open(&config(name)).unwrap());
    let come = |name: &str| Vmm::new(UnixStream::connect(dir.0.join(name)).unwrap(), BASE, 1);
    let mut vmm = come("one");
    let more = Memory::new(0x18_0000);
    let region = more.region(GPA + 0x1000_0000, USER + 0x1000_0000);
    vmm.frontend.add_mem_region(&region).unwrap();
    vmm.frontend.add_mem_region(&region).expect("the same again takes no more");
    let again = more.region(GPA + 0x2000_0000, USER + 0x2000_0000);
    assert!(vmm.frontend.add_mem_region(&again).is_err());
    until(|| one.port.status().fault.is_some_and(|fault| fault.contains("`guest_memory_mb`")));
    works(&mut one, &mut vmm);
    let mut neighbour = come("other");
    assert!(neighbour.frontend.add_mem_region(&region).is_err());
    until(|| other.port.status().fault.is_some_and(|fault| fault.contains("`guests_memory_mb`")));
    // Memory that a VMM gives back is there for others.
    vmm.frontend.remove_mem_region(&region).unwrap();
    neighbour.frontend.add_mem_region(&region).unwrap();
    works(&mut other, &mut neighbour);
    drop((vmm, neighbour));
    until(|| host.usage().0 == 0);
}

/// QEMU without share=on shares no memory.
#[test]
fn a_vmm_that_shares_no_memory_is_a_fault() {
    let dir = Dir::new("unshared");
    let port = open(&dir.port(Role::Server, 1)).unwrap();
    let stream = UnixStream::connect(dir.0.join("vm.sock")).unwrap();
    let mut frontend = Frontend::from_stream(stream, 2);
    let offered = frontend.get_features().unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    frontend.set_protocol_features(protocol).unwrap();
    frontend.set_features(offered).unwrap();
    frontend.set_vring_enable(0, true).unwrap();
    let fault = || port.port.status().fault.unwrap_or_default();
    until(|| fault().contains("shares no memory"));
    let memory = Memory::new(0x1_0000);
    frontend.set_mem_table(&[memory.region(GPA, USER)]).unwrap();
    until(|| fault().is_empty());
}

/// QEMU with a file and share=off shares a file that does not contain what the guest writes.
#[test]
fn a_vmm_that_shares_a_file_and_not_what_its_guest_writes_there_is_a_fault() {
    let (_dir, mut port, mut vmm) = connected("private", BASE, 1);
    let file = File::from(memfd_create("private", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(vmm.memory.len as u64).unwrap();
    let guests = std::mem::replace(&mut vmm.memory.file, file);
    vmm.frontend.set_mem_table(&[vmm.memory.region(GPA, USER)]).unwrap();
    vmm.send(0, &frame(60, 1));
    let fault = |port: &Opened| port.port.status().fault.unwrap_or_default();
    until(|| fault(&port).contains("nothing of the guest is in the memory"));
    assert_eq!(receive(&mut port, 0), []);
    vmm.memory.file = guests;
    vmm.frontend.set_mem_table(&[vmm.memory.region(GPA, USER)]).unwrap();
    until(|| fault(&port).is_empty());
    assert_eq!(receive(&mut port, 0).len(), 1);
}

#[test]
fn memory_that_is_truncated_disables_its_guest_alone() {
    let (dir, mut port, mut vmm) = connected("truncated", BASE, 1);
    let (_other_dir, mut other, mut other_vmm) = connected("bystander", BASE, 1);
    vmm.send(0, &frame(200, 1));
    let mut burst = Burst::new();
    assert_eq!(port.rx[0].poll(&mut burst, usize::MAX), 1);
    // All memory disappears: the polled packet, and the rings.
    vmm.memory.file.set_len(0).unwrap();
    let mut bytes = [1; 200];
    gather(burst.segments(&burst.packets()[0]), 0, &mut bytes);
    assert_eq!(bytes, [0; 200]);
    port.rx[0].release(&mut burst);
    let status = port.port.status();
    assert!(!status.up && status.fault.unwrap().contains("memory went away"));
    assert_eq!(receive(&mut port, 0), []);
    assert_eq!(deliver(&port, 0, &frame(60, 0), &Offload::default()), Err(NoRoom::Down));
    assert!(!port.rx[0].arm());
    works(&mut other, &mut other_vmm);
    assert_eq!(other.port.status().fault, None);
    // A new VMM, whose memory stays, is served.
    drop(vmm.frontend);
    until(|| port.port.status().features.is_empty());
    let mut vmm = Vmm::new(UnixStream::connect(dir.0.join("vm.sock")).unwrap(), BASE, 1);
    works(&mut port, &mut vmm);
}
