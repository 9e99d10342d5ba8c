//! Finds other daemons on the device of a wire. Two of them both take each packet, and both answer.

use super::{Finding, Subject};
use config::Wire;
use std::path::{Path, PathBuf};

/// Checks who has packet sockets on the device. A second AF_XDP program is refused at the start.
pub fn check(subject: &Subject<'_>, (wire, device): (&Wire, &str)) -> Option<Finding> {
    let machine = subject.machine;
    let index = machine.number(&format!("/sys/class/net/{device}/ifindex"))?;
    let sockets = sockets(&machine.text("/proc/net/packet")?, index);
    let processes = std::fs::read_dir(machine.path("/proc")).ok()?.flatten().map(|entry| entry.path());
    let (pid, run_dir) = processes.filter(|process| holds(process, &sockets)).find_map(|process| {
        let run_dir = run_dir_of_daemon(&std::fs::read(process.join("cmdline")).ok()?)?;
        let pid = process.file_name()?.to_string_lossy().into_owned();
        (run_dir != subject.run_dir).then_some((pid, run_dir))
    })?;
    Some(Finding::broken(
        "wire",
        format!(
            "{}: another viaductd (pid {pid}, run-dir {}) has {device} open: both take each packet",
            wire.name,
            run_dir.display()
        ),
        "give each daemon a device of its own",
    ))
}

/// Returns the inodes of packet sockets on the interface with this index, from `/proc/net/packet`.
fn sockets(table: &str, index: u64) -> Vec<String> {
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let on_it = rows.filter(|row| row.get(4).and_then(|number| number.parse().ok()) == Some(index));
    on_it.filter_map(|row| Some(format!("socket:[{}]", row.get(8)?))).collect()
}

fn holds(process: &Path, sockets: &[String]) -> bool {
    let Ok(descriptors) = std::fs::read_dir(process.join("fd")) else { return false };
    let links = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.into_iter().any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str()))
}

/// Returns the run-dir of a daemon with this command line; `None` if it is another program's.
fn run_dir_of_daemon(command_line: &[u8]) -> Option<PathBuf> {
    let text = String::from_utf8_lossy(command_line);
    let mut words = text.split('\0');
    let program = words.next()?.rsplit('/').next()?;
    if program != "viaductd" {
        return None;
    }
    let named =
        words.clone().zip(words.skip(1)).find_map(|(word, next)| match word.strip_prefix("--run-dir") {
            Some("") => Some(next.to_owned()),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        });
    Some(named.unwrap_or_else(|| api::RUN_DIR.to_owned()).into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::{Level, Machine};
    use super::*;

    #[test]
    fn a_second_daemon_on_the_device_is_named() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine { root: root.path().to_owned() };
        let write = |path: &str, text: &str| {
            std::fs::create_dir_all(machine.path(path).parent().unwrap()).unwrap();
            std::fs::write(machine.path(path), text).unwrap();
        };
        write("/sys/class/net/e1/ifindex", "4\n");
        let table = "sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n\
            0000000000000000 3      3    0003   4     1 0      0      815\n\
            0000000000000000 3      3    0003   5     1 0      0      816\n";
        write("/proc/net/packet", table);
        for (pid, inode, words) in [
            (7, 815, "/usr/bin/tcpdump\0-i\0e1\0"),
            (8, 815, "viaductd\0--config\0x.toml\0--run-dir\0/run/own\0"),
            (9, 816, "viaductd\0"),
        ] {
            write(&format!("/proc/{pid}/cmdline"), words);
            std::fs::create_dir_all(machine.path(&format!("/proc/{pid}/fd"))).unwrap();
            let link = machine.path(&format!("/proc/{pid}/fd/12"));
            std::os::unix::fs::symlink(format!("socket:[{inode}]"), link).unwrap();
        }
        let wire = "[[wire]]\nname = \"up0\"\ndriver = \"af-packet\"\ndevice = \"e1\"\naddresses = [\"192.0.2.1/24\"]\n";
        let document = config::parse(&format!("[host]\nname = \"a\"\n{wire}")).unwrap();
        let found = |run_dir: &str| {
            let subject = Subject { machine: &machine, document: &document, run_dir: Path::new(run_dir) };
            let nic = subject.nics().next().unwrap();
            check(&subject, nic)
        };
        assert_eq!(found("/run/own"), None);
        let other = found("/run/viaduct").unwrap();
        assert!(
            other.level == Level::Broken && other.message.contains("pid 8, run-dir /run/own"),
            "{other:?}"
        );
    }
}
