//! The daemon, to which plug-ins add guests and from which they remove them.

use crate::error::{Context, Error};
use api::v1::object::Object as One;
use api::v1::operation::Operation as Step;
use api::v1::viaduct_client::ViaductClient;
use api::v1::{self, Kind, TableName};
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// The longest wait for the daemon to answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer, bytes. Hosts may have thousands of guests.
const MAX_REPLY: usize = 64 << 20;

pub(crate) struct Daemon {
    runtime: Runtime,
    client: ViaductClient<Channel>,
}

impl Daemon {
    /// Connects to the daemon that runs in `run_dir`.
    ///
    /// # Errors
    /// [`Error::NoDaemon`].
    pub(crate) fn connect(run_dir: &Path) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context(|| "no runtime".to_owned())?;
        let socket = api::socket(run_dir);
        let none = |e: &dyn std::error::Error| {
            Error::NoDaemon(format!(
                "no daemon at {}: {}; is viaductd running?",
                socket.display(),
                innermost(e)
            ))
        };
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).map_err(|e| none(&e))?;
        let channel = runtime.block_on(endpoint.timeout(TIMEOUT).connect()).map_err(|e| none(&e))?;
        Ok(Self { runtime, client: ViaductClient::new(channel).max_decoding_message_size(MAX_REPLY) })
    }

    /// Adds a guest. When this returns, the guest and its tap exist.
    pub(crate) fn add(&mut self, guest: v1::Guest) -> Result<(), Error> {
        self.transact(Step::Create(v1::Object { object: Some(One::Guest(guest)) }))
    }

    /// Removes a guest, if it exists.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), Error> {
        let key = v1::Key { kind: Kind::Guest.into(), network: None, name: name.to_owned() };
        self.transact(Step::Delete(v1::Delete { key: Some(key), allow_missing: true }))
    }

    /// Carries out one step. If the connection breaks, asks once more, because the daemon may just have been replaced:
    /// what it did is no change then.
    fn transact(&mut self, step: Step) -> Result<(), Error> {
        let operations = vec![v1::Operation { operation: Some(step) }];
        let request = v1::TransactRequest { operations, ..Default::default() };
        let mut done = self.runtime.block_on(self.client.transact(request.clone()));
        if done.as_ref().is_err_and(|status| status.code() == Code::Unavailable) {
            done = self.runtime.block_on(self.client.transact(request));
        }
        done.map_err(refused).map(drop)
    }

    pub(crate) fn guest(&mut self, name: &str) -> Result<Option<v1::Guest>, Error> {
        let objects = self.objects(Kind::Guest)?;
        Ok(objects.into_iter().find_map(|object| match object {
            One::Guest(guest) if guest.name == name => Some(guest),
            _ => None,
        }))
    }

    pub(crate) fn network(&mut self, name: &str) -> Result<Option<v1::Network>, Error> {
        let objects = self.objects(Kind::Network)?;
        Ok(objects.into_iter().find_map(|object| match object {
            One::Network(network) if network.name == name => Some(network),
            _ => None,
        }))
    }

    /// Checks that packets can flow by the interface of this name. The error says why they can't.
    pub(crate) fn is_up(&mut self, vif: &str) -> Result<(), Error> {
        let request = v1::TableRequest { table: TableName::Vif.into(), ..Default::default() };
        let table = self.runtime.block_on(self.client.table(request)).map_err(refused)?.into_inner();
        match table.vifs.into_iter().find(|entry| entry.name == vif) {
            Some(entry) if entry.up => Ok(()),
            Some(entry) => {
                let fault = entry.fault.unwrap_or_else(|| "it is down".to_owned());
                Err(Error::Broken(format!("viaductd's interface {vif}: {fault}")))
            }
            None => Err(Error::Broken(format!("viaductd has no interface {vif}"))),
        }
    }

    fn objects(&mut self, kind: Kind) -> Result<Vec<One>, Error> {
        let request = v1::ObjectsRequest { kind: kind.into(), ..Default::default() };
        let reply = self.runtime.block_on(self.client.objects(request)).map_err(refused)?.into_inner();
        Ok(reply.objects.into_iter().filter_map(|owned| owned.object?.object).collect())
    }
}

fn refused(status: Status) -> Error {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => {
            Error::NoDaemon(format!("viaductd went away: {}", status.message()))
        }
        Code::Unimplemented => Error::Refused(
            "it is older than this plug-in; replace it by `systemctl reload viaductd`".to_owned(),
        ),
        _ => Error::Refused(status.message().to_owned()),
    }
}

/// Returns the innermost cause of an error.
fn innermost(mut error: &dyn std::error::Error) -> String {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}
