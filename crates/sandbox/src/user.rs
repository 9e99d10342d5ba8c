//! Users and groups by name, and becoming another user.

use nix::unistd::{Gid, Group, Uid, User, geteuid, setgroups, setresgid, setresuid};
use std::io;

/// The user that a daemon becomes if root started it.
pub const USER: &str = "viaduct";

/// User and group if the user [`USER`] does not exist. No account has this number: systemd reserves 61184 to 65519 for
/// users that it invents while a service runs, and picks them by a hash of the service's name, so another service
/// hardly gets the same.
const NOBODY_ELSE: u32 = 64_917;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

/// Returns the user that a daemon of root becomes: [`USER`] if it exists, otherwise a number that nobody has.
#[must_use]
pub fn account() -> Account {
    let user = User::from_name(USER).ok().flatten();
    user.map_or(Account { uid: NOBODY_ELSE, gid: NOBODY_ELSE }, |user| Account {
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
    })
}

pub(crate) fn name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Switches to this user if the process belongs to root. Capabilities stay.
pub(crate) fn become_account(Account { uid, gid }: Account) -> io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let failed = |what: &str, e: nix::Error| {
        let error = io::Error::from(e);
        io::Error::new(error.kind(), format!("it stays root: {what}: {error}"))
    };
    rustix::thread::set_keep_capabilities(true)?;
    // The call that fails if ids are not mapped comes first: all three happen, or none.
    setgroups(&[]).map_err(|e| failed("setgroups", e))?;
    setresgid(gid, gid, gid).map_err(|e| failed("setresgid", e))?;
    setresuid(uid, uid, uid).map_err(|e| failed("setresuid", e))
}

/// Returns the user and group id of `user` or `user:group`, by name or number. Without a group, the group is
/// the user's primary one.
///
/// # Errors
/// If there is no such user or group.
pub fn lookup(owner: &str) -> Result<(u32, u32), String> {
    let (user, group) = match owner.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (owner, None),
    };
    let account = User::from_name(user).map_err(|e| format!("user \"{user}\": {e}"))?;
    let uid = account.as_ref().map(|account| account.uid.as_raw()).or_else(|| number(user));
    let uid = uid.ok_or_else(|| format!("there is no user \"{user}\""))?;
    let Some(group) = group else {
        return Ok((uid, account.map_or(uid, |account| account.gid.as_raw())));
    };
    let found = Group::from_name(group).map_err(|e| format!("group \"{group}\": {e}"))?;
    let gid = found.map(|group| group.gid.as_raw()).or_else(|| number(group));
    Ok((uid, gid.ok_or_else(|| format!("there is no group \"{group}\""))?))
}

/// Reads an id in digits. Returns `None` for the highest number, which is nobody's: to chown(2) it means that
/// the owner stays.
fn number(digits: &str) -> Option<u32> {
    digits.parse().ok().filter(|id| *id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::lookup;

    #[test]
    fn users_by_name_and_number() {
        assert_eq!(lookup("root"), Ok((0, 0)));
        assert_eq!(lookup("1000:7"), Ok((1000, 7)));
        assert_eq!(lookup("root:root"), Ok((0, 0)));
        assert!(lookup("no-such-user").unwrap_err().contains("no-such-user"));
        assert!(lookup("4294967295").is_err() && lookup("root:4294967295").is_err());
        assert!(lookup("root:no-such-group").unwrap_err().contains("no-such-group"));
    }
}
