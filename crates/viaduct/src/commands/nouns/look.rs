//! Shows things that Viaduct learns by itself: neighbours.

use super::{Context, rows, table};
use crate::args::Look;
use crate::client::Failure;
use crate::output::{Column, print_row, print_rows};
use api::v1::TableName;

pub async fn neigh(on: &mut Context, network: Option<String>, action: Option<Look>) -> Result<(), Failure> {
    let mut rows = rows(&table(on, TableName::Neighbour, network).await?.neighbours);
    for row in &mut rows {
        row["state"] = if row["mac"].is_null() { "asked" } else { "known" }.into();
    }
    let columns: &[Column] = &[
        ("WHERE", "scope"),
        ("ADDRESS", "address"),
        ("MAC", "mac"),
        ("STATE", "state"),
        ("HELD", "held"),
        ("USERS", "users"),
    ];
    match action {
        None | Some(Look::List) => print_rows(rows, columns, on.json),
        Some(Look::Show { key }) => {
            let found = rows.iter().find(|row| row["address"] == *key);
            let missing =
                || Failure::Refused(format!("there is no neighbour \"{key}\"; `viaduct neigh` lists them"));
            print_row(found.ok_or_else(missing)?, on.json)
        }
    }
}
