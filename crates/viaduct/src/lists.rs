//! Lists, which come from the daemon in parts. Older daemons send them in one message.

use crate::client::{Client, Failure};
use api::v1;
use tonic::{Code, Response, Status, Streaming};

/// Joins the parts of a list. `None`: the daemon is older and has no lists in parts.
async fn joined<T: Default>(
    parts: Result<Response<Streaming<T>>, Status>,
    join: impl Fn(&mut T, T),
) -> Result<Option<T>, Failure> {
    let mut parts = match parts {
        Err(status) if status.code() == Code::Unimplemented => return Ok(None),
        parts => parts?.into_inner(),
    };
    let mut whole = T::default();
    while let Some(part) = parts.message().await? {
        join(&mut whole, part);
    }
    Ok(Some(whole))
}

pub async fn objects(client: &mut Client, request: v1::ObjectsRequest) -> Result<v1::ObjectsReply, Failure> {
    let parts = client.stream_objects(request.clone()).await;
    let join = |whole: &mut v1::ObjectsReply, part: v1::ObjectsReply| {
        whole.revision = part.revision;
        whole.objects.extend(part.objects);
    };
    match joined(parts, join).await? {
        Some(whole) => Ok(whole),
        None => Ok(client.objects(request).await?.into_inner()),
    }
}

pub async fn table(client: &mut Client, request: v1::TableRequest) -> Result<v1::TableReply, Failure> {
    let parts = client.stream_table(request.clone()).await;
    let join = |whole: &mut v1::TableReply, part: v1::TableReply| {
        whole.vifs.extend(part.vifs);
        whole.nexthops.extend(part.nexthops);
        whole.routes.extend(part.routes);
        whole.bridge.extend(part.bridge);
        whole.mpls.extend(part.mpls);
        whole.vxlan.extend(part.vxlan);
        whole.rules.extend(part.rules);
        whole.neighbours.extend(part.neighbours);
    };
    match joined(parts, join).await? {
        Some(whole) => Ok(whole),
        None => Ok(client.table(request).await?.into_inner()),
    }
}

/// Returns the configuration in force as text.
pub async fn export(client: &mut Client) -> Result<String, Failure> {
    let parts = client.stream_export(v1::ExportRequest {}).await;
    let join = |whole: &mut v1::ExportReply, part: v1::ExportReply| whole.toml += &part.toml;
    match joined(parts, join).await? {
        Some(whole) => Ok(whole.toml),
        None => Ok(client.export(v1::ExportRequest {}).await?.into_inner().toml),
    }
}
