//! Changing fields of an object, as in `guest set vm1 mtu=1400`.

use crate::args::Fields;
use crate::client::Failure;
use crate::commands::value;
use api::v1::object::Object;
use api::v1::operation::Operation;
use api::v1::{self, Kind};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// Makes the request to change an object of this key.
pub fn request(key: v1::Key, fields: &Fields) -> Result<v1::TransactRequest, Failure> {
    let kind = key.kind();
    let mut table = Table::new();
    let mut names = fields.unset.clone();
    for field in &fields.fields {
        let (name, text) = field
            .split_once('=')
            .ok_or_else(|| Failure::Usage(format!("\"{field}\" is no FIELD=VALUE, as in mtu=1400")))?;
        is_field(kind, name)?;
        table.insert(name.to_owned(), value_of(kind, name, text)?);
        names.push(name.to_owned());
    }
    fields.unset.iter().try_for_each(|name| is_field(kind, name))?;
    let object = v1::Object { object: Some(message(kind, table).map_err(Failure::Usage)?) };
    let patch = v1::Patch { key: Some(key), object: Some(object), fields: names };
    let operations = vec![v1::Operation { operation: Some(Operation::Patch(patch)) }];
    let (take_over, confirm_seconds) = (fields.take_over, fields.confirm);
    Ok(v1::TransactRequest { operations, take_over, confirm_seconds, ..Default::default() })
}

/// Refuses a field that objects of this kind do not have.
fn is_field(kind: Kind, name: &str) -> Result<(), Failure> {
    let empty = message(kind, Table::new()).map_err(Failure::Usage)?;
    let all = value(&empty);
    let known: Vec<&str> = all
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(_, fields)| fields.as_object())
        .flat_map(|fields| fields.keys().map(String::as_str))
        .collect();
    if known.contains(&name) {
        return Ok(());
    }
    let near = config::did_you_mean(name, known.iter().copied());
    Err(Failure::Usage(format!("there is no field \"{name}\"{near}; there are: {}", known.join(", "))))
}

/// Reads a value as TOML, or else as a text or a list of texts, whatever the field takes.
fn value_of(kind: Kind, name: &str, text: &str) -> Result<Value, Failure> {
    let parsed = format!("value = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    let list = || Value::Array(text.split(',').map(|part| part.trim().into()).collect());
    let fits = |value: &Value| message(kind, Table::from_iter([(name.to_owned(), value.clone())]));
    let ways = parsed.into_iter().chain([text.into(), list()]);
    let mut why = String::new();
    for way in ways {
        match fits(&way) {
            Ok(_) => return Ok(way),
            Err(e) if why.is_empty() => why = e,
            Err(_) => {}
        }
    }
    Err(Failure::Usage(format!("{name}: {}", why.trim())))
}

/// Makes an object that has these fields alone.
fn message(kind: Kind, table: Table) -> Result<Object, String> {
    fn of<T: DeserializeOwned>(table: Table) -> Result<T, String> {
        table.try_into().map_err(|e: toml::de::Error| e.message().to_owned())
    }
    Ok(match kind {
        Kind::Unspecified => return Err("a key without kind".to_owned()),
        Kind::Wire => Object::Wire(of(table)?),
        Kind::Network => Object::Network(of(table)?),
        Kind::Guest => Object::Guest(of(table)?),
        Kind::Lease => Object::Lease(of(table)?),
        Kind::Nexthop => Object::Nexthop(of(table)?),
        Kind::Route => Object::Route(of(table)?),
        Kind::Mac => Object::Mac(of(table)?),
        Kind::Flood => Object::Flood(of(table)?),
        Kind::Nat => Object::Nat(of(table)?),
        Kind::Forward => Object::Forward(of(table)?),
        Kind::Rule => Object::Rule(of(table)?),
        Kind::Default => Object::Default(of(table)?),
        Kind::Mpls => Object::Mpls(of(table)?),
        Kind::Vxlan => Object::Vxlan(of(table)?),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn guest(fields: &[&str]) -> Result<(v1::Guest, Vec<String>), String> {
        let key = v1::Key { kind: Kind::Guest.into(), network: None, name: "vm1".into() };
        let fields = fields.iter().map(|field| (*field).to_owned()).collect();
        let fields =
            Fields { key: "vm1".into(), fields, unset: vec!["label".into()], take_over: false, confirm: 0 };
        let request = request(key, &fields).map_err(|e| e.to_string())?;
        match request.operations.into_iter().next().and_then(|step| step.operation) {
            Some(Operation::Patch(patch)) => match patch.object.and_then(|object| object.object) {
                Some(Object::Guest(guest)) => Ok((guest, patch.fields)),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_are_toml_or_what_the_field_takes() {
        let (set, names) = guest(&[
            "mtu=1400",
            "mac=02:00:00:00:00:07",
            "addresses=10.1.1.7, fd00::7",
            "rate={ mbps = 100 }",
            "policy=false",
        ])
        .unwrap();
        assert_eq!((set.mtu, set.mac.as_deref()), (Some(1400), Some("02:00:00:00:00:07")));
        assert_eq!(set.addresses, ["10.1.1.7", "fd00::7"]);
        assert_eq!(set.rate.map(|rate| rate.mbps), Some(100));
        assert_eq!(set.policy, Some(false));
        assert_eq!(names, ["label", "mtu", "mac", "addresses", "rate", "policy"]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(guest(&["mtuu=1"]).unwrap_err().contains("did you mean \"mtu\"?"));
        assert!(guest(&["mtu"]).unwrap_err().contains("no FIELD=VALUE"));
        assert!(guest(&["mtu=much"]).unwrap_err().starts_with("mtu: "));
    }
}
