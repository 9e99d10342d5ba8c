//! Files, restricted by Landlock (landlock(7)): a process opens only what is allowed, whatever its user.

use landlock::Access as _;
use landlock::{
    ABI, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
};
use std::path::Path;

/// The Landlock version for which the rules are written. Rules that the kernel does not know are left out.
const VERSION: ABI = ABI::V6;

/// The access of a process to a file, or to everything below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it, or query a device.
    Write,
    /// Read it, create sockets there and remove files.
    Sockets,
    /// Create, read, write and remove files there.
    Files,
}

/// A file or directory, and the allowed access. Paths that do not exist are left out.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    pub path: &'a Path,
    pub access: Access,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => make_bitflags!(AccessFs::{ReadFile | ReadDir}),
            Self::Write => make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev}),
            Self::Files => {
                make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | Truncate | MakeReg | RemoveFile})
            }
            Self::Sockets => make_bitflags!(AccessFs::{ReadFile | ReadDir | MakeSock | RemoveFile}),
        }
    }
}

/// Forbids all other files and, unless `outside`, TCP sockets, and signals and abstract sockets of processes
/// outside the sandbox. Returns Landlock's version in force.
pub(crate) fn restrict(files: &[File<'_>], outside: bool) -> Result<u32, String> {
    apply(files, outside).map_err(|e| e.to_string())?
}

fn apply(files: &[File<'_>], outside: bool) -> Result<Result<u32, String>, RulesetError> {
    let mut ruleset = Ruleset::default().handle_access(AccessFs::from_all(VERSION))?;
    if !outside {
        ruleset = ruleset.handle_access(AccessNet::from_all(VERSION))?.scope(Scope::from_all(VERSION))?;
    }
    let mut rules = ruleset.create()?;
    for file in files {
        let Ok(path) = PathFd::new(file.path) else { continue };
        let is_directory = file.path.is_dir();
        let rights = file.access.rights();
        let rights = if is_directory { rights } else { rights & AccessFs::from_file(VERSION) };
        rules = rules.add_rule(PathBeneath::new(path, rights))?;
    }
    Ok(match rules.restrict_self()?.landlock {
        LandlockStatus::Available { effective_abi, .. } => Ok((effective_abi as u32).min(VERSION as u32)),
        LandlockStatus::NotEnabled => Err("not enabled in this kernel (lsm=landlock)".to_owned()),
        LandlockStatus::NotImplemented => Err("not in this kernel (CONFIG_SECURITY_LANDLOCK)".to_owned()),
    })
}
