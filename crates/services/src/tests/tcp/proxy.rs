//! Metadata by a service outside.

use super::*;
use crate::MetadataProxy;

fn proxying() -> Services {
    let mut plan = plan_of(DATA);
    for binding in plan.bindings.values_mut() {
        let proxy = MetadataProxy {
            server: "192.0.2.9:8775".parse().unwrap(),
            secret: Some("shared".into()),
            tenant: "blue".to_owned(),
        };
        let metadata_proxy = Some(proxy);
        binding.network = Arc::new(Network { metadata_proxy, ..Network::clone(&binding.network) });
    }
    let services = Services::default();
    services.follow(plan);
    services
}

/// Returns a client that has sent a request, and what is for the service outside.
fn ask(services: &Services, guest: u16, port: u16, request: &str) -> (Client, Option<Proxied>) {
    let mut client = Client::connect(OWN.into(), metadata::ADDRESSES[0], 80, port);
    client.run(services, guest);
    client.socket().send_slice(request.as_bytes()).unwrap();
    client.run(services, guest);
    let asked = client.proxied.pop();
    (client, asked)
}

fn answered(services: &Services, client: &mut Client, asked: &Proxied, response: Option<&[u8]>) -> String {
    let answers = services.proxied(asked, response, client.now);
    client.hear(answers, 1);
    String::from_utf8(client.read(services, 1)).unwrap()
}

#[test]
fn a_service_outside_learns_who_asks_from_us_alone() {
    let services = proxying();
    let request = "GET /openstack/latest/meta_data.json HTTP/1.1\r\nHost: 169.254.169.254\r\nAccept: */*\r\n\
                   X-Forwarded-For: 10.1.1.9\r\nx-instance-id: vm9\r\nX-Tenant-ID: red\r\n\
                   X-Instance-ID-Signature: 0\r\n\r\n";
    let (mut client, asked) = ask(&services, 1, 40000, request);
    let asked = asked.unwrap();
    // The signature as `printf vm1 | openssl dgst -sha256 -hmac shared` says it.
    let wanted = "GET /openstack/latest/meta_data.json HTTP/1.1\r\nHost: 192.0.2.9:8775\r\nConnection: close\r\n\
                  Content-Length: 0\r\nX-Forwarded-For: 10.1.1.7\r\nX-Instance-ID: vm1\r\nX-Tenant-ID: blue\r\n\
                  X-Instance-ID-Signature: d349c60f967de2a6c3a535a6eafbb2ecd26d9cf7bd617cd453b517841c7f496f\r\n\
                  Accept: */*\r\n\r\n";
    assert_eq!(
        (asked.server.to_string().as_str(), str::from_utf8(&asked.request)),
        ("192.0.2.9:8775", Ok(wanted))
    );
    let response = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(20_000));
    assert_eq!(answered(&services, &mut client, &asked, Some(response.as_bytes())), response);
    assert_eq!((count(&services, "relayed"), count(&services, "answered")), (1, 1));
}

#[test]
fn a_service_that_says_nothing_is_told_of() {
    let services = proxying();
    let (mut client, asked) = ask(&services, 1, 40000, "GET / HTTP/1.1\r\n\r\n");
    let answer = answered(&services, &mut client, &asked.unwrap(), None);
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
    assert_eq!((count(&services, "no_server"), count(&services, "answered")), (1, 0));
}

#[test]
fn nothing_changes_the_service_and_responses_go_to_who_asked() {
    let services = proxying();
    let (mut client, asked) =
        ask(&services, 1, 40000, "POST /openstack/2013-04-04/password HTTP/1.1\r\n\r\n");
    let answer = String::from_utf8(client.read(&services, 1)).unwrap();
    assert!(asked.is_none() && answer.starts_with("HTTP/1.1 405 "), "{answer}");
    let (_, asked) = ask(&services, 1, 40001, "GET / HTTP/1.1\r\n\r\n");
    services.follow(Plan::default());
    assert!(services.proxied(&asked.unwrap(), Some(b"x"), Duration::ZERO).is_empty(), "the guest is gone");
}
