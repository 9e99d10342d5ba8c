//! rdma: verbs devices, and the objects of their clients.

mod sysfs;
mod tree;

use super::{Context, value};
use crate::args::{RdmaAction, RdmaArgs};
use crate::client::Failure;
use crate::output::{Column, print_row, print_rows};
use api::v1::{self, RdmaTable};
use serde_json::Value;

const DEVICES: &[Column] = &[
    ("NAME", "name"),
    ("GUEST", "guest"),
    ("NETWORK", "network"),
    ("ADDRESSES", "addresses"),
    ("CLIENTS", "clients"),
    ("QPS", "qps"),
    ("MRS", "mrs"),
    ("CQS", "cqs"),
    ("REGISTERED", "registered_bytes"),
    ("SENT", "sent_pkts"),
    ("RECEIVED", "rcvd_pkts"),
    ("STUCK", "stuck"),
    ("DISTRUSTED", "distrusted"),
];

const QPS: &[Column] = &[
    ("DEVICE", "device"),
    ("PID", "pid"),
    ("QPN", "qpn"),
    ("TYPE", "type"),
    ("STATE", "state"),
    ("PEER", "peer"),
    ("PEER-QPN", "peer_qpn"),
    ("TRANSPORT", "transport"),
    ("SQ-PSN", "sq_psn"),
    ("RQ-PSN", "rq_psn"),
    ("RETRIES", "retries"),
    ("PROGRAM", "program"),
    ("WHY", "why"),
];

const MRS: &[Column] = &[
    ("DEVICE", "device"),
    ("PID", "pid"),
    ("MRN", "mrn"),
    ("LENGTH", "length"),
    ("ACCESS", "access"),
    ("MEMORY", "memory"),
];

const CQS: &[Column] = &[
    ("DEVICE", "device"),
    ("PID", "pid"),
    ("CQN", "cqn"),
    ("ENTRIES", "entries"),
    ("USERS", "users"),
    ("OVERRUN", "overrun"),
];

const CMS: &[Column] = &[
    ("DEVICE", "device"),
    ("PID", "pid"),
    ("ID", "id"),
    ("STATE", "state"),
    ("SPACE", "port_space"),
    ("SOURCE", "source"),
    ("PORT", "source_port"),
    ("DESTINATION", "destination"),
    ("PORT", "destination_port"),
    ("QPN", "qpn"),
];

const HOLDERS: &[Column] = &[
    ("DEVICE", "device"),
    ("PID", "pid"),
    ("HOLDER", "holder"),
    ("HOLDER-PID", "holder_pid"),
    ("MEMORY", "memory"),
    ("TRUSTED", "trusted"),
];

const WINDOWS: &[Column] = &[
    ("NAME", "name"),
    ("KIND", "kind"),
    ("BYTES", "bytes"),
    ("USED", "used_bytes"),
    ("LEFT", "left_bytes"),
    ("ATTACHED", "attached"),
    ("UUID", "uuid"),
    ("GUEST", "guest"),
    ("PID", "pid"),
    ("PROGRAM", "program"),
    ("HAS", "has_bytes"),
    ("FAULT", "fault"),
];

pub async fn rdma(on: &mut Context, args: RdmaArgs) -> Result<(), Failure> {
    let (table, only) = match &args.action {
        None | Some(RdmaAction::List) => (RdmaTable::Device, None),
        Some(RdmaAction::Show { name }) => (RdmaTable::Device, Some(name.clone())),
        Some(RdmaAction::Qp) => (RdmaTable::Qp, None),
        Some(RdmaAction::Mr) => (RdmaTable::Mr, None),
        Some(RdmaAction::Cq) => (RdmaTable::Cq, None),
        Some(RdmaAction::Cm) => (RdmaTable::Cm, None),
        Some(RdmaAction::Holders) => (RdmaTable::Holder, None),
        Some(RdmaAction::Windows) => (RdmaTable::Window, None),
        Some(RdmaAction::Tree(_)) if args.device.is_some() => {
            return Err(Failure::Usage("tree takes devices as NAME after DIR, not by --device".into()));
        }
        Some(RdmaAction::Tree(args)) => return tree::write(on, args).await,
    };
    let request = v1::RdmaRequest { table: table.into(), device: only.clone().or(args.device) };
    let reply = on.client.rdma(request).await?.into_inner();
    let (rows, columns): (Vec<Value>, _) = match table {
        RdmaTable::Qp => (reply.qps.iter().map(queue_pair).collect(), QPS),
        RdmaTable::Mr => (reply.mrs.iter().map(value).collect(), MRS),
        RdmaTable::Cq => (reply.cqs.iter().map(value).collect(), CQS),
        RdmaTable::Cm => (reply.cms.iter().map(value).collect(), CMS),
        RdmaTable::Holder => (reply.holders.iter().map(value).collect(), HOLDERS),
        RdmaTable::Window if on.json => (reply.windows.iter().map(value).collect(), WINDOWS),
        RdmaTable::Window => (reply.windows.iter().flat_map(window).collect(), WINDOWS),
        _ => (reply.devices.iter().map(|device| row(device, on.json)).collect(), DEVICES),
    };
    match (&rows[..], only) {
        ([one], Some(_)) => print_row(one, on.json),
        _ => print_rows(rows, columns, on.json),
    }
}

/// Makes the row of a device. For people, its counters are among its fields; for scripts, they are one field.
fn row(device: &v1::RdmaDevice, json: bool) -> Value {
    let mut row = value(device);
    let counters = device.counters.iter().map(|counter| (counter.name.clone(), Value::from(counter.value)));
    match row.as_object_mut() {
        Some(fields) if !json => {
            fields.remove("counters");
            fields.extend(counters);
        }
        _ => row["counters"] = Value::Object(counters.collect()),
    }
    row
}

/// Makes the rows of a window: one for each program that uses it, the first with the window's fields.
fn window(window: &v1::RdmaWindow) -> Vec<Value> {
    let mut first = value(window);
    let mut lines = window.users.iter().map(|user| {
        let mut line = value(user);
        line["has_bytes"] = user.bytes.into();
        line["bytes"] = Value::Null;
        line
    });
    if let Some(Value::Object(user)) = lines.next()
        && let Some(fields) = first.as_object_mut()
    {
        fields.extend(user.into_iter().filter(|(_, value)| !value.is_null()));
    }
    std::iter::once(first).chain(lines).collect()
}

/// Makes the row of a queue pair. Its last column says why the queue pair failed, or else why it has this
/// transport.
fn queue_pair(qp: &v1::RdmaQp) -> Value {
    let mut row = value(qp);
    row["why"] = qp.error.as_ref().unwrap_or(&qp.reason).clone().into();
    row
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::output::table;

    #[test]
    fn counters_have_their_names() {
        let counters = vec![v1::RdmaCounter { name: "sent_pkts".to_owned(), value: 7 }];
        let device = v1::RdmaDevice { name: "vm1".to_owned(), clients: 2, counters, ..Default::default() };
        assert_eq!(row(&device, true)["counters"]["sent_pkts"], 7);
        let shown = row(&device, false);
        assert_eq!((&shown["sent_pkts"], shown.get("counters")), (&Value::from(7), None));
        let text = table(&[shown], DEVICES);
        let [title, line] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(title.starts_with("NAME  GUEST") && line.starts_with("vm1   -"), "{text}");
    }

    #[test]
    fn every_column_is_a_field() {
        let has = |row: Value, columns: &[Column]| {
            for (_, key) in columns {
                assert!(row.get(key).is_some(), "{key} is no field of {row}");
            }
        };
        has(queue_pair(&v1::RdmaQp::default()), QPS);
        has(value(&v1::RdmaMr::default()), MRS);
        has(value(&v1::RdmaCq::default()), CQS);
        has(value(&v1::RdmaCm::default()), CMS);
        has(value(&v1::RdmaHolder::default()), HOLDERS);
        let user = v1::RdmaWindowUser::default();
        has(window(&v1::RdmaWindow { users: vec![user], ..Default::default() }).remove(0), WINDOWS);
        has(row(&v1::RdmaDevice::default(), false), &DEVICES[..9]);
    }

    #[test]
    fn programs_of_a_window_have_a_line_each() {
        let user = |pid, bytes| v1::RdmaWindowUser { guest: "vm1".into(), pid, bytes, ..Default::default() };
        let name = "c1".to_owned();
        let users = vec![user(7, 4096), user(8, 8192)];
        let lines = window(&v1::RdmaWindow { name, bytes: 1 << 20, users, ..Default::default() });
        let fields = |line: &Value| ["name", "bytes", "pid", "has_bytes"].map(|key| line[key].clone());
        assert_eq!(fields(&lines[0]), [Value::from("c1"), (1 << 20).into(), 7.into(), 4096.into()]);
        assert_eq!(fields(&lines[1]), [Value::Null, Value::Null, 8.into(), 8192.into()]);
        assert_eq!(window(&v1::RdmaWindow::default()).len(), 1);
        let fault = Some("no room".to_owned());
        assert_eq!(window(&v1::RdmaWindow { fault, ..Default::default() })[0]["fault"], "no room");
    }

    #[test]
    fn an_error_goes_before_the_reason() {
        let qp = v1::RdmaQp { reason: "same host".to_owned(), ..Default::default() };
        assert_eq!(queue_pair(&qp)["why"], "same host");
        let qp = v1::RdmaQp { error: Some("RETRY_EXC_ERR".to_owned()), ..qp };
        assert_eq!(queue_pair(&qp)["why"], "RETRY_EXC_ERR");
    }
}
