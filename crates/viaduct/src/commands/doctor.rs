//! doctor.

use super::value;
use crate::client::Failure;
use crate::doctor::{Finding, Level, Machine, Subject, examine};
use crate::output::{green, print, print_json, red, yellow};
use config::{Document, Texts};
use std::path::Path;

/// The file in the systemd unit.
const FILE: &str = "/etc/viaduct/host.toml";

/// Checks this machine, and prints what it found. The exit status is 1 if something is broken.
pub fn doctor(file: Option<&Path>, run_dir: &Path, json: bool) -> Result<(), Failure> {
    let (about_file, document) = read(file);
    let machine = Machine { root: "/".into() };
    let mut found = vec![about_file];
    found.extend(examine(&Subject { machine: &machine, document: &document, run_dir }));
    if json {
        print_json(&found.iter().map(value).collect())?;
    } else {
        print(&found.iter().map(line).collect::<String>())?;
    }
    let count = |level| found.iter().filter(|one| one.level == level).count();
    match (count(Level::Broken), count(Level::Warning)) {
        (0, _) => Ok(()),
        (broken, 1) => Err(Failure::Refused(format!("{broken} broken, 1 warning"))),
        (broken, warnings) => Err(Failure::Refused(format!("{broken} broken, {warnings} warnings"))),
    }
}

/// Reads the file. If it can't be read, returns a host with nothing.
fn read(file: Option<&Path>) -> (Finding, Document) {
    let path = file.unwrap_or(Path::new(FILE));
    let name = path.display();
    let finding = |level, message, advice: Option<String>| Finding { check: "file", level, message, advice };
    let nothing = Document::default();
    let texts = match Texts::load(path) {
        Ok(texts) => texts,
        // Before the first start, nobody expects a file.
        Err(e) if file.is_none() && e.kind() == std::io::ErrorKind::NotFound => {
            let advice = format!("name another: viaduct doctor FILE; or write {FILE}, see host.toml(5)");
            let message = format!("{name}: {e}; looked at the machine alone");
            return (finding(Level::Warning, message, Some(advice)), nothing);
        }
        Err(e) => {
            let advice = "name a file that can be read: viaduct doctor FILE".to_owned();
            return (finding(Level::Broken, format!("{name}: {e}"), Some(advice)), nothing);
        }
    };
    match config::parse_all(&texts) {
        Ok(document) => (finding(Level::Good, format!("{name} is good"), None), document),
        Err(problems) => {
            let advice = Some(format!("viaduct check {name}"));
            let first = problems.iter().next().map(ToString::to_string).unwrap_or_default();
            (finding(Level::Broken, format!("{name}: {first}"), advice), nothing)
        }
    }
}

fn line(found: &Finding) -> String {
    let level = match found.level {
        Level::Good => green("good   ".to_owned()),
        Level::Warning => yellow("warning".to_owned()),
        Level::Broken => red("broken ".to_owned()),
    };
    let advice = found.advice.as_ref().map(|advice| format!("{:24}-> {advice}\n", "")).unwrap_or_default();
    format!("{level}  {:<13}  {}\n{advice}", found.check, found.message)
}
