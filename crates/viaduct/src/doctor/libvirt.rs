//! Checks whether QEMU, as libvirt starts it, may connect to the sockets of guests.

use super::{Finding, Machine, Subject};
use config::{GuestKind, Role, VhostUser};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const CHECK: &str = "libvirt";
/// The users as which libvirt starts QEMU: on Debian and Ubuntu, and elsewhere.
const USERS: [&str; 2] = ["libvirt-qemu", "qemu"];

/// A user and its groups.
struct User {
    name: String,
    uid: u32,
    groups: Vec<u32>,
}

/// Checks the socket of each guest on which Viaduct listens.
pub fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let Some(user) = user(subject) else {
        return vec![Finding::good(CHECK, "not installed here: no user libvirt-qemu")];
    };
    let vhosts = subject.guests(GuestKind::Vhost).filter_map(|guest| Some((guest, guest.vhost()?)));
    let mut guests = vhosts.filter(|(_, vhost)| vhost.role == Role::Server).peekable();
    if guests.peek().is_none() {
        return vec![Finding::good(CHECK, "no sockets of guests to look at")];
    }
    let domains = domains(subject.machine);
    let mut of_libvirt =
        guests.filter(|(_, vhost)| is_of_libvirt(subject, vhost, domains.as_deref())).peekable();
    if of_libvirt.peek().is_none() {
        return vec![Finding::good(CHECK, "no domain of libvirt has the socket of a guest")];
    }
    let found: Vec<_> =
        of_libvirt.filter_map(|(guest, vhost)| socket(subject, &guest.name, vhost, &user)).collect();
    if found.is_empty() {
        return vec![Finding::good(CHECK, format!("{} may connect to the sockets of its guests", user.name))];
    }
    found
}

/// Returns the texts of libvirt's domains, defined ones and running ones; `None` if that is not known, because this
/// user may not read them.
fn domains(machine: &Machine) -> Option<String> {
    let mut texts = String::new();
    for directory in ["/etc/libvirt/qemu", "/run/libvirt/qemu"] {
        let files = match std::fs::read_dir(machine.path(directory)) {
            Ok(files) => files.flatten().map(|entry| entry.path()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(_) => return None,
        };
        for file in files.filter(|file| file.extension().is_some_and(|end| end == "xml")) {
            texts += &std::fs::read_to_string(file).ok()?;
        }
    }
    Some(texts)
}

/// Returns whether a domain has the guest's socket. If domains are not known, each guest may have one.
fn is_of_libvirt(subject: &Subject<'_>, vhost: &VhostUser, domains: Option<&str>) -> bool {
    let Some(domains) = domains else { return true };
    let path = subject.run_dir.join(&vhost.socket).display().to_string();
    ['\'', '"'].iter().any(|quote| domains.contains(&format!("{quote}{path}{quote}")))
}

fn user(subject: &Subject<'_>) -> Option<User> {
    let passwd = subject.machine.text("/etc/passwd")?;
    let groups = subject.machine.text("/etc/group").unwrap_or_default();
    let mut users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let entry = users.find(|fields| fields.len() > 3 && USERS.contains(&fields[0]))?;
    let (name, uid, gid) = (entry[0].to_owned(), entry[2].parse().ok()?, entry[3].parse().ok()?);
    let member =
        |line: &&str| line.rsplit(':').next().is_some_and(|list| list.split(',').any(|one| one == name));
    let number = |line: &str| line.split(':').nth(2)?.parse().ok();
    let groups = groups.lines().filter(member).filter_map(number).chain([gid]).collect();
    Some(User { name, uid, groups })
}

fn socket(subject: &Subject<'_>, guest: &str, vhost: &VhostUser, user: &User) -> Option<Finding> {
    let path = subject.run_dir.join(&vhost.socket);
    let advice =
        format!("owner = \"{}:kvm\" for guest {guest} in the file, then: viaduct apply FILE", user.name);
    if path.exists() {
        return (!may(&path, user, Wanted::Write))
            .then(|| {
                let message =
                    format!("{} may not write {}, the socket of guest {guest}", user.name, path.display());
                Finding::warning(CHECK, message, advice)
            })
            .or_else(|| closed(&path, user));
    }
    // Without the daemon, only the configuration tells the socket's owner.
    let owner = vhost.owner.as_deref().and_then(|owner| owner.split(':').next());
    let is_its_own = owner.is_some_and(|owner| owner == user.name || owner == user.uid.to_string());
    (!is_its_own).then(|| {
        let message = format!("guest {guest}: its socket will not belong to {}, QEMU's user", user.name);
        Finding::warning(CHECK, message, advice)
    })
}

/// Finds the first directory above the socket that the user may not search.
fn closed(path: &Path, user: &User) -> Option<Finding> {
    let closed: PathBuf = path.ancestors().skip(1).find(|dir| !may(dir, user, Wanted::Search))?.into();
    let message = format!("{} may not search {}, above sockets of guests", user.name, closed.display());
    Some(Finding::warning(CHECK, message, format!("chmod o+x {}", closed.display())))
}

#[derive(Clone, Copy)]
enum Wanted {
    Search = 1,
    Write = 2,
}

/// Is true if the mode of a file permits access to the user. Ignores access control lists.
fn may(path: &Path, user: &User, wanted: Wanted) -> bool {
    let Ok(file) = path.metadata() else { return false };
    let shift = if file.uid() == user.uid {
        6
    } else if user.groups.contains(&file.gid()) {
        3
    } else {
        0
    };
    file.mode() >> shift & wanted as u32 != 0
}
