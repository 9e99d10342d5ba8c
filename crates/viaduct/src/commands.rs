//! Runs the commands.

mod apply;
mod bgp;
mod capture;
mod doctor;
mod edit;
mod explain;
mod flow;
mod guest_state;
mod history;
mod nouns;
mod ovs;
mod rdma;
mod run;
mod sockets;
mod statistics;
mod top;

use crate::args::{Command, GuestAction, Options};
use crate::client::{Client, Failure, connect};
use crate::complete;
use clap::CommandFactory;
use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;

pub struct Context {
    client: Client,
    json: bool,
    run_dir: PathBuf,
    /// The owner as whom objects are changed; empty: the API.
    owner: String,
}

/// Runs a command that needs no daemon, if it is one.
fn run_alone(options: &Options) -> Option<Result<(), Failure>> {
    let json = options.is_json();
    let man = |dir| -> Result<(), Failure> {
        std::fs::create_dir_all(dir)?;
        Ok(clap_mangen::generate_to(Options::command(), dir)?)
    };
    Some(match &options.command {
        Command::Check { file } => apply::check(file, json),
        Command::Doctor { file } => doctor::doctor(file.as_deref(), &options.run_dir, json),
        Command::Completion { shell } => {
            complete::script(*shell).and_then(|text| crate::output::print(&text))
        }
        Command::GuestImage => guest_image(json),
        Command::Run(args) => run::run(args, &options.run_dir),
        Command::Man { dir } => man(dir),
        _ => return None,
    })
}

fn guest_image(json: bool) -> Result<(), Failure> {
    let text = include_str!("../../../dist/guest/cloud-config.yaml");
    match json {
        true => crate::output::print_json(&serde_json::json!({ "cloud_config": text })),
        false => crate::output::print(text),
    }
}

pub async fn run(options: Options) -> Result<(), Failure> {
    if let Some(done) = run_alone(&options) {
        return done;
    }
    let client = connect(&options.run_dir).await?;
    let mut edited = None;
    if let Command::Edit { file, .. } = &options.command {
        edited = edit::Edited::of(file)?;
        if edited.is_none() {
            return edit::nothing(file, options.is_json());
        }
    }
    let (json, owner) = (options.is_json(), options.acts_as);
    let mut on = Context { client, json, run_dir: options.run_dir, owner };
    match options.command {
        Command::Apply { file, dry_run, confirm } => apply::apply(&mut on, &file, dry_run, confirm).await,
        Command::Edit { confirm, .. } => match edited {
            Some(edited) => edited.settle(&mut on, confirm).await,
            None => Ok(()),
        },
        Command::Confirm => history::confirm(&mut on).await,
        Command::Log { verbose, follow } => history::log(&mut on, verbose, follow).await,
        Command::Rollback { revision } => history::rollback(&mut on, revision).await,
        Command::Export => apply::export(&mut on).await,
        Command::Diff { file } => apply::apply(&mut on, &file, true, 0).await,
        Command::Status => statistics::status(&mut on).await,
        Command::Top => top::top(&mut on).await,
        Command::Vif(noun) => nouns::vif(&mut on, noun.action).await,
        Command::Guest(noun) => match noun.action {
            None => nouns::guest(&mut on, None).await,
            Some(GuestAction::Object(action)) => nouns::guest(&mut on, Some(action)).await,
            Some(GuestAction::Export { name, when_stopped }) => {
                guest_state::export(&mut on, name, when_stopped).await
            }
            Some(GuestAction::Import { name, file }) => guest_state::import(&mut on, name, &file).await,
        },
        Command::Wire(noun) => nouns::wire(&mut on, noun.action).await,
        Command::Network(noun) => nouns::network(&mut on, noun.action).await,
        Command::Nh(noun) => nouns::nh(&mut on, noun.action).await,
        Command::Nexthop(noun) => nouns::nexthop(&mut on, noun.action).await,
        Command::Rt(noun) => nouns::rt(&mut on, noun.network, noun.action).await,
        Command::Bridge(noun) => nouns::bridge(&mut on, noun.network, noun.action).await,
        Command::Mpls(noun) => nouns::mpls(&mut on, noun.action).await,
        Command::Lease(noun) => nouns::lease(&mut on, noun.action).await,
        Command::Vxlan(noun) => nouns::vxlan(&mut on, noun.action).await,
        Command::Rule(noun) => nouns::rule(&mut on, noun.network, noun.action).await,
        Command::Forward(noun) => nouns::forward(&mut on, noun.network, noun.action).await,
        Command::Nat(noun) => nouns::nat(&mut on, noun.network, noun.action).await,
        Command::Flood(noun) => nouns::flood(&mut on, noun.action).await,
        Command::Default(noun) => nouns::default(&mut on, noun.action).await,
        Command::Neigh { network, action } => nouns::neigh(&mut on, network, action).await,
        Command::Rdma(args) => rdma::rdma(&mut on, args).await,
        Command::Bgp(args) => bgp::bgp(&mut on, args).await,
        Command::Sockets(args) => sockets::sockets(&mut on, args).await,
        Command::Ovs(args) => ovs::ovs(&mut on, args).await,
        Command::Flow(args) => flow::flow(&mut on, args).await,
        Command::Stats { worker } => statistics::stats(&mut on, worker).await,
        Command::Dropstats { log, interface, reasons, explain } => {
            let request = api::v1::DropStatsRequest { log, interface, reasons, all: explain };
            statistics::dropstats(&mut on, request).await
        }
        Command::Explain { interface, exit_code, packet } => {
            explain::explain(&mut on, interface, packet, exit_code).await
        }
        Command::Capture(args) => capture::capture(&mut on, args.request(), args.write, args.count).await,
        // `run_alone` has run these.
        Command::Check { .. }
        | Command::Doctor { .. }
        | Command::Completion { .. }
        | Command::GuestImage
        | Command::Run(_)
        | Command::Man { .. } => Ok(()),
    }
}

/// Converts a message to JSON, which can't fail for messages.
fn value<T: Serialize>(message: &T) -> Value {
    serde_json::to_value(message).unwrap_or_default()
}
