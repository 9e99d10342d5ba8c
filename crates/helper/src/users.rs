//! Users and groups by name.

use nix::unistd::{Group, User};

/// Makes the C library load its modules for look-ups (nsswitch.conf(5)) while the process may still load code.
pub(crate) fn prepare() {
    // Every module is asked for a name that nobody has.
    let _ = User::from_name("-");
    let _ = Group::from_name("-");
}

/// User and group id of `user` or `user:group`, by name or number. Without a group, it is the user's primary one.
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

/// An id in digits. The highest number is nobody's: to chown(2) it means that the owner stays.
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
