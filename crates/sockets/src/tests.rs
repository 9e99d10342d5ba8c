//! Sockets in directories of every kind.

use super::*;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use tempfile::TempDir;

/// Makes a directory, and one in it named `name` with `mode`.
fn directory(name: &str, mode: u32) -> (TempDir, PathBuf) {
    let outer = tempfile::tempdir().unwrap();
    let inner = outer.path().join(name);
    fs::create_dir(&inner).unwrap();
    fs::set_permissions(&inner, Permissions::from_mode(mode)).unwrap();
    (outer, inner)
}

fn place(dir: &Path) -> Place {
    Place { path: dir.join("vm.sock"), owner: None, mode: 0o626 }
}

fn listen_at(dir: &Path) -> Result<(OwnedFd, SocketFile), Error> {
    listen(&place(dir), SocketType::STREAM, 1)
}

#[test]
fn a_socket_is_there_while_it_is_listened_on() {
    let (_outer, dir) = directory("run", 0o755);
    let place = Place {
        owner: Some((rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())),
        ..place(&dir)
    };
    let (_socket, file) = listen(&place, SocketType::STREAM, 1).unwrap();
    assert_eq!(fs::metadata(&place.path).unwrap().mode() & 0o7777, 0o626, "whatever the umask");
    UnixStream::connect(&place.path).unwrap();
    drop(file);
    assert!(!place.path.exists());
}

#[test]
fn the_file_belongs_to_whom_it_is_for() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (_outer, dir) = directory("run", 0o755);
    // This holds even if the directory belongs to that user.
    std::os::unix::fs::chown(&dir, Some(4711), Some(4712)).unwrap();
    assert!(matches!(listen_at(&dir), Err(Error::Writable { who, .. }) if who == "user 4711"));
    let place = Place { owner: Some((4711, 4712)), ..place(&dir) };
    let _listening = listen(&place, SocketType::SEQPACKET, 1).unwrap();
    let meta = fs::metadata(&place.path).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (4711, 4712, 0o626));
}

/// The new mode is for a group to which the file does not belong.
#[test]
fn a_file_that_cannot_be_given_away_stays_closed() {
    let (_outer, dir) = directory("run", 0o755);
    let place = Place { mode: 0o600, ..place(&dir) };
    let (_socket, file) = listen(&place, SocketType::STREAM, 1).unwrap();
    // Even root can't do it without capabilities. Capabilities belong to a thread.
    let given = std::thread::spawn(move || {
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, none).unwrap();
        let given = file.give_to(Some((rustix::process::geteuid().as_raw(), 4712)), 0o660);
        (given.map_err(|e| e.to_string()), file)
    });
    let (given, _file) = given.join().unwrap();
    assert!(given.is_err_and(|why| why.contains("not permitted")));
    assert_eq!(fs::metadata(&place.path).unwrap().mode() & 0o7777, 0o600);
}

/// File systems reuse the inode number of a removed file.
#[test]
fn a_file_with_the_number_of_the_socket_is_not_the_socket() {
    let (_outer, dir) = directory("run", 0o755);
    let path = place(&dir).path;
    fs::write(&path, "precious").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let meta = fs::metadata(&path).unwrap();
    let name = path.file_name().unwrap().to_owned();
    let file = SocketFile { dir: fs::File::open(&dir).unwrap().into(), name, id: (meta.dev(), meta.ino()) };
    assert!(matches!(file.give_to(None, 0o666), Err(Error::Replaced(_))));
    drop(file);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn a_connection_follows_no_link_of_others() {
    let (_outer, dir) = directory("run", 0o755);
    let (_socket, _file) = listen_at(&dir).unwrap();
    let path = place(&dir).path;
    Here.connect(&path).unwrap();
    // One of our links, to a directory.
    symlink(&dir, dir.join("ours")).unwrap();
    Here.connect(&dir.join("ours/vm.sock")).unwrap();
    // A link in place of the socket could belong to anybody who owns the directory.
    symlink(&path, dir.join("link.sock")).unwrap();
    assert!(matches!(Here.connect(&dir.join("link.sock")), Err(Error::Link(_))));
    fs::write(dir.join("file"), "").unwrap();
    assert!(matches!(Here.connect(&dir.join("file")), Err(Error::NotSocket(_))));
    let missing = Here.connect(&dir.join("missing")).unwrap_err();
    assert!(matches!(missing, Error::Os { source, .. } if source.kind() == io::ErrorKind::NotFound));
    // In a directory that others can write, their sockets are used, but not their links.
    let theirs = dir.join("theirs");
    fs::create_dir(&theirs).unwrap();
    let _listening = UnixListener::bind(theirs.join("vm.sock")).unwrap();
    symlink(&dir, theirs.join("dir")).unwrap();
    fs::set_permissions(&theirs, Permissions::from_mode(0o777)).unwrap();
    Here.connect(&theirs.join("vm.sock")).unwrap();
    assert!(matches!(Here.connect(&theirs.join("dir/vm.sock")), Err(Error::Link(_))));
}

#[test]
fn it_is_given_away_unless_something_took_its_place() {
    let (_outer, dir) = directory("run", 0o755);
    let (_socket, file) = listen_at(&dir).unwrap();
    let path = place(&dir).path;
    file.give_to(None, 0o600).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    fs::remove_file(&path).unwrap();
    fs::write(dir.join("precious"), "").unwrap();
    fs::set_permissions(dir.join("precious"), Permissions::from_mode(0o640)).unwrap();
    symlink(dir.join("precious"), &path).unwrap();
    assert!(matches!(file.give_to(None, 0o666), Err(Error::Replaced(_))));
    assert_eq!(fs::metadata(dir.join("precious")).unwrap().mode() & 0o7777, 0o640);
}

/// Users who may write a directory may give a name there to somebody else's socket, if the kernel lets them
/// (`fs.protected_hardlinks` is 0).
#[test]
fn a_socket_of_several_names_is_not_taken_over() {
    let (_outer, dir) = directory("run", 0o755);
    let path = place(&dir).path;
    let (_socket, _file) = listen_at(&dir).unwrap();
    let theirs = dir.join("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::set_permissions(&theirs, Permissions::from_mode(0o1777)).unwrap();
    fs::hard_link(&path, theirs.join("vm.sock")).unwrap();
    assert!(matches!(adopt(&theirs.join("vm.sock"), None), Err(Error::Replaced(_))));
    // The second name is no reason to refuse the socket where nobody else can make names.
    let own = adopt(&path, None).unwrap();
    own.give_to(None, 0o600).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn what_took_the_place_of_a_socket_stays() {
    let (_outer, dir) = directory("run", 0o755);
    let (_socket, file) = listen_at(&dir).unwrap();
    let path = place(&dir).path;
    fs::rename(&path, dir.join("away")).unwrap();
    fs::write(&path, "precious").unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn only_a_stale_socket_is_replaced() {
    let (_outer, dir) = directory("run", 0o755);
    let path = place(&dir).path;
    drop(UnixListener::bind(&path).unwrap());
    let listening = listen_at(&dir).unwrap();
    assert!(matches!(listen_at(&dir), Err(Error::InUse(_))));
    let seqpacket = listen(&place(&dir), SocketType::SEQPACKET, 1);
    assert!(matches!(seqpacket, Err(Error::InUse(_))), "{seqpacket:?}");
    drop(listening);
    fs::write(&path, "precious").unwrap();
    assert!(matches!(listen_at(&dir), Err(Error::NotSocket(_))));
    fs::remove_file(&path).unwrap();
    // Nor does it go to the target of a link.
    let secret = dir.join("secret");
    fs::write(&secret, "precious").unwrap();
    let mode = fs::metadata(&secret).unwrap().mode();
    symlink("secret", &path).unwrap();
    assert!(matches!(listen_at(&dir), Err(Error::NotSocket(_))));
    assert_eq!(
        (fs::read(&secret).unwrap(), fs::metadata(&secret).unwrap().mode()),
        (b"precious".to_vec(), mode)
    );
}

#[test]
fn links_are_followed_only_where_nobody_else_made_them() {
    let (outer, shared) = directory("shared", 0o770);
    let (_target, secret) = directory("secret", 0o755);
    symlink(&secret, shared.join("sub")).unwrap();
    let refused = listen_at(&shared.join("sub"));
    assert!(matches!(refused, Err(Error::Link(path)) if path == shared.join("sub")));
    assert_eq!(fs::read_dir(&secret).unwrap().count(), 0);
    // Our own links may be used, also with a relative target, and several on one path.
    symlink(&secret, outer.path().join("first")).unwrap();
    symlink("./shared/../first", outer.path().join("second")).unwrap();
    let (_socket, _file) = listen_at(&outer.path().join("second")).unwrap();
    assert!(secret.join("vm.sock").exists());
    symlink("circle", outer.path().join("circle")).unwrap();
    assert!(matches!(listen_at(&outer.path().join("circle")), Err(Error::Os { .. })));
}

#[test]
fn directories_that_others_can_write_are_refused() {
    let (_outer, dir) = directory("everybody", 0o777);
    let below = dir.join("below");
    fs::create_dir(&below).unwrap();
    for at in [&dir, &below] {
        let error = listen_at(at).unwrap_err();
        assert!(matches!(&error, Error::Writable { dir: it, .. } if *it == dir), "{error}");
        assert!(error.to_string().contains("everybody"), "{error}");
    }
    // They may write it if they can only add files of their own.
    fs::set_permissions(&dir, Permissions::from_mode(0o1777)).unwrap();
    listen_at(&dir).unwrap();
    listen_at(&below).unwrap();
}

#[test]
fn paths_may_be_long_and_may_be_wrong() {
    let (_outer, dir) = directory(&"long".repeat(40), 0o755);
    let (_socket, _file) = listen_at(&dir).unwrap();
    assert!(place(&dir).path.exists());
    for wrong in [dir.join("x".repeat(300)), dir.join("not there/vm.sock"), dir.join("vm.sock/x"), "/".into()]
    {
        let refused = listen(&Place { path: wrong.clone(), ..place(&dir) }, SocketType::STREAM, 1);
        assert!(matches!(refused, Err(Error::Os { .. })), "{}", wrong.display());
    }
}
