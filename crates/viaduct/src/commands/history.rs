//! log, rollback, confirm.

use super::capture::date;
use super::{Context, apply, value};
use crate::client::Failure;
use crate::output::{cell, print, print_json, table};
use api::v1;
use serde_json::{Value, json};

/// Names of objects in a line of the list.
const NAMED: usize = 3;

pub async fn confirm(on: &mut Context) -> Result<(), Failure> {
    let revision = on.client.confirm(v1::ConfirmRequest {}).await?.into_inner().revision;
    if on.json {
        return print_json(&json!({ "revision": revision }));
    }
    print(&format!("revision {revision} is kept\n"))
}

pub async fn rollback(on: &mut Context, revision: Option<u64>) -> Result<(), Failure> {
    let changes = on.client.rollback(v1::RollbackRequest { revision }).await?.into_inner();
    apply::show(&changes, on.json, "changed")
}

pub async fn log(on: &mut Context, verbose: bool, follow: bool) -> Result<(), Failure> {
    let mut known = 0;
    let mut news = match follow {
        true => Some(on.client.watch(v1::WatchRequest { revision: None }).await?.into_inner()),
        false => None,
    };
    loop {
        let reply = on.client.history(v1::HistoryRequest {}).await?.into_inner();
        let fresh: Vec<_> =
            reply.revisions.into_iter().filter(|revision| revision.revision > known).collect();
        show(&fresh, on.json, verbose, known == 0)?;
        known = fresh.last().map_or(known, |last| last.revision);
        let Some(news) = &mut news else { return Ok(()) };
        if news.message().await?.is_none() {
            return Ok(());
        }
    }
}

fn show(revisions: &[v1::Revision], json: bool, verbose: bool, with_title: bool) -> Result<(), Failure> {
    if json {
        return print_json(&revisions.iter().map(value).collect());
    }
    let columns =
        &[("REVISION", "revision"), ("TIME", "time"), ("UID", "uid"), ("BY", "request"), ("CHANGES", "what")];
    let text = table(&revisions.iter().map(row).collect::<Vec<_>>(), columns);
    let mut lines = text.lines();
    let title = lines.next().filter(|_| with_title);
    let mut out: String = title.into_iter().map(|line| format!("{line}\n")).collect();
    for (line, revision) in lines.zip(revisions) {
        out += &format!("{line}\n");
        for change in revision.changes.iter().filter(|_| verbose) {
            out += &format!("    {} {}\n", change.what, change.object);
            change.details.iter().for_each(|detail| out += &format!("        {detail}\n"));
        }
    }
    print(&out)
}

fn row(revision: &v1::Revision) -> Value {
    let mut row = value(revision);
    let named: Vec<String> = revision
        .changes
        .iter()
        .take(NAMED)
        .map(|change| format!("{} {}", change.what, change.object))
        .collect();
    let more = revision.count.saturating_sub(named.len() as u64);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let waits =
        revision.unconfirmed_until.map(|until| format!(" (undone at {} unless confirmed)", date(until)));
    row["what"] = format!("{}{more}{}", named.join(", "), waits.unwrap_or_default()).into();
    row["time"] = date(revision.time).into();
    row["uid"] = cell(&row["uid"]).into();
    row
}
