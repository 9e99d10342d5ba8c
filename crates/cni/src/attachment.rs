//! An attachment: the interface of a container in one of the runtime's networks.

use crate::error::Error;

/// The identity of an attachment. All parts may be used in the names of files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attachment {
    pub network: String,
    pub container: String,
    /// The interface's name in the container, as the runtime knows it.
    pub ifname: String,
}

/// Longest name of a network or container, bytes. A file's name may have 255 bytes, and it holds such a name
/// and an interface's.
const MAX_NAME: usize = 200;
/// Longest name of an interface, bytes (`IFNAMSIZ` less the zero).
const MAX_IFNAME: usize = 15;
/// Number of characters by which people recognise a container's identifier.
const SHORT: usize = 12;

impl Attachment {
    /// Checks the names.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Environment`], with the name of the variable.
    pub(crate) fn new(network: &str, container: &str, ifname: &str) -> Result<Self, Error> {
        check_network(network)?;
        if !plain(container, MAX_NAME) {
            return Err(Error::Environment("CNI_CONTAINERID", unfit(container, MAX_NAME)));
        }
        check_ifname(ifname).map_err(|reason| Error::Environment("CNI_IFNAME", reason))?;
        Ok(Self { network: network.to_owned(), container: container.to_owned(), ifname: ifname.to_owned() })
    }

    /// Returns the name of the guest: the part of the container's identifier that people know, and a part
    /// that makes it unique.
    pub(crate) fn guest(&self) -> String {
        let short = &self.container[..self.container.len().min(SHORT)];
        format!("{short}-{}-{}", self.ifname, self.hash())
    }

    /// Returns the name of the tap in the daemon's network namespace.
    pub(crate) fn device(&self) -> String {
        format!("vd{}", self.hash())
    }

    /// Returns a locally administered MAC, for a guest that is given none.
    pub(crate) fn mac(&self) -> String {
        let hash = self.hash();
        let octets: Vec<&str> = (0..5).map(|i| &hash[2 * i..2 * i + 2]).collect();
        format!("02:{}", octets.join(":"))
    }

    /// Returns 48 bits of a hash, as hexadecimal digits. The hash is FNV-1a, because other versions of the
    /// plug-ins must find the same.
    fn hash(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in
            [&self.network, &self.container, &self.ifname].iter().flat_map(|part| part.bytes().chain([0]))
        {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        format!("{:012x}", (hash >> 16) ^ (hash & 0xffff))
    }
}

pub(crate) fn check_network(name: &str) -> Result<(), Error> {
    if plain(name, MAX_NAME) {
        Ok(())
    } else {
        Err(Error::Config(format!("name: {}", unfit(name, MAX_NAME))))
    }
}

pub(crate) fn check_ifname(name: &str) -> Result<(), String> {
    if plain(name, MAX_IFNAME) { Ok(()) } else { Err(unfit(name, MAX_IFNAME)) }
}

fn unfit(name: &str, longest: usize) -> String {
    let name: String = name.chars().take(longest + 1).collect();
    format!(
        "{name:?} can't be a name; use 1 to {longest} letters, digits, '.', '_' or '-', a letter or digit first"
    )
}

/// Returns whether CNI allows a name for networks and containers (1.1.0, sections 1 and 2).
fn plain(name: &str, longest: usize) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.len() <= longest && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_those_of_earlier_versions() {
        let it = Attachment::new("blue", "3f2504e04f8941d39a0c0305e82c3301", "eth0").unwrap();
        assert_eq!(it.guest(), "3f2504e04f89-eth0-8d1aedc721e0");
        assert_eq!(it.device(), "vd8d1aedc721e0");
        assert_eq!(it.mac(), "02:8d:1a:ed:c7:21");
    }

    #[test]
    fn names_that_lead_out_of_a_directory_are_refused() {
        for name in ["", ".", "..", "../x", "a/b", "/a", "a\0", "a b", "-a", "ä", &"a".repeat(201)] {
            assert!(Attachment::new(name, "c", "eth0").is_err(), "{name:?}");
            assert!(Attachment::new("n", name, "eth0").is_err(), "{name:?}");
            assert!(Attachment::new("n", "c", name).is_err(), "{name:?}");
        }
        assert!(Attachment::new("n", "c", "sixteen-letters-").is_err());
    }

    proptest! {
        #[test]
        fn any_names_give_names_that_the_daemon_and_the_kernel_take(
            network in "\\PC{0,20}", container in "[a-z0-9._-]{1,220}", ifname in "[a-z0-9._-]{1,17}",
        ) {
            if let Ok(it) = Attachment::new(&network, &container, &ifname) {
                prop_assert!(it.guest().len() <= 63 && it.device().len() <= MAX_IFNAME);
            }
        }
    }
}
