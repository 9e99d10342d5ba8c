//! Tests that routes are read in each form in which a version wrote them.

use super::*;

/// Writes a store's file of these records behind a header.
fn file_of(dir: &Path, records: &[String]) {
    let mut bytes = Vec::new();
    frame::put(&mut bytes, "{\"version\":2,\"generation\":\"0000000000000001\"}");
    records.iter().for_each(|record| frame::put(&mut bytes, record));
    std::fs::write(dir.join(FILES[0]), bytes).unwrap();
}

#[test]
fn routes_in_the_form_of_other_objects_are_read_with_their_history() {
    let route = |n: u8, to: &str| {
        let toml = format!(
            "[[route]]\\nnetwork = \\\"blue\\\"\\nprefix = \\\"10.{n}.0.0/16\\\"\\nto = \\\"{to}\\\"\\n"
        );
        format!("\"object\":{{\"seq\":{n},\"owner\":\"api\",\"toml\":\"{toml}\"}}")
    };
    let key = |n: u8| format!("{{\"key\":\"route \\\"10.{n}.0.0/16\\\" of network \\\"blue\\\"\"");
    let there = |n: u8| format!("{},{}}}", key(n), route(n, "drop"));
    let made = |revision: u64| format!("\"revision\":{revision},\"made\":{{\"time\":1,\"request\":\"add\"}}");
    let dir = tempfile::tempdir().unwrap();
    // A snapshot of revision 2, before which there was another route, and two changes.
    let old = [
        "{\"revision\":2}".to_owned(),
        format!("{{\"changed\":[{}]}}", there(1)),
        format!("{{\"changed\":[{}]}}", there(2)),
        format!("{{\"undo\":{{{},\"before\":[{}}},{}]}}}}", made(2), key(2), there(3)),
        format!("{{\"changed\":[{}}}],{}}}", key(1), made(3)),
        format!("{{\"changed\":[{}],{}}}", there(4), made(4)),
    ];
    file_of(dir.path(), &old);
    let named = |numbers: &[u8]| {
        numbers
            .iter()
            .map(|n| format!("route \"10.{n}.0.0/16\" of network \"blue\" {n} Api"))
            .collect::<Vec<_>>()
    };
    let expected = [(1, named(&[1, 3])), (2, named(&[1, 2])), (3, named(&[2])), (4, named(&[2, 4]))].to_vec();
    let mut store = reopened(dir.path());
    assert_eq!(states(&store), expected);
    // The next write brings the present form.
    for _ in 0..2 {
        store.update(&store.load().unwrap().objects, Some("digest"), Durability::Disk).unwrap();
        drop(store);
        store = reopened(dir.path());
        assert_eq!((states(&store), store.problems()), (expected.clone(), Vec::new()));
    }
    let text: String = FILES.map(|name| std::fs::read_to_string(dir.path().join(name)).unwrap()).concat();
    assert!(
        !text.contains("toml") && text.contains("[\"blue\",\"10.2.0.0/16\",[2,\"api\",\"drop\"]]"),
        "{text}"
    );
    // Removed in the present form, though stored in the old one; and one that this version can't read.
    let dir = tempfile::tempdir().unwrap();
    let unread = format!("{{\"changed\":[{},{}}}],{}}}", key(2), route(2, "nowhere"), made(5));
    file_of(dir.path(), &[&old[..], &[unread]].concat());
    let store = reopened(dir.path());
    assert_eq!(states(&store), [(5, named(&[4]))]);
    assert!(store.problems()[0].contains("10.2.0.0/16"), "{:?}", store.problems());
    store.save(&objects(&["10.2.0.0/16"]), Durability::Disk);
    drop(store);
    assert!(reopened(dir.path()).problems().is_empty());
}

#[test]
fn what_a_version_kept_that_does_not_know_the_form_of_routes_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let route = |n: u8| format!("{{\"routes\":[[\"blue\",\"10.{n}.0.0/16\",[{n},\"api\",\"drop\"]]]}}");
    let undone = "{\"undone\":{\"revision\":2,\"made\":{\"time\":1,\"request\":\"add\"},\"before\":[],\
        \"routes\":[[\"blue\",\"10.1.0.0/16\",null]]}}";
    let network = |name: &str| {
        let toml = format!("[[network]]\\nname = \\\"{name}\\\"\\nvrf = 1\\n");
        let object = format!("{{\"seq\":9,\"owner\":\"api\",\"toml\":\"{toml}\"}}");
        format!("{{\"changed\":[{{\"key\":\"network \\\"{name}\\\"\",\"object\":{object}}}]}}")
    };
    // It keeps them before its own records.
    let kept = |number: u8| {
        [format!("{{\"revision\":{number}}}"), route(1), undone.to_owned(), route(2), network("red")]
    };
    for number in [2, 3] {
        file_of(dir.path(), &kept(number));
        let store = reopened(dir.path());
        assert_eq!((store.stored().len(), store.problems()), (3, Vec::new()));
        assert_eq!(states(&store).len(), 1, "the way back is not known");
    }
}

#[test]
fn routes_to_what_this_version_does_not_know_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let route = "[\"blue\",\"10.1.0.0/16\",[1,\"api\",\"teapot 7\"]]";
    file_of(dir.path(), &[format!("{{\"routes\":[{route}]}}")]);
    for _ in 0..2 {
        let store = reopened(dir.path());
        assert!(
            store.stored().is_empty() && store.problems()[0].contains("10.1.0.0/16"),
            "{:?}",
            store.problems()
        );
        store.lock().owe();
        store.save(&Objects::default(), Durability::Disk);
    }
    let text: String = FILES.map(|name| std::fs::read_to_string(dir.path().join(name)).unwrap()).concat();
    assert!(text.contains(route), "{text}");
    let store = reopened(dir.path());
    store.save(&objects(&["10.1.0.0/16"]), Durability::Disk);
    drop(store);
    let store = reopened(dir.path());
    assert_eq!((store.stored().len(), store.problems()), (1, Vec::new()));
}

#[test]
fn a_weight_is_written_once() {
    let text = "[\"blue\",\"10.1.0.0/16\",[1,\"api\",\"63*guest a, guest b\"]]";
    let kept = serde_json::from_str::<RouteEntry>(text).unwrap().kept().unwrap().unwrap();
    assert_eq!(kept.to().len(), 64);
    let again = RouteEntry::new("blue", "10.1.0.0/16".parse().unwrap(), Some(&kept));
    assert_eq!(serde_json::to_string(&again).unwrap(), text);
    for wrong in ["0*drop", "65*drop", "x*drop", "*drop"] {
        let text = text.replace("63*guest a, guest b", wrong);
        assert!(serde_json::from_str::<RouteEntry>(&text).unwrap().kept().is_err(), "{wrong}");
    }
}
