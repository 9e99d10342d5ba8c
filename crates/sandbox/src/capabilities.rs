use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};
use std::io;

/// Capability numbers that this version knows; the kernel decides which of them exist.
const NUMBERS: std::ops::Range<u32> = 0..64;

/// Removes all capabilities from the bounding set. Needs CAP_SETPCAP.
pub(crate) fn empty_bounding_set() -> io::Result<()> {
    for capability in NUMBERS.map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            Ok(false) => {}
            // Number past the kernel's last capability.
            Err(Errno::INVAL) => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Keeps the capabilities of `wanted` that the process has, and makes them effective.
pub(crate) fn keep(wanted: CapabilitySet) -> io::Result<()> {
    clear_ambient_capability_set()?;
    let kept = capabilities(None)?.permitted & wanted;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// Returns the capabilities that the process has or may have.
pub(crate) fn present() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted | sets.effective)
}

/// Returns the capabilities that an executed program could gain.
pub(crate) fn bounding() -> CapabilitySet {
    NUMBERS
        .map(|number| CapabilitySet::from_bits_retain(1 << number))
        .filter(|capability| capability_is_in_bounding_set(*capability).unwrap_or(false))
        .collect()
}

/// Returns the capabilities' names in lower case, as systemd and capsh print them.
#[must_use]
pub fn names(set: CapabilitySet) -> Vec<String> {
    set.iter_names().map(|(name, _)| format!("cap_{}", name.to_ascii_lowercase())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_manual() {
        let set = CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
        assert_eq!(names(set), ["cap_net_admin", "cap_bpf"]);
    }
}
