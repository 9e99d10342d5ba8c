//! Files that a host's file includes.

use config::{Included, Texts, includes, open_included, parse, parse_all};
use std::fs::{File, create_dir, write};
use std::os::unix::fs::symlink;
use std::path::Path;

const HOST: &str =
    "include = [\"jobs/*.toml\"]\n[host]\nname = \"a\"\n[[network]]\nname = \"blue\"\nvrf = 1\n";

fn guest(name: &str, mac: u8) -> String {
    format!(
        "[[guest]]\nname = \"{name}\"\nnetwork = \"blue\"\nkind = \"tap\"\ndevice = \"{name}\"\nmac = \"02:00:00:00:00:0{mac}\"\naddresses = [\"10.1.1.{mac}\"]\n"
    )
}

/// Returns the problems of a host with these files, as in host.toml's folder /etc.
fn wrong(main: &str, files: &[(&str, String)]) -> String {
    let file = |(name, text): &(&str, String)| Included { name: (*name).to_owned(), text: text.clone() };
    let texts = Texts { main: main.to_owned(), included: Some(files.iter().map(file).collect()) };
    parse_all(&texts).map(drop).map_err(|e| e.in_file(Path::new("/etc/host.toml"))).unwrap_err()
}

#[test]
fn objects_of_all_files_make_one_host() {
    let dir = tempfile::tempdir().unwrap();
    create_dir(dir.path().join("jobs")).unwrap();
    write(dir.path().join("host.toml"), HOST).unwrap();
    write(dir.path().join("jobs/b.toml"), guest("b", 2)).unwrap();
    write(dir.path().join("jobs/a.toml"), format!("{}[[network]]\nname = \"red\"\nvrf = 2\n", guest("a", 1)))
        .unwrap();
    for left in ["jobs/.a.toml.swp", "jobs/.c.toml", "jobs/c.toml~"] {
        write(dir.path().join(left), "nonsense").unwrap();
    }
    let texts = Texts::load(&dir.path().join("host.toml")).unwrap();
    let document = parse_all(&texts).unwrap();
    let names: Vec<_> = document.objects.iter().map(|item| item.object.key().to_string()).collect();
    assert_eq!(names, ["network \"blue\"", "network \"red\"", "guest \"a\"", "guest \"b\""]);
    // The text alone is not the host's.
    assert!(parse(HOST).unwrap_err().to_string().contains("did not come with this text"));
}

#[test]
fn problems_name_file_and_line() {
    let twice = [("jobs/a.toml", guest("a", 1)), ("jobs/b.toml", format!("\n{}", guest("a", 2)))];
    assert_eq!(
        wrong(HOST, &twice),
        "/etc/jobs/b.toml:3: guest \"a\": is there already (jobs/a.toml, line 2)"
    );
    let own = [("jobs/a.toml", "[[network]]\nname = \"blue\"\nvrf = 1\n".to_owned())];
    assert_eq!(wrong(HOST, &own), "/etc/jobs/a.toml:2: network \"blue\": is there already (line 5)");
    let unknown = [("jobs/a.toml", guest("a", 1).replace("blue", "bleu"))];
    assert!(
        wrong(HOST, &unknown).starts_with("/etc/jobs/a.toml:3: guest \"a\": "),
        "{}",
        wrong(HOST, &unknown)
    );
    let broken = [("jobs/a.toml", "[[guest]\n".to_owned())];
    assert!(wrong(HOST, &broken).starts_with("/etc/jobs/a.toml:1: "), "{}", wrong(HOST, &broken));
    for part in ["[host]\nname = \"b\"\n", "[bgp]\nas = 65000\n", "include = [\"c.toml\"]\n"] {
        let said = wrong(HOST, &[("jobs/a.toml", part.to_owned())]);
        assert!(said.contains("/etc/jobs/a.toml") && said.contains("write it there"), "{said}");
    }
}

#[test]
fn patterns_stay_below_the_folder() {
    for bad in ["/etc/*.toml", "../a.toml", "jobs/../../a.toml", "./a.toml", "*/a.toml", "jobs/*", ""] {
        let main = HOST.replace("jobs/*.toml", bad);
        assert!(wrong(&main, &[]).starts_with("/etc/host.toml:1: include: "), "{}", wrong(&main, &[]));
        assert!(open_included(Path::new("/"), &[bad.to_owned()]).is_err(), "{bad}");
    }
    assert_eq!(includes(HOST), ["jobs/*.toml"]);
    assert!(includes("include = [").is_empty() && includes("include = 3").is_empty());
}

#[test]
fn links_that_lead_out_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (inside, jobs) = (dir.path().join("etc"), dir.path().join("etc/jobs"));
    create_dir(&inside).unwrap();
    create_dir(&jobs).unwrap();
    write(dir.path().join("out.toml"), "out").unwrap();
    write(inside.join("in.toml"), "in").unwrap();
    symlink("../in.toml", jobs.join("good.toml")).unwrap();
    let open = |pattern: &str| open_included(&inside, &[pattern.to_owned()]);
    let names = |opened: Vec<(String, File)>| opened.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(open("jobs/*.toml").unwrap()), ["jobs/good.toml"]);
    for target in ["../../out.toml", "/etc/passwd", "gone.toml"] {
        symlink(target, jobs.join("bad.toml")).unwrap();
        let said = open("jobs/*.toml").unwrap_err().to_string();
        assert!(said.starts_with("jobs/bad.toml: "), "{said}");
        std::fs::remove_file(jobs.join("bad.toml")).unwrap();
    }
    symlink(dir.path(), inside.join("away")).unwrap();
    assert!(open("away/*.toml").unwrap_err().to_string().contains("leads out"));
    create_dir(jobs.join("folder.toml")).unwrap();
    assert!(open("jobs/*.toml").unwrap_err().to_string().contains("not a file"));
    for missing in ["job/*.toml", "jobs/none.toml"] {
        assert!(open(missing).unwrap_err().to_string().contains(missing), "{missing}");
    }
    assert_eq!(names(open("jobs/no*.toml").unwrap()), [""; 0]);
}

#[test]
fn there_is_a_bound_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let fill =
        |count: usize| (0..count).for_each(|n| write(dir.path().join(format!("{n}.toml")), "").unwrap());
    let open = || open_included(dir.path(), &["*.toml".to_owned()]);
    fill(config::MOST_FILES);
    assert_eq!(open().unwrap().len(), config::MOST_FILES);
    fill(config::MOST_FILES + 1);
    assert!(open().unwrap_err().to_string().contains("more than 128 files"));
}
