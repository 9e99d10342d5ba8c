//! Tests which files exist in the run-dir: windows and sockets, as long as somebody uses them.

use super::*;

/// A virtual machine with a window, and a container that shares a window with it.
const WINDOWS: &str = r#"
[[guest]]
name = "vm4"
network = "blue"
kind = "vhost"
mac = "02:00:00:00:00:06"
addresses = ["10.1.1.6"]
rdma = "vm4"
rdma_trust = "job7"
window_mb = 64
[[guest]]
name = "hpc2"
network = "blue"
kind = "rdma"
mac = "02:00:00:00:00:07"
addresses = ["10.1.1.7"]
rdma_trust = "job7"
"#;

#[test]
fn windows_are_there_as_long_as_somebody_has_them() {
    let file = format!("{FILE}{WINDOWS}");
    let bench = start(&file);
    let names = || {
        let windows = bench.log.windows.lock().unwrap();
        windows.iter().map(|path| path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["trust-job7", "vm4"]);
    let before = bench.log.take().len();
    let larger = file.replace("window_mb = 64", "window_mb = 128");
    let done = bench.core.take_file(&larger, true).unwrap();
    let (object, note) = &done.notes[0];
    assert!(object == "guest \"vm4\"" && note.contains("has it once it is started again"), "{done:?}");
    assert_eq!(done.notes.len(), 1, "{done:?}");
    bench.core.take_file(&larger, false).unwrap();
    let reopened = bench.log.take()[before..].to_vec();
    assert_eq!(reopened, ["detach vm4:rdma", "open vm4:rdma", "attach vm4:rdma", "update hpc2"]);
    bench.core.take_file(&file.replace("window_mb = 64\n", ""), false).unwrap();
    assert!(names().is_empty());
}

/// A daemon was killed, and its sockets are still there although their guests are gone.
#[test]
fn sockets_of_guests_that_went_without_a_daemon_are_removed() {
    const CLIENT: &str = r#"
[[guest]]
name = "vm5"
network = "blue"
kind = "vhost"
socket = "vm5.sock"
role = "client"
mac = "02:00:00:00:00:08"
addresses = ["10.1.1.8"]
"#;
    let windows = WINDOWS.replace("kind = \"vhost\"", "kind = \"vhost\"\nsocket = \"vm4.sock\"");
    let bench = start(&format!("{FILE}{windows}{CLIENT}"));
    let removed = |bench: &Bench| {
        let lines = bench.log.take();
        lines.into_iter().filter(|line| line.starts_with("remove ")).collect::<Vec<_>>()
    };
    assert_eq!(removed(&bench), [""; 0]);
    // One guest's socket is now that of a different guest. Where the VMM listens, the file is the VMM's.
    let renamed = windows
        .replace("vm4.sock", "vm9.sock")
        .replace("name = \"hpc2\"\n", "name = \"hpc2\"\nrdma = \"vm4\"\n");
    let [_, container] = renamed.split_once("[[guest]]\nname = \"hpc2\"").map(|(a, b)| [a, b]).unwrap();
    let bench = bench.restart(&format!("{FILE}[[guest]]\nname = \"hpc2\"{container}"));
    let gone = ["remove /run/x/rdma/hpc2", "remove /run/x/rdma/vm/vm4.vsock_4791", "remove /run/x/vm4.sock"];
    assert_eq!(removed(&bench), gone);
    let bench = bench.restart(&format!("{FILE}[[guest]]\nname = \"hpc2\"{container}"));
    assert_eq!(removed(&bench), [""; 0]);
}
