//! rdma tree: writes the files that the kernel would show for verbs devices in `/sys`, for containers to mount.

use super::sysfs::{CLASSES, Entry, Tree, tree};
use crate::args::TreeArgs;
use crate::client::{Failure, connect};
use crate::commands::Context;
use api::v1::{RdmaRequest, RdmaTable, StatusRequest};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::time::Duration;

/// Time between checks of the devices.
const PERIOD: Duration = Duration::from_secs(1);
/// Suffix of an entry that is written before it replaces the old one.
const NEW: &str = ".new";

pub async fn write(on: &mut Context, args: &TreeArgs) -> Result<(), Failure> {
    own_directory(&args.dir)?;
    loop {
        let written = match wanted(on, args).await {
            Ok(tree) => put(&args.dir, &tree)
                .map_err(|e| Failure::Refused(format!("{} can't be written: {e}", args.dir.display()))),
            Err(failure) => Err(failure),
        };
        match written {
            // Mounted trees stay as they are until there is a daemon again.
            Err(Failure::NoDaemon(_)) if args.follow => {
                if let Ok(client) = connect(&on.run_dir).await {
                    on.client = client;
                }
            }
            other if !args.follow => return other,
            other => other?,
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Makes the directory, and checks that nobody else may change its contents, because links there would lead
/// elsewhere.
fn own_directory(dir: &Path) -> Result<(), Failure> {
    let refuse = |why: String| Failure::Refused(format!("{} can't be written: {why}", dir.display()));
    make_directory(dir).map_err(|e| refuse(e.to_string()))?;
    let found = fs::metadata(dir).map_err(|e| refuse(e.to_string()))?;
    if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(refuse("others may write there: take a directory of your own, of mode 755".into()));
    }
    Ok(())
}

/// Makes a directory that only we may write to, if it does not exist.
fn make_directory(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)
}

/// Makes the tree from the daemon's present devices.
async fn wanted(on: &mut Context, args: &TreeArgs) -> Result<Tree, Failure> {
    let version = on.client.status(StatusRequest {}).await?.into_inner().version;
    let request = RdmaRequest { table: RdmaTable::Device.into(), device: None };
    let mut devices = on.client.rdma(request).await?.into_inner().devices;
    if args.devices.is_empty() {
        // In the order in which a library looks for them.
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        return Ok(tree(devices.iter().map(Some), &version));
    }
    let find = |name: &String| devices.iter().find(|device| device.name == *name);
    if let Some(missing) = args.devices.iter().find(|name| !args.follow && find(name).is_none()) {
        return Err(Failure::Refused(format!(
            "there is no verbs device \"{missing}\"; `viaduct rdma` lists them"
        )));
    }
    Ok(tree(args.devices.iter().map(find), &version))
}

/// Changes a directory to this tree. Files change atomically, one by one. Directories stay, because they may
/// be mounted.
fn put(dir: &Path, tree: &Tree) -> io::Result<()> {
    for (path, entry) in tree {
        let at = dir.join(path);
        if is_there(&at, entry) {
            continue;
        }
        make_directory(at.parent().unwrap_or(dir))?;
        let new = dir.join(NEW);
        // An interrupted run may have left it.
        gone(fs::remove_file(&new))?;
        match entry {
            Entry::File(text) => {
                let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
                file.write_all(text.as_bytes())?;
            }
            Entry::Link(to) => symlink(to, &new)?,
        }
        fs::rename(&new, &at)?;
    }
    for class in CLASSES {
        let path = Path::new("class").join(class);
        make_directory(&dir.join(&path))?;
        remove_others(dir, &path, tree)?;
    }
    Ok(())
}

fn is_there(at: &Path, entry: &Entry) -> bool {
    match entry {
        Entry::File(text) => fs::read_to_string(at).is_ok_and(|old| old == *text),
        Entry::Link(to) => fs::read_link(at).is_ok_and(|old| old == *to),
    }
}

/// Removes everything below a directory that is not in the tree.
fn remove_others(dir: &Path, below: &Path, tree: &Tree) -> io::Result<()> {
    for entry in fs::read_dir(dir.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if !entry.file_type()?.is_dir() {
            if !tree.contains_key(&path) {
                gone(fs::remove_file(entry.path()))?;
            }
            continue;
        }
        remove_others(dir, &path, tree)?;
        if !tree.keys().any(|wanted| wanted.starts_with(&path)) {
            gone(fs::remove_dir(entry.path()))?;
        }
    }
    Ok(())
}

/// Ignores the error that an entry to be removed is gone already.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
}
