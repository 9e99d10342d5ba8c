//! Lists of any length: whole for clients that ask for one message, in parts for others. The parts are of one revision,
//! and the next is made when the client has taken the one before.

use super::{Held, Streamed, View, convert, users};
use crate::core::Core;
use crate::owner::{Listed, Owner};
use api::v1;
use config::{Guest, Kind, Network, Object, Secret};
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Most bytes of a part. Clients by default refuse messages of more than four megabytes.
pub(super) const PART: usize = 256 << 10;
/// Most bytes of a list in one message.
const WHOLE: usize = 32 << 20;
/// Memory that a list in parts is charged with: parts on their way, and what changes meanwhile, of which the client
/// still gets the old state.
pub(super) const STREAM: usize = 16 << 20;
/// How long a part may wait for the client.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes a part of a list. It fails if no further part is wanted.
pub(super) type Send<'a, T> = dyn FnMut(T) -> Result<(), Status> + 'a;

/// Puts a list in one message.
///
/// # Errors
/// RESOURCE_EXHAUSTED with the name of the method that returns it in parts, if it is too long.
pub(super) fn whole<T>(
    in_parts: &str,
    make: impl FnOnce(usize, &mut Send<'_, T>) -> Result<(), Status>,
) -> Result<T, Status> {
    let mut whole = None;
    let too_long = || {
        let most = WHOLE >> 20;
        Status::resource_exhausted(format!(
            "this list is longer than {most} MiB; call {in_parts}, which returns it in parts"
        ))
    };
    make(WHOLE, &mut |part| match whole.replace(part) {
        None => Ok(()),
        Some(_) => Err(too_long()),
    })?;
    whole.ok_or_else(|| Status::internal("a list without an end"))
}

/// Returns a list in parts. If the client takes none for a minute, the list ends with ABORTED.
pub(super) fn stream<T: std::marker::Send + 'static>(
    core: Arc<Core>,
    held: Arc<Held>,
    make: impl FnOnce(&View, &mut Send<'_, T>) -> Result<(), Status> + std::marker::Send + 'static,
) -> Streamed<T> {
    let (made, parts) = channel(1);
    tokio::task::spawn_blocking(move || {
        let mut send = |part| made.blocking_send(Ok(part)).map_err(|_| Status::cancelled("nobody reads on"));
        if let Err(refused) = make(&core.view(), &mut send) {
            let _ = made.blocking_send(Err(refused));
        }
    });
    let (to, replies) = channel(2);
    tokio::spawn(async move {
        forward(parts, to, PATIENCE).await;
        drop(held);
    });
    Box::pin(ReceiverStream::new(replies))
}

/// Hands parts on as the client takes them.
async fn forward<T>(
    mut parts: Receiver<Result<T, Status>>,
    to: Sender<Result<T, Status>>,
    patience: Duration,
) {
    // A place for the last word, so that a list which was cut off does not look complete.
    let Ok(last) = to.clone().try_reserve_owned() else { return };
    while let Some(part) = parts.recv().await {
        match timeout(patience, to.reserve()).await {
            Ok(Ok(room)) => room.send(part),
            Ok(Err(_)) => return,
            Err(_) => {
                let text = format!("no part of this list was read for {patience:?}; ask again");
                return drop(last.send(Err(Status::aborted(text))));
            }
        }
    }
}

/// Sends entries in parts of at most so many bytes; a single entry may be longer. There is at least one part.
pub(super) fn in_parts<E: Message>(
    entries: impl IntoIterator<Item = E>,
    most: usize,
    mut send: impl FnMut(Vec<E>) -> Result<(), Status>,
) -> Result<(), Status> {
    let (mut part, mut bytes) = (Vec::new(), 0);
    for entry in entries {
        // With tag and length.
        let more = entry.encoded_len() + 6;
        if bytes + more > most && !part.is_empty() {
            send(std::mem::take(&mut part))?;
            bytes = 0;
        }
        bytes += more;
        part.push(entry);
    }
    send(part)
}

/// Returns the objects of a kind, or of all, that are of a network or of none, in their order.
fn selected<'a>(view: &'a View, request: &v1::ObjectsRequest) -> Vec<Listed<'a>> {
    let kind = convert::kind(request.kind());
    let kinds = kind.as_ref().map_or(&Kind::ALL[..], std::slice::from_ref).iter().copied();
    match &request.network {
        Some(network) => kinds.flat_map(|kind| view.objects.listed_of(kind, network)).collect(),
        None => view.objects.listed_in_order(kinds),
    }
}

/// Returns the number of objects that a request lists.
pub(super) fn count(view: &View, request: &v1::ObjectsRequest) -> usize {
    selected(view, request).len()
}

pub(super) fn objects(
    view: &View,
    request: &v1::ObjectsRequest,
    most: usize,
    send: &mut Send<'_, v1::ObjectsReply>,
) -> Result<(), Status> {
    let mut users = if request.users { users::of_objects(view) } else { HashMap::new() };
    let objects = selected(view, request).into_iter().map(|listed| {
        let owned = listed.owned();
        let of = users.remove(&owned.object.key()).unwrap_or_default();
        v1::OwnedObject {
            owner: owned.owner.name().to_owned(),
            object: Some(convert::message(&owned.object)),
            users: of.names,
            user_count: of.count,
        }
    });
    in_parts(objects, most, |objects| send(v1::ObjectsReply { revision: view.revision, objects }))
}

/// Hides from readers what they may not see of an object.
pub(super) fn hide(owned: &mut v1::OwnedObject) {
    match owned.object.as_mut().and_then(|object| object.object.as_mut()) {
        Some(v1::object::Object::Guest(guest)) => {
            guest.user_data = guest.user_data.as_deref().map(Secret::hidden);
        }
        Some(v1::object::Object::Network(network)) => {
            network.metadata_secret = network.metadata_secret.as_deref().map(Secret::hidden);
        }
        _ => {}
    }
}

/// Writes the configuration in force as a file. `may_see`: with the user data of guests. A comment names the owner of
/// objects that did not come from the file.
pub(super) fn export(
    view: &View,
    may_see: bool,
    most: usize,
    send: &mut Send<'_, v1::ExportReply>,
) -> Result<(), Status> {
    let hidden = |secret: &Secret| Secret(Secret::hidden(&secret.0).into());
    let text = |listed: Listed<'_>| {
        let owned = listed.owned();
        let owner = match &owned.owner {
            Owner::File => String::new(),
            other => format!("# owner: {}\n", other.name()),
        };
        match &owned.object {
            Object::Guest(guest) if !may_see => {
                let guest = Guest { user_data: guest.user_data.as_ref().map(hidden), ..Guest::clone(guest) };
                format!("\n{owner}{}", Object::from(guest).to_concise_toml())
            }
            Object::Network(network) if !may_see => {
                let metadata_secret = network.metadata_secret.as_ref().map(hidden);
                let network = Network { metadata_secret, ..Network::clone(network) };
                format!("\n{owner}{}", Object::from(network).to_concise_toml())
            }
            object => format!("\n{owner}{}", object.to_concise_toml()),
        }
    };
    let texts = std::iter::once(view.host.to_toml()).chain(view.objects.in_order().into_iter().map(text));
    in_parts(texts, most, |texts| send(v1::ExportReply { toml: texts.concat() }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_list_that_nobody_reads_is_cut_off_and_says_so() {
        let ((made, parts), (to, mut replies)) = (channel(3), channel(2));
        for part in 0..3 {
            made.send(Ok(part)).await.unwrap();
        }
        forward(parts, to, Duration::from_millis(1)).await;
        assert_eq!(replies.recv().await.unwrap().unwrap(), 0);
        assert_eq!(replies.recv().await.unwrap().unwrap_err().code(), tonic::Code::Aborted);
        assert!(replies.recv().await.is_none());
        assert!(made.send(Ok(4)).await.is_err(), "nobody makes more");
    }

    #[test]
    fn entries_come_in_parts_and_all_of_them() {
        let (mut parts, most) = (Vec::new(), 10 * (100 + 2 + 6));
        let entries = (0..95).map(|n| format!("{n:100}"));
        in_parts(entries.clone(), most, |part| {
            parts.push(part);
            Ok(())
        })
        .unwrap();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 10, 10, 10, 10, 10, 10, 10, 5]);
        assert_eq!(parts.concat(), entries.collect::<Vec<_>>());
    }

    #[test]
    fn a_list_that_is_too_long_for_a_message_names_the_other_way() {
        let entries = |count| (0..count).map(|_| "x".repeat(1_000_000));
        let list = |count| {
            whole("StreamTable", |most, send| in_parts(entries(count), most, |part| send(part.len())))
        };
        assert_eq!((list(0).unwrap(), list(33).unwrap()), (0, 33));
        let refused = list(34).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("StreamTable"), "{refused}");
    }
}
