//! apply, diff, check.

use super::{Context, value};
use crate::client::Failure;
use crate::lists;
use crate::output::{green, print, print_json, red, yellow};
use api::v1;
use config::{Included, Texts};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;

fn read(file: &Path) -> Result<Texts, Failure> {
    let texts = match file.to_str() {
        // The parser refuses a longer one, and one that includes others: they would be in no folder.
        Some("-") => std::io::read_to_string(std::io::stdin().take(config::MOST_BYTES + 1)).map(Texts::from),
        _ => Texts::load(file),
    };
    texts.map_err(|e| Failure::Refused(format!("{}: {e}", file.display())))
}

pub fn check(file: &Path, json: bool) -> Result<(), Failure> {
    let fits = |document| match config::check_machine(&document) {
        problems if problems.is_empty() => Ok(document),
        problems => Err(problems.into()),
    };
    match config::parse_all(&read(file)?).and_then(fits) {
        Ok(document) => {
            let mut warnings = config::warnings(&document.objects);
            warnings.extend(config::check_readers(&document, sandbox::lookup));
            warnings.extend(config::check_owners(&document, sandbox::lookup));
            warnings.extend(config::check_wires(&document, config::device_mtu));
            warnings.extend(config::check_ways_out(&document, |path| std::fs::read_to_string(path).ok()));
            if json {
                let entry = |problem: &config::Problem| entry(&problem.at, &problem.message);
                return print_json(&warnings.iter().map(entry).collect());
            }
            let line = |problem: &config::Problem| {
                format!("{}: {}\n", problem.place_in(file), warning(&problem.at, &problem.message))
            };
            let lines: String = warnings.iter().map(line).collect();
            print(&format!("{lines}{} is good\n", file.display()))
        }
        Err(problems) => {
            Err(Failure::Refused(format!("{} is wrong\n{}", file.display(), problems.in_file(file))))
        }
    }
}

/// Applies a file, or with `dry_run` shows what would change. The change is undone if it is not confirmed after so
/// many seconds; 0: it stays.
pub async fn apply(
    on: &mut Context,
    file: &Path,
    dry_run: bool,
    confirm_seconds: u32,
) -> Result<(), Failure> {
    let changes = ask(on, read(file)?, file, (dry_run, confirm_seconds)).await?;
    show(&changes, on.json, &done(dry_run, confirm_seconds))
}

/// Has the daemon take texts as those of a file.
pub async fn ask(
    on: &mut Context,
    Texts { main: toml, included }: Texts,
    file: &Path,
    (dry_run, confirm_seconds): (bool, u32),
) -> Result<v1::Changes, Failure> {
    let owner = on.owner.clone();
    let one = |file: Included| v1::IncludedFile { name: file.name, toml: file.text };
    let included = included.filter(|_| !config::includes(&toml).is_empty());
    let included = included.map(|all| v1::IncludedFiles { files: all.into_iter().map(one).collect() });
    let request = v1::ApplyRequest { toml, dry_run, confirm_seconds, included, owner };
    let changes = on.client.apply(request).await.map_err(|status| refused(file, dry_run, status))?;
    Ok(changes.into_inner())
}

/// Says what became of objects.
pub fn done(dry_run: bool, confirm_seconds: u32) -> String {
    match (dry_run, confirm_seconds) {
        (true, _) => "would change".to_owned(),
        (false, 0) => "changed".to_owned(),
        (false, seconds) => format!("changed; run `viaduct confirm` within {seconds} s to keep that"),
    }
}

/// Explains why a file is not taken, or would not be.
fn refused(file: &Path, dry_run: bool, status: tonic::Status) -> Failure {
    let nobody_may = status.code() == tonic::Code::PermissionDenied;
    match Failure::from(status) {
        Failure::Refused(text) if !nobody_may => {
            let what = if dry_run { "it would not be taken" } else { "nothing was changed" };
            Failure::Refused(format!("{}: {what}\n{text}", file.display()))
        }
        other => other,
    }
}

pub async fn export(on: &mut Context) -> Result<(), Failure> {
    let toml = lists::export(&mut on.client).await?;
    if on.json { print_json(&json!({ "toml": toml })) } else { print(&toml) }
}

pub fn warning(object: &str, message: &str) -> String {
    yellow(format!("warning: {object}: {message}"))
}

/// Formats a warning as an entry of the list of changes.
fn entry(object: &str, message: &str) -> Value {
    json!({ "what": "warning", "object": object, "details": [message] })
}

pub fn show(changes: &v1::Changes, json: bool, done: &str) -> Result<(), Failure> {
    let warnings = &changes.warnings;
    if json {
        let warnings = warnings.iter().map(|known| entry(&known.object, &known.message));
        return print_json(&changes.changes.iter().map(value).chain(warnings).collect());
    }
    let mut out = String::new();
    for change in &changes.changes {
        let line = match change.what.as_str() {
            "add" => green(format!("+ {}", change.object)),
            "remove" => red(format!("- {}", change.object)),
            _ => format!("~ {}", change.object),
        };
        out += &line;
        out.push('\n');
        change.details.iter().for_each(|detail| out += &format!("    {detail}\n"));
    }
    let count = match changes.changes.len() {
        1 => "1 object".to_owned(),
        n => format!("{n} objects"),
    };
    let warnings: String =
        warnings.iter().map(|known| warning(&known.object, &known.message) + "\n").collect();
    print(&format!("{out}{warnings}{count} {done}\n"))
}
