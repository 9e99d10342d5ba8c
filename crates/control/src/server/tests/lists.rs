//! Lists that are longer than a message.

use super::*;
use tonic::Streaming;

/// Largest message that clients take by default, bytes.
const MOST: usize = 4 << 20;

async fn lengths<T: prost::Message + Default + 'static>(
    mut parts: Streaming<T>,
    length: impl Fn(&T) -> usize,
) -> usize {
    let (mut all, mut count) = (0, 0);
    while let Some(part) = parts.message().await.unwrap() {
        assert!(part.encoded_len() < MOST);
        (all, count) = (all + length(&part), count + 1);
    }
    assert!(count > 1);
    all
}

#[tokio::test]
async fn a_client_that_adds_many_gets_answers_that_it_takes() {
    with_server(|dir| async move {
        let mut client = client(dir.path()).await;
        let count = 200_000;
        let done = client.add(v1::AddRequest { objects: routes(0..count) }).await.unwrap().into_inner();
        let more = done.warnings.iter().find(|warning| warning.object == "answer").unwrap();
        let told = format!("{} more changes", count as usize - done.changes.len());
        assert!(more.message.starts_with(&told) && done.changes.len() > 10_000, "{more:?}");
        assert_eq!(client.status(v1::StatusRequest {}).await.unwrap().into_inner().routes, count + 3);

        let of = v1::ObjectsRequest { kind: Kind::Route.into(), ..Default::default() };
        let refused = client.objects(of.clone()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::OutOfRange, "the client does not take it: {refused}");
        // A slow client gets the state at which its list began.
        let mut slow = client.stream_objects(of.clone()).await.unwrap().into_inner();
        let first = slow.message().await.unwrap().unwrap();
        let added = client.add(v1::AddRequest { objects: routes(count..count + 1) }).await.unwrap();
        let revision = done.revision;
        assert_eq!((first.revision, added.into_inner().revision), (revision, revision + 1));
        let rest = lengths(slow, |part: &v1::ObjectsReply| {
            assert_eq!(part.revision, revision);
            part.objects.len()
        });
        assert_eq!(first.objects.len() + rest.await, count as usize);

        let all = client.stream_objects(of).await.unwrap().into_inner();
        assert_eq!(lengths(all, |part| part.objects.len()).await, count as usize + 1);
        let table = v1::TableRequest { table: TableName::Route.into(), network: None };
        let all = client.stream_table(table.clone()).await.unwrap().into_inner();
        assert_eq!(lengths(all, |part| part.routes.len()).await, count as usize + 4);
        let all = client.stream_export(v1::ExportRequest {}).await.unwrap().into_inner();
        let count_of = |part: &v1::ExportReply| part.toml.matches("[[route]]").count();
        assert_eq!(lengths(all, count_of).await, count as usize + 1);
        let nowhere = v1::TableRequest { network: Some("nowhere".into()), ..table };
        let refused = client.stream_table(nowhere).await.unwrap().into_inner().message().await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::NotFound);
    })
    .await;
}
