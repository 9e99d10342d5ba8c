//! Converts between the API's messages and the configuration's objects. Both have the same fields, so objects
//! are parsed and checked in one way, no matter whether they come from a file or the API. Of usual routes, of which many
//! come at once, that way is the longer one of two that agree.

mod route;

use api::v1::{self, object::Object as Message};
use config::{Key, Kind, Object};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Parses an object that came by the API, and checks it by itself.
pub(crate) fn object(message: &v1::Object) -> Result<Object, String> {
    if let Some(Message::Route(route)) = &message.object
        && let Some(route) = route::read(route)
    {
        return Ok(route.into());
    }
    slowly(message)
}

fn slowly(message: &v1::Object) -> Result<Object, String> {
    let (kind, table) = fields_of(message)?;
    config::object(kind, table).map_err(|problems| problems.to_string())
}

/// Returns the fields of an object that came by the API, unchecked.
pub(crate) fn fields_of(message: &v1::Object) -> Result<(Kind, toml::Table), String> {
    let message = message.object.as_ref().ok_or("an object without content")?;
    let (kind, table) = match message {
        Message::Wire(m) => (Kind::Wire, table(m)),
        Message::Network(m) => (Kind::Network, table(m)),
        Message::Guest(m) => (Kind::Guest, table(m)),
        Message::Lease(m) => (Kind::Lease, table(m)),
        Message::Nexthop(m) => (Kind::Nexthop, table(m)),
        Message::Route(m) => (Kind::Route, table(m)),
        Message::Mac(m) => (Kind::Mac, table(m)),
        Message::Flood(m) => (Kind::Flood, table(m)),
        Message::Nat(m) => (Kind::Nat, table(m)),
        Message::Forward(m) => (Kind::Forward, table(m)),
        Message::Rule(m) => (Kind::Rule, table(m)),
        Message::Default(m) => (Kind::Default, table(m)),
        Message::Mpls(m) => (Kind::Mpls, table(m)),
        Message::Vxlan(m) => (Kind::Vxlan, table(m)),
    };
    Ok((kind, table?))
}

fn table<T: Serialize>(message: &T) -> Result<toml::Table, String> {
    toml::Table::try_from(message).map_err(|e| e.to_string())
}

pub(crate) fn message(object: &Object) -> v1::Object {
    let message = match object.kind() {
        Kind::Wire => Message::Wire(fields(object)),
        Kind::Network => Message::Network(fields(object)),
        Kind::Guest => Message::Guest(fields(object)),
        Kind::Lease => Message::Lease(fields(object)),
        Kind::Nexthop => Message::Nexthop(fields(object)),
        Kind::Route => Message::Route(fields(object)),
        Kind::Mac => Message::Mac(fields(object)),
        Kind::Flood => Message::Flood(fields(object)),
        Kind::Nat => Message::Nat(fields(object)),
        Kind::Forward => Message::Forward(fields(object)),
        Kind::Rule => Message::Rule(fields(object)),
        Kind::Default => Message::Default(fields(object)),
        Kind::Mpls => Message::Mpls(fields(object)),
        Kind::Vxlan => Message::Vxlan(fields(object)),
    };
    v1::Object { object: Some(message) }
}

/// Converts an object to its message, which has the same fields; a test converts one of each kind.
#[allow(clippy::expect_used)]
fn fields<T: DeserializeOwned>(object: &Object) -> T {
    let mut table = toml::Table::try_from(object).expect("objects are tables");
    table.get_mut("to").into_iter().for_each(spell_out);
    table.try_into().expect("messages have the fields of objects")
}

/// Gives the target "drop", which objects write as a word, the form that messages have.
fn spell_out(to: &mut toml::Value) {
    match to {
        toml::Value::String(word) if word == "drop" => {
            *to = toml::Table::from_iter([("drop".to_owned(), true.into())]).into();
        }
        toml::Value::Array(targets) => targets.iter_mut().for_each(spell_out),
        _ => {}
    }
}

/// Returns the kind that a request names; `None`: all.
pub(crate) fn kind(kind: v1::Kind) -> Option<Kind> {
    let kind = match kind {
        v1::Kind::Unspecified => return None,
        v1::Kind::Wire => Kind::Wire,
        v1::Kind::Network => Kind::Network,
        v1::Kind::Guest => Kind::Guest,
        v1::Kind::Lease => Kind::Lease,
        v1::Kind::Nexthop => Kind::Nexthop,
        v1::Kind::Route => Kind::Route,
        v1::Kind::Mac => Kind::Mac,
        v1::Kind::Flood => Kind::Flood,
        v1::Kind::Nat => Kind::Nat,
        v1::Kind::Forward => Kind::Forward,
        v1::Kind::Rule => Kind::Rule,
        v1::Kind::Default => Kind::Default,
        v1::Kind::Mpls => Kind::Mpls,
        v1::Kind::Vxlan => Kind::Vxlan,
    };
    Some(kind)
}

pub(crate) fn key_message(key: &Key) -> v1::Key {
    let kind = match key.kind {
        Kind::Wire => v1::Kind::Wire,
        Kind::Network => v1::Kind::Network,
        Kind::Guest => v1::Kind::Guest,
        Kind::Lease => v1::Kind::Lease,
        Kind::Nexthop => v1::Kind::Nexthop,
        Kind::Route => v1::Kind::Route,
        Kind::Mac => v1::Kind::Mac,
        Kind::Flood => v1::Kind::Flood,
        Kind::Nat => v1::Kind::Nat,
        Kind::Forward => v1::Kind::Forward,
        Kind::Rule => v1::Kind::Rule,
        Kind::Default => v1::Kind::Default,
        Kind::Mpls => v1::Kind::Mpls,
        Kind::Vxlan => v1::Kind::Vxlan,
    };
    v1::Key { kind: kind.into(), network: key.network.clone(), name: key.name.clone() }
}

/// Parses a key, with its name in the form in which objects write it.
pub(crate) fn key(message: &v1::Key) -> Result<Key, String> {
    let kind = kind(message.kind()).ok_or("a key without kind")?;
    let name = match kind {
        Kind::Route => match message.name.parse::<ipnet::IpNet>() {
            Ok(prefix) => prefix.trunc().to_string(),
            Err(_) => return Err(format!("\"{}\" is not a prefix, as in 10.1.1.0/24", message.name)),
        },
        Kind::Mac => message.name.parse::<packet::Mac>().map_err(|e| e.to_string())?.to_string(),
        _ => message.name.clone(),
    };
    let in_network = matches!(
        kind,
        Kind::Route | Kind::Mac | Kind::Flood | Kind::Nat | Kind::Forward | Kind::Rule | Kind::Default
    );
    match (&message.network, in_network) {
        // A number or name of a rule would have told the network.
        (None, true) if kind == Kind::Rule => {
            Err(format!("there is no rule {name}; `viaduct rule` lists them"))
        }
        (None, true) => Err(format!("a {kind} belongs to a network; name it")),
        (network, true) => Ok(Key { kind, network: network.clone(), name }),
        (_, false) => Ok(Key { kind, network: None, name }),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_object_survives_the_api() {
        let file = config::parse(include_str!("../../../config/tests/valid.toml")).unwrap();
        for item in file.objects {
            assert_eq!(super::object(&super::message(&item.object)), Ok(item.object));
        }
    }

    #[test]
    fn what_is_wrong_with_an_object_is_said_without_lines() {
        let route =
            api::v1::Route { network: "blue".to_owned(), prefix: "10.0.0.1/8".to_owned(), to: vec![] };
        let message = api::v1::Object { object: Some(api::v1::object::Object::Route(route)) };
        let said = super::object(&message).unwrap_err();
        assert!(said.contains("did you mean \"10.0.0.0/8\"?") && !said.contains("line"), "{said}");
    }
}
