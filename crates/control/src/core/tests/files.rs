//! Files and their objects beside those of the API: owners, starts, reloads.

use super::*;

#[test]
fn apply_replaces_only_what_came_from_files() {
    let bench = start(FILE);
    bench.core.add(route()).unwrap();
    assert!(bench.has_route("10.9.1.1"));
    bench.core.take_file(FILE, false).unwrap();
    assert!(bench.has_route("10.9.1.1"));
    bench.core.remove(&[route()[0].key()]).unwrap();
    assert!(!bench.has_route("10.9.1.1"));
}

#[test]
fn owners_keep_what_is_theirs() {
    let bench = start(&format!("{FILE}{ROUTE}"));
    let key = route()[0].key();
    let said = bench.core.remove(std::slice::from_ref(&key)).unwrap_err().to_string();
    assert!(said.contains("comes from the host's file"), "{said}");
    bench.core.take_file(FILE, false).unwrap();
    bench.core.add(route()).unwrap();
    assert_eq!(bench.core.add(route()).unwrap().changes, [], "the same again");
    assert_eq!(bench.apply(&format!("{FILE}{ROUTE}"), false), [], "the same, by a file");
    let differs = ROUTE.replace("\"drop\"", "{ guest = \"vm1\" }");
    let said = bench.core.take_file(&format!("{FILE}{differs}"), false).unwrap_err().to_string();
    assert!(said.contains("belongs to api"), "{said}");
    let other = config::parse_objects(&ROUTE.replace("\"drop\"", "{ guest = \"vm1\" }")).unwrap();
    let said = bench.core.add(other).unwrap_err().to_string();
    assert!(said.contains("is there already (owner api)") && said.contains("remove it first"), "{said}");
    let guest = config::parse_objects(&FILE.replace("[host]\nname = \"a\"\n", "")).unwrap();
    let guest = guest.into_iter().find_map(|object| match object {
        config::Object::Guest(mut guest) => {
            guest.mtu = Some(1400);
            Some(config::Object::Guest(guest))
        }
        _ => None,
    });
    let said = bench.core.add(guest.into_iter().collect()).unwrap_err().to_string();
    assert!(said.contains("(owner file)") && said.contains("change it in the host's file"), "{said}");
}

#[test]
fn a_route_that_follows_from_another_object_says_from_which() {
    let bench = start(FILE);
    let remove = |name: &str| {
        let key = Key { kind: Kind::Route, network: Some("blue".into()), name: name.into() };
        bench.core.remove(&[key]).unwrap_err().to_string()
    };
    assert!(remove("10.1.1.1/32").contains("is that of guest \"vm1\""));
    assert!(remove("10.1.1.254/32").contains("is that of network \"blue\""));
    assert!(remove("10.8.0.0/16").contains("there is no route"));
}

#[test]
fn what_others_need_cannot_be_removed() {
    let bench = start("[host]\nname = \"a\"\n");
    let objects = config::parse_objects(&FILE.replace("[host]\nname = \"a\"", "")).unwrap();
    let network = objects[0].key();
    bench.core.add(objects).unwrap();
    let said = bench.core.remove(&[network]).unwrap_err().to_string();
    assert!(said.contains("guest \"vm1\"") && said.contains("there is no network \"blue\""), "{said}");
}

#[test]
fn mistakes_in_a_file_have_their_lines() {
    let bench = start(FILE);
    let bad = format!("{FILE}{}", ROUTE.replace("blue", "bleu"));
    let line = bad.lines().position(|l| l.contains("bleu")).unwrap() + 1;
    let said = bench.core.take_file(&bad, false).unwrap_err().to_string();
    assert!(said.contains(&format!("line {line}: ")) && said.contains("did you mean \"blue\""), "{said}");
}

#[test]
fn a_start_takes_a_file_that_is_another() {
    let bench = start(FILE);
    bench.core.add(route()).unwrap();
    let both = format!("{FILE}{VM2}");
    let bench = bench.restart(&format!("# a comment\n{both}"));
    assert!(bench.has_route("10.9.1.1"), "what the API added stays");
    assert!(bench.keys().iter().any(|key| key.contains("vm2")));
    assert_eq!(bench.difference(), None);
    let bench = bench.restart(FILE);
    assert!(!bench.keys().iter().any(|key| key.contains("vm2")));
}

#[test]
fn a_file_that_stays_the_same_undoes_nothing() {
    let bench = start(FILE);
    bench.apply(&format!("{FILE}{VM2}"), false);
    let differs = bench.difference().unwrap();
    assert!(differs.contains("in: guest \"vm2\";") && differs.contains("viaduct diff"), "{differs}");
    let bench = bench.restart(FILE);
    assert!(bench.keys().iter().any(|key| key.contains("vm2")), "another file was applied");
    assert!(bench.difference().is_some());
    // Applying the daemon's own file by hand counts as taking it.
    let both = format!("{FILE}{VM2}");
    bench.write(&both);
    bench.apply(&both, false);
    assert_eq!(bench.difference(), None);
    bench.apply(FILE, false);
    let bench = bench.restart(&both);
    assert!(!bench.keys().iter().any(|key| key.contains("vm2")), "{:?}", bench.keys());
}

#[test]
fn what_of_the_host_takes_another_daemon_is_told_at_once() {
    let bench = start(FILE);
    let new = FILE.replace("name = \"a\"\n", "name = \"a\"\nworkers = [0]\nmetrics = \"127.0.0.1:9\"\n");
    bench.write(&new);
    let differs = bench.difference().unwrap();
    assert!(
        differs.ends_with("in: [host]; replace the daemon (`viaductd --replace`) or restart it"),
        "{differs}"
    );
    let said = bench.core.take_file(&new, true).unwrap_err().to_string();
    assert!(said.contains("[host] workers, metrics can't change while the daemon runs: "), "{said}");
    assert!(said.ends_with("and replace the daemon (`viaductd --replace`) or restart it"), "{said}");
}

#[test]
fn a_file_that_does_not_fit_what_the_api_added_is_not_taken() {
    let bench = start(FILE);
    bench.core.add(route()).unwrap();
    let bench = bench.restart("[host]\nname = \"a\"\n");
    assert!(bench.has_route("10.9.1.1"));
    assert_eq!(bench.keys().len(), 3);
    let differs = bench.difference().unwrap();
    assert!(differs.contains("in: network \"blue\", guest \"vm1\";"), "{differs}");
}

#[test]
fn what_fits_no_more_stays_in_the_store() {
    let bench = start(FILE);
    bench.core.add(route()).unwrap();
    let Bench { core, dir, .. } = bench;
    drop(core);
    // As if the record of the network had been damaged.
    let path = ["store.0", "store.1"].map(|name| dir.path().join(name)).into_iter();
    for path in path {
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replacen("vrf = 1", "vrf = 2", 1)).unwrap();
    }
    let bench = start_in(dir, "[host]\nname = \"a\"\n").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(bench.keys(), [""; 0]);
    let problems = bench.core.store_problems().join("; ");
    assert!(problems.contains("damaged") && problems.contains("route \"10.9.0.0/16\""), "{problems}");
    let bench = bench.restart(FILE);
    assert!(bench.has_route("10.9.1.1"), "it fits again");
}

#[test]
fn a_reload_takes_the_file_or_leaves_all_as_it_is() {
    let bench = start(FILE);
    bench.write(&format!("{FILE}{VM2}"));
    bench.core.reload();
    assert!(bench.keys().iter().any(|key| key.contains("vm2")));
    for bad in ["[[guest]\n", "[host]\nname = \"b\"\n", &FILE.replace("\"t1\"", "\"refused\"")] {
        bench.write(bad);
        bench.core.reload();
        assert_eq!(bench.keys().len(), 3, "{bad}");
        assert!(bench.difference().is_some(), "{bad}");
    }
    std::fs::remove_file(bench.dir.path().join("host.toml")).unwrap();
    bench.core.reload();
    assert!(bench.difference().unwrap().contains("can't be read"));
}

#[test]
fn what_a_file_includes_is_of_the_file() {
    let bench = start(FILE);
    let part = bench.dir.path().join("more.toml");
    std::fs::write(&part, VM2).unwrap();
    let main = format!("include = [\"more*.toml\"]\n{FILE}");
    bench.write(&main);
    assert!(bench.difference().unwrap().contains("guest \"vm2\""), "{:?}", bench.difference());
    // A client that knows nothing of it must not remove what is included.
    let said = bench.core.take_file(&main, false).unwrap_err().to_string();
    assert!(said.contains("did not come with this text"), "{said}");
    bench.core.reload();
    assert_eq!((bench.keys().len(), bench.difference()), (3, None));
    let moved = VM2.replace("10.1.1.2", "10.1.1.3");
    std::fs::write(&part, &moved).unwrap();
    assert!(bench.difference().unwrap().contains("guest \"vm2\""));
    let included = Some(vec![config::Included { name: "more.toml".to_owned(), text: moved }]);
    bench.core.apply(TESTER(), &config::Texts { main, included }, false, None).unwrap();
    assert_eq!(bench.difference(), None);
    std::fs::write(bench.dir.path().join("more2.toml"), VM2.replace("vm2", "vm9")).unwrap();
    bench.core.reload();
    assert!(bench.difference().unwrap().contains("more2.toml: line "), "{:?}", bench.difference());
    std::fs::remove_file(part).unwrap();
    bench.core.reload();
    assert!(bench.keys().iter().any(|key| key.contains("vm9")) && bench.difference().is_none());
}

#[test]
fn another_hosts_file_is_refused() {
    let bench = start(FILE);
    let said =
        bench.core.take_file(&FILE.replace("name = \"a\"", "name = \"b\""), false).unwrap_err().to_string();
    assert!(said.contains("host \"b\""), "{said}");
    let pinned = FILE.replace("name = \"a\"", "name = \"a\"\nworkers = [3]");
    assert!(bench.core.take_file(&pinned, false).unwrap_err().to_string().contains("restart"));
}
