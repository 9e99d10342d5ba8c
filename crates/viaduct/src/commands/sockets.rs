//! sockets: connections that programs have moved to memory in common.

use super::{Context, value};
use crate::args::SocketsArgs;
use crate::client::Failure;
use crate::output::{Column, print_json, print_rows};
use api::v1;
use serde_json::Value;

const PAIRS: &[Column] = &[
    ("GUEST", "guest"),
    ("LOCAL", "local"),
    ("PID", "pid"),
    ("PEER", "peer_guest"),
    ("REMOTE", "remote"),
    ("PEER-PID", "peer_pid"),
    ("SENDS", "sends"),
    ("RECEIVES", "receives"),
    ("SENT", "sent"),
    ("RECEIVED", "received"),
    ("RETURNED", "returned"),
];

const GUESTS: &[Column] =
    &[("GUEST", "name"), ("SOCKET", "socket"), ("PROGRAMS", "programs"), ("PROBLEM", "problem")];

pub async fn sockets(on: &mut Context, SocketsArgs { guest, guests }: SocketsArgs) -> Result<(), Failure> {
    let reply = on.client.sockets(v1::SocketsRequest { guest }).await?.into_inner();
    if on.json && !guests {
        return print_json(&value(&reply));
    }
    let (rows, columns): (Vec<Value>, _) = match guests {
        true => (reply.guests.iter().map(value).collect(), GUESTS),
        false => (reply.pairs.iter().map(value).collect(), PAIRS),
    };
    print_rows(rows, columns, on.json)
}
