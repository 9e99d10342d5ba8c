//! Completion on the command line. The shell asks `viaduct` what may follow (clap_complete's environment protocol), and
//! `viaduct` asks the daemon for the names of this host.

use crate::client::{Client, Failure, connect};
use crate::lists;
use api::v1::{self, Kind, TableName};
use clap_complete::CompletionCandidate;
use clap_complete::env::Shells;
use serde_json::Value;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

/// How long a shell waits for names at most.
const PATIENCE: Duration = Duration::from_secs(1);

type Candidates = Vec<CompletionCandidate>;

/// Returns the script with which a shell asks for completions.
pub fn script(shell: clap_complete::Shell) -> Result<String, Failure> {
    let (shells, mut script) = (Shells::builtins(), Vec::new());
    let completer = shells.completer(&shell.to_string());
    let completer = completer.ok_or_else(|| Failure::Usage(format!("{shell} is not supported")))?;
    completer.write_registration("COMPLETE", "viaduct", "viaduct", "viaduct", &mut script)?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

fn words_of(words: &[&str]) -> Candidates {
    words.iter().map(CompletionCandidate::new).collect()
}

pub fn drivers() -> Candidates {
    words_of(&["af-packet", "af-xdp", "tap", "vhost", "vxlan", "geneve"])
}

pub fn guest_kinds() -> Candidates {
    words_of(&["vhost", "tap", "rdma", "host"])
}

pub fn modes() -> Candidates {
    words_of(&["vrouter", "ovs"])
}

pub fn networks() -> Candidates {
    ask(|client| names(client, Kind::Network))
}

pub fn guests() -> Candidates {
    ask(|client| names(client, Kind::Guest))
}

pub fn vifs() -> Candidates {
    ask(async |mut client| {
        let request = v1::TableRequest { table: TableName::Vif.into(), network: None };
        let vifs = lists::table(&mut client, request).await?.vifs;
        Ok(vifs.into_iter().map(|vif| vif.name).collect())
    })
}

pub fn ovs_ports() -> Candidates {
    ask(async |mut client| {
        let ports = client.ovs(v1::OvsRequest::default()).await?.into_inner().ports;
        Ok(ports.into_iter().map(|port| port.name).collect())
    })
}

pub fn rdma_devices() -> Candidates {
    ask(async |mut client| {
        let request = v1::RdmaRequest { table: v1::RdmaTable::Device.into(), device: None };
        let devices = client.rdma(request).await?.into_inner().devices;
        Ok(devices.into_iter().map(|device| device.name).collect())
    })
}

pub fn reasons() -> Candidates {
    ask(async |mut client| {
        let request = v1::DropStatsRequest { all: true, ..v1::DropStatsRequest::default() };
        let reasons = client.drop_stats(request).await?.into_inner().reasons;
        Ok(reasons.into_iter().map(|count| count.reason).collect())
    })
}

/// Completes keys of the kind of object in the command line.
pub fn keys() -> Candidates {
    let words = words();
    let kind = words.iter().find_map(|word| kind(word));
    match kind {
        Some(Kind::Rule) => ask(async |mut client| {
            let request = v1::TableRequest { table: TableName::Rule.into(), network: None };
            let rules = lists::table(&mut client, request).await?.rules;
            Ok(rules.into_iter().map(|rule| rule.id.to_string()).collect())
        }),
        Some(kind) => ask(move |client| names(client, kind)),
        None => vifs(),
    }
}

fn kind(word: &str) -> Option<Kind> {
    Some(match word {
        "guest" | "guests" => Kind::Guest,
        "wire" | "wires" => Kind::Wire,
        "network" | "networks" | "flood" | "floods" | "default" | "defaults" => Kind::Network,
        "nh" | "nexthop" | "nexthops" => Kind::Nexthop,
        "rt" | "route" | "routes" => Kind::Route,
        "bridge" | "mac" | "macs" => Kind::Mac,
        "mpls" | "label" | "labels" => Kind::Mpls,
        "vxlan" | "vni" | "vnis" => Kind::Vxlan,
        "forward" | "forwards" => Kind::Forward,
        "lease" | "leases" => Kind::Lease,
        "nat" | "nats" | "floating" => Kind::Nat,
        "rule" | "rules" => Kind::Rule,
        _ => return None,
    })
}

fn words() -> Vec<String> {
    crate::words().skip_while(|word| word != "--").skip(1).collect()
}

async fn names(mut client: Client, kind: Kind) -> Result<Vec<String>, Failure> {
    let request = v1::ObjectsRequest { kind: kind.into(), network: None, users: false };
    let objects = lists::objects(&mut client, request).await?.objects;
    let name = |owned: v1::OwnedObject| {
        let fields = match serde_json::to_value(owned.object?.object?).ok()? {
            Value::Object(map) if map.len() == 1 => map.into_iter().next()?.1,
            other => other,
        };
        let key = ["name", "guest", "prefix", "inside", "mac", "label", "vni"]
            .into_iter()
            .find(|key| !fields[key].is_null())?;
        Some(crate::output::cell(&fields[key]))
    };
    Ok(objects.into_iter().filter_map(name).collect())
}

/// Asks the daemon of the command line. Returns nothing if it does not answer.
fn ask<F: Future<Output = Result<Vec<String>, Failure>>>(question: impl FnOnce(Client) -> F) -> Candidates {
    let words = words();
    let of_option = words.windows(2).find(|pair| pair[0] == "--run-dir").map(|pair| PathBuf::from(&pair[1]));
    let run_dir = of_option.unwrap_or_else(crate::args::default_run_dir);
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    let answer = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, async { question(connect(&run_dir).await?).await }).await
    });
    let names = answer.ok().and_then(Result::ok).unwrap_or_default();
    names.into_iter().map(CompletionCandidate::new).collect()
}
