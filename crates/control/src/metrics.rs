//! Metrics in Prometheus' text format (version 0.0.4), served over HTTP.
//!
//! Written by hand: `prometheus-client` writes OpenMetrics, another format, and the `prometheus` crate keeps its own
//! counters in a registry, while these values are summed at each scrape. The format is one function.

use crate::core::{Core, View};
use crate::process::{Process, Usage};
use crate::scrapes;
use crate::service::{nexthop_kind, ovs_ports, rdma_overview, reasons, rule_entries, vif_entries};
use crate::underlay::RemoteStatus;
use api::v1::{BgpPeer, BgpRange, BgpReply, OvsPort, OvsReply, RdmaDevice, RdmaWindow, VifEntry, VifShape};
use model::{DropReason, Nexthop, Tunnel};
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Arc;
use tokio::net::TcpListener;

/// Serves `/metrics` until the task is dropped.
pub(crate) async fn serve(core: Arc<Core>, process: Process, listener: TcpListener) -> ! {
    scrapes::serve(listener, scrapes::Bounds::default(), Arc::new(move || render(&core, &process))).await
}

/// The text as it is being written.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Writes a family with one value per label set. Labels come ready, as in `vif="vm1"`.
    fn family<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, V)>,
    ) {
        self.write(&format!("viaduct_{name}"), kind, help, values);
    }

    fn write<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, V)>,
    ) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn render(core: &Core, process: &Process) -> String {
    let view = &*core.view();
    let mut text = Text::default();
    host(view, &mut text);
    match process.usage() {
        Ok(usage) => own(&usage, &mut text),
        Err(error) => tracing::debug!("what the process takes can't be read: {error}"),
    }
    let problems = core.store_problems().len();
    text.family(
        "store_problems",
        "gauge",
        "What is wrong with the store; `viaduct status` has it in words.",
        [(String::new(), problems)],
    );
    let entries = vif_entries(view, None);
    vifs(&entries, &mut text);
    shapers(&entries, &mut text);
    workers(view, &mut text);
    tables(core, view, &mut text);
    card(view.executor.status().card.as_ref(), &mut text);
    let (devices, machines) = rdma_overview(core);
    verbs(&devices, &mut text);
    windows(&machines, &mut text);
    ovs(&ovs_ports(core), &mut text);
    services(&core.ports().services(), view, &mut text);
    bgp(&core.ports().bgp().unwrap_or_default(), &mut text);
    remotes(&core.ports().remotes(), &mut text);
    if !core.sockets().is_empty() {
        sockets(&core.ports().sockets(), &mut text);
    }
    text.0
}

fn host(view: &View, text: &mut Text) {
    let info = format!("host=\"{}\",version=\"{}\"", escaped(&view.host.name), env!("CARGO_PKG_VERSION"));
    text.family("info", "gauge", "The daemon.", [(info, 1)]);
    let uptime = view.started.elapsed().as_secs();
    text.family("uptime_seconds", "gauge", "Seconds since the daemon started.", [(String::new(), uptime)]);
}

/// Writes the metrics that every process has under the names of Prometheus' client libraries.
fn own(usage: &Usage, text: &mut Text) {
    let mut one = |name: &str, kind: &str, help: &str, value: f64| {
        text.write(&format!("process_{name}"), kind, help, [(String::new(), value)]);
    };
    one("cpu_seconds_total", "counter", "CPU time of the daemon's threads, seconds.", usage.cpu);
    one("resident_memory_bytes", "gauge", "Memory of the daemon in RAM.", usage.resident as f64);
    one(
        "virtual_memory_bytes",
        "gauge",
        "Address space of the daemon, guests' memory included.",
        usage.virtual_ as f64,
    );
    one("threads", "gauge", "Threads of the daemon.", usage.threads as f64);
    one("open_fds", "gauge", "Open file descriptors.", usage.descriptors as f64);
    if let Some(most) = usage.most_descriptors {
        one("max_fds", "gauge", "File descriptors that may be open at once.", most as f64);
    }
    one("start_time_seconds", "gauge", "When the daemon started, Unix time.", usage.started.as_secs_f64());
}

fn vifs(vifs: &[VifEntry], text: &mut Text) {
    let mut each = |name: &str, kind: &str, help: &str, value: &dyn Fn(&VifEntry) -> u64| {
        let labels = |vif: &VifEntry| {
            format!("vif=\"{}\",kind=\"{}\",network=\"{}\"", vif.name, vif.kind, vif.network())
        };
        text.family(name, kind, help, vifs.iter().map(|vif| (labels(vif), value(vif))));
    };
    each("vif_up", "gauge", "Whether packets can flow.", &|vif| vif.up.into());
    each(
        "vif_fault",
        "gauge",
        "Whether the port has a fault: it was disabled, or can't be opened.",
        &|vif| vif.fault.is_some().into(),
    );
    each("vif_receive_packets_total", "counter", "Packets from the interface.", &|vif| vif.rx_packets);
    each("vif_receive_bytes_total", "counter", "Bytes from the interface.", &|vif| vif.rx_bytes);
    each("vif_receive_drops_total", "counter", "Packets from the interface that were dropped.", &|vif| {
        vif.rx_drops
    });
    each("vif_send_packets_total", "counter", "Packets to the interface.", &|vif| vif.tx_packets);
    each("vif_send_bytes_total", "counter", "Bytes to the interface.", &|vif| vif.tx_bytes);
    each("vif_send_drops_total", "counter", "Packets the interface had no room for.", &|vif| vif.tx_drops);
    each("vif_malformed_total", "counter", "Buffers refused as malformed.", &|vif| vif.malformed);
    each("vif_lost_total", "counter", "Packets the kernel lost before they were received.", &|vif| vif.lost);
    each("vif_refused_total", "counter", "Packets the kernel did not take.", &|vif| vif.refused);
    each("vif_flows_opened", "gauge", "Connections the interface opened.", &|vif| vif.flows_opened);
    each("vif_flows_from_wire", "gauge", "Connections that came to it by a wire.", &|vif| {
        vif.flows_from_wire
    });
    each("vif_flows_refused_total", "counter", "Connections not made: no room, or too fast.", &|vif| {
        vif.flows_refused
    });
    each("vif_flows_displaced_total", "counter", "Connections that gave way to others.", &|vif| {
        vif.flows_displaced
    });
}

fn shapers(vifs: &[VifEntry], text: &mut Text) {
    let shaped: Vec<_> = vifs.iter().filter_map(|vif| Some((vif, vif.shape.as_ref()?))).collect();
    if shaped.is_empty() {
        return;
    }
    let mut each = |name: &str, kind: &str, help: &str, value: &dyn Fn(&VifShape) -> u64| {
        let labels = |vif: &VifEntry| format!("vif=\"{}\",network=\"{}\"", vif.name, vif.network());
        text.family(name, kind, help, shaped.iter().map(|(vif, shape)| (labels(vif), value(shape))));
    };
    let bits = |mbps: Option<u32>| u64::from(mbps.unwrap_or(0)) * 1_000_000;
    each("shape_in_bits_per_second", "gauge", "Rate of packets towards the guest; 0: none.", &|shape| {
        bits(shape.in_mbps)
    });
    each("shape_out_bits_per_second", "gauge", "Rate of packets from the guest; 0: none.", &|shape| {
        bits(shape.out_mbps)
    });
    each("shape_in_waited_total", "counter", "Packets towards the guest that waited.", &|shape| {
        shape.in_waited
    });
    each("shape_in_marked_total", "counter", "Packets marked because they waited too long.", &|shape| {
        shape.in_marked
    });
    each("shape_in_packets", "gauge", "Packets towards the guest that wait.", &|shape| shape.in_packets);
    each("shape_in_bytes", "gauge", "Bytes of these.", &|shape| shape.in_bytes);
    each("shape_out_waited_total", "counter", "Packets that waited in the guest's ring.", &|shape| {
        shape.out_waited
    });
}

fn workers(view: &View, text: &mut Text) {
    let workers = view.executor.workers();
    let drops = reasons(&workers).into_iter().map(|r| (format!("reason=\"{}\"", r.reason), r.packets));
    text.family("drops_total", "counter", "Packets dropped, by reason.", drops);
    let at_vifs = view.tables.vifs.values().flat_map(|vif| {
        let counts = DropReason::ALL.iter().zip(view.drops_at(vif.id));
        counts.filter(|(_, packets)| *packets > 0).map(move |(reason, packets)| {
            (format!("vif=\"{}\",reason=\"{}\"", vif.name, reason.name()), packets)
        })
    });
    text.family("vif_drops_total", "counter", "Packets dropped at an interface, by reason.", at_vifs);
    let mut each = |name: &str, help: &str, value: &dyn Fn(&executor::WorkerCounters) -> u64| {
        let values = workers.iter().map(|w| (format!("worker=\"{}\"", w.worker), value(w)));
        text.family(name, "counter", help, values);
    };
    each("worker_receive_packets_total", "Packets taken from ports.", &|w| w.received.packets);
    each("worker_send_packets_total", "Packets delivered to ports.", &|w| w.sent.packets);
    each("worker_flow_hits_total", "Flow cache hits.", &|w| w.hits);
    each("worker_flow_misses_total", "Flow cache misses.", &|w| w.misses);
    each("worker_replies_total", "Answers sent by Viaduct itself.", &|w| w.replies);
    each("worker_sleeps_total", "Times the worker slept.", &|w| w.sleeps);
    let cycles = workers.iter().flat_map(|w| {
        let stages = [
            ("receive", w.cycles.receive),
            ("lookup", w.cycles.lookup),
            ("slow_path", w.cycles.slow_path),
            ("deliver", w.cycles.deliver),
            ("busy", w.cycles.busy),
            ("idle", w.cycles.idle),
        ];
        stages.map(|(stage, ticks)| (format!("worker=\"{}\",stage=\"{stage}\"", w.worker), ticks))
    });
    text.family("worker_cycles_total", "counter", "TSC ticks by stage.", cycles);
}

fn card(card: Option<&executor::CardCounters>, text: &mut Text) {
    let Some(card) = card else { return };
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        text.family(name, kind, help, [(String::new(), value)]);
    };
    one("card_clocks_total", "counter", "Clocks of the card.", card.clocks);
    one("card_busy_clocks_total", "counter", "Clocks of the card with packets inside.", card.busy);
    one("card_receive_packets_total", "counter", "Packets that came in by ports of the card.", card.received);
    one("card_forwarded_packets_total", "counter", "Packets the card forwarded.", card.forwarded);
    one("card_dropped_packets_total", "counter", "Packets the card dropped.", card.dropped);
    one("card_lost_packets_total", "counter", "Packets inside the card when it failed.", card.lost);
    one("card_flows", "gauge", "Flows in the card's table.", card.flows);
    one("card_flows_uncounted", "gauge", "Of these, those without counters.", card.flows_uncounted);
    one(
        "card_memory_errors_total",
        "counter",
        "Answers of the card's memory with an error.",
        card.memory_errors,
    );
    one(
        "card_flows_refused_total",
        "counter",
        "Flows left to the host for want of room.",
        card.flows_refused,
    );
    let punted = card.punted.iter().map(|(reason, packets)| (format!("reason=\"{reason}\""), packets));
    text.family("card_punted_packets_total", "counter", "Packets the card left to the host.", punted);
}

fn windows(windows: &[RdmaWindow], text: &mut Text) {
    if windows.is_empty() {
        return;
    }
    let mut each = |name: &str, help: &str, value: &dyn Fn(&RdmaWindow) -> u64| {
        let labels = |window: &RdmaWindow| format!("window=\"{}\",kind=\"{}\"", window.name, window.kind);
        text.family(name, "gauge", help, windows.iter().map(|window| (labels(window), value(window))));
    };
    each("rdma_window_bytes", "Size of the window.", &|window| window.bytes);
    each("rdma_window_used_bytes", "Memory of the window that programs have.", &|window| window.used_bytes);
    each("rdma_window_machines", "VMs that have the window.", &|window| window.attached.len() as u64);
}

fn sockets(status: &matchmaker::Status, text: &mut Text) {
    let by_ring = status.pairs.iter().filter(|pair| pair.rings.contains(&true)).count();
    let ways = [("ring", by_ring), ("tcp", status.pairs.len() - by_ring)];
    let ways = ways.map(|(way, count)| (format!("way=\"{way}\""), count));
    let help = "Connections with memory in common, by how they send now: by a ring in at least one direction, or TCP.";
    text.family("sockets_connections", "gauge", help, ways);
    let help = "Connections that were offered and have no other end yet.";
    text.family("sockets_offers", "gauge", help, [(String::new(), status.offers)]);
    let counters = &status.counters;
    let mut total = |name: &str, help: &str, value: u64| {
        text.family(name, "counter", help, [(String::new(), value)]);
    };
    total("sockets_offered_total", "Offers of connections.", counters.offered);
    total("sockets_matched_total", "Connections that got memory in common.", counters.matched);
    total("sockets_ring_bytes_total", "Bytes that went by rings, as the programs say.", counters.bytes);
    let reasons = |of: &std::collections::BTreeMap<&str, u64>| -> Vec<(String, u64)> {
        of.iter().map(|(reason, count)| (format!("reason=\"{reason}\""), *count)).collect()
    };
    text.family("sockets_refused_total", "counter", "Offers that were refused.", reasons(&counters.refused));
    let help = "Connections that were told to return to TCP.";
    text.family("sockets_returns_total", "counter", help, reasons(&counters.returned));
}

fn services(counts: &services::Counts, view: &View, text: &mut Text) {
    let each = counts.0.iter().map(|(key, count)| {
        let network = escaped(&key.network);
        (format!("network=\"{network}\",outcome=\"{}\"", key.outcome), *count)
    });
    let help =
        "What guests asked the services of their networks: answered, noted, or why there was no answer.";
    text.family("service_questions_total", "counter", help, each);
    let mut leases = BTreeMap::<&str, usize>::new();
    for owned in view.objects.of_kind(config::Kind::Lease) {
        if let config::Object::Lease(lease) = &owned.object {
            *leases.entry(&lease.network).or_default() += 1;
        }
    }
    let each = leases.iter().map(|(network, count)| (format!("network=\"{}\"", escaped(network)), *count));
    text.family("leases", "gauge", "Guests that have addresses of a network's pool.", each);
}

fn remotes(remotes: &[RemoteStatus], text: &mut Text) {
    if remotes.is_empty() {
        return;
    }
    let label = |of: &RemoteStatus| format!("remote=\"{}\"", of.remote);
    let down = remotes.iter().map(|of| (label(of), u64::from(of.is_down)));
    text.family("remote_down", "gauge", "Whether a remote of tunnels is down by BFD.", down);
    let paths = remotes.iter().map(|of| (label(of), of.paths_down as u64));
    text.family("remote_paths_down", "gauge", "Paths to a remote of tunnels that are down by BFD.", paths);
    let ups = remotes.iter().map(|of| (label(of), of.session.ups));
    text.family("remote_bfd_ups_total", "counter", "How often the BFD session with a remote came up.", ups);
}

fn bgp(BgpReply { peers, ranges, .. }: &BgpReply, text: &mut Text) {
    if !ranges.is_empty() {
        let label = |range: &BgpRange| format!("range=\"{}\"", range.prefix);
        let known = ranges.iter().map(|range| (label(range), u64::from(range.peers)));
        text.family("bgp_range_peers", "gauge", "Peers that are known of a range.", known);
        let refused = ranges.iter().map(|range| (label(range), range.refused));
        let help = "Connections of a range that were refused because all places were taken.";
        text.family("bgp_range_refused_total", "counter", help, refused);
    }
    if peers.is_empty() {
        return;
    }
    let mut each = |name: &str, help: &str, value: &dyn Fn(&BgpPeer) -> u64| {
        let values = peers.iter().map(|peer| (format!("peer=\"{}\"", peer.address), value(peer)));
        text.family(name, "gauge", help, values);
    };
    each("bgp_up", "Whether the session with a BGP peer is up.", &|peer| {
        (peer.state == "Established").into()
    });
    each("bgp_routes", "Routes of a BGP peer that are kept.", &|peer| peer.routes);
    each("bgp_stale", "Whether there are routes of an earlier session.", &|peer| peer.stale.is_some().into());
    each("bgp_pending", "Announcements and withdrawals that a BGP peer has still to get.", &|peer| {
        peer.pending
    });
    let watched =
        || peers.iter().filter_map(|peer| Some((format!("peer=\"{}\"", peer.address), peer.bfd.as_ref()?)));
    if watched().next().is_some() {
        let up = watched().map(|(labels, bfd)| (labels, u64::from(bfd.state == "Up")));
        text.family("bgp_bfd_up", "gauge", "Whether the BFD session with a BGP peer is up.", up);
        let ups = watched().map(|(labels, bfd)| (labels, bfd.ups));
        text.family(
            "bgp_bfd_ups_total",
            "counter",
            "How often the BFD session with a BGP peer came up.",
            ups,
        );
    }
    let counts = peers.iter().flat_map(|peer| {
        peer.counts
            .iter()
            .map(|count| (format!("peer=\"{}\",what=\"{}\"", peer.address, count.name), count.count))
    });
    text.family("bgp_total", "counter", "Messages of BGP peers, and routes that are not used.", counts);
}

fn ovs(OvsReply { ports, refused, .. }: &OvsReply, text: &mut Text) {
    if ports.is_empty() {
        return;
    }
    let label = |name: &str| format!("port=\"{}\"", escaped(name));
    let mut each = |name: &str, kind: &str, help: &str, value: &dyn Fn(&OvsPort) -> u64| {
        text.family(name, kind, help, ports.iter().map(|port| (label(&port.name), value(port))));
    };
    each("ovs_open", "gauge", "Whether an Open vSwitch has the port open.", &|p| p.session.is_some().into());
    each("ovs_flows", "gauge", "Flows of Open vSwitch at the port.", &|p| p.flows);
    each("ovs_stale_flows", "gauge", "Those that only a driver that is gone has made.", &|p| p.stale);
    let refusals = refused.iter().map(|refused| {
        (format!("{},reason=\"{}\"", label(&refused.port), escaped(&refused.reason)), refused.count)
    });
    let help = "Flows that Viaduct left to Open vSwitch.";
    text.family("ovs_flows_refused_total", "counter", help, refusals);
}

fn verbs(devices: &[RdmaDevice], text: &mut Text) {
    if devices.is_empty() {
        return;
    }
    let labels = |device: &RdmaDevice| {
        format!("device=\"{}\",guest=\"{}\",network=\"{}\"", device.name, device.guest, device.network)
    };
    let mut each = |name: &str, help: &str, value: &dyn Fn(&RdmaDevice) -> u64| {
        text.family(name, "gauge", help, devices.iter().map(|device| (labels(device), value(device))));
    };
    each("rdma_clients", "Programs that have the verbs device open.", &|device| device.clients.into());
    each("rdma_qps", "Queue pairs of the verbs device.", &|device| device.qps.into());
    each("rdma_mrs", "Memory regions of the verbs device.", &|device| device.mrs.into());
    each("rdma_cqs", "Completion queues of the verbs device.", &|device| device.cqs.into());
    each("rdma_registered_bytes", "Memory registered with the verbs device.", &|d| d.registered_bytes);
    for (name, help) in hca::COUNTERS {
        let value = |device: &RdmaDevice| {
            let counter = device.counters.iter().find(|counter| counter.name == name)?;
            Some((labels(device), counter.value))
        };
        text.family(&format!("rdma_{name}_total"), "counter", help, devices.iter().filter_map(value));
    }
}

/// Writes the packets of nexthops: of a tunnel one line for all of its labels, of which there may be a million.
fn nexthops(core: &Core, view: &View, text: &mut Text) {
    let tunnels = core.tunnel_packets(view).into_iter().map(|((kind, remote), packets)| {
        let encapsulation = Tunnel { kind, remote, id: 0, mac: None }.encapsulation();
        (format!("kind=\"tunnel\",encapsulation=\"{encapsulation}\",remote=\"{remote}\""), packets)
    });
    // Nexthops with different numbers may have the same words; each set of labels may come only once. Groups count
    // nothing: their members do.
    let mut others = BTreeMap::<String, u64>::new();
    for (id, nexthop) in view.tables.nexthops.others() {
        if !matches!(nexthop, Nexthop::Ecmp(_)) {
            let (kind, words) = (nexthop_kind(nexthop), escaped(&nexthop.words(view)));
            let labels = format!("kind=\"{kind}\",nexthop=\"{words}\"");
            *others.entry(labels).or_default() += view.executor.nexthop_counters(id).packets;
        }
    }
    let help = "Packets sent by a nexthop, or by a tunnel with any label.";
    text.family("nexthop_packets_total", "counter", help, tunnels.chain(others));
}

fn tables(core: &Core, view: &View, text: &mut Text) {
    let flows = view.executor.flow_count() as u64;
    text.family("flows", "gauge", "Connections.", [(String::new(), flows)]);
    let created = view.executor.flows_created();
    text.family("flows_created_total", "counter", "Connections made.", [(String::new(), created)]);
    let tables = &view.tables;
    let sizes = [
        ("vif", tables.vifs.len()),
        ("network", tables.networks.len()),
        ("nexthop", tables.nexthops.len()),
        ("route", tables.routes.len() + tables.learned.len()),
        ("mac", tables.macs.len() + tables.bridges.macs.len()),
        ("learned_mac", view.executor.learned().len()),
        ("neighbour", view.executor.neighbours().len()),
        ("mpls", tables.mpls.len()),
        ("vxlan", tables.vxlan.len()),
        ("floating", tables.floating.len()),
        ("shared", tables.networks.values().map(|network| network.sharing.addresses.len()).sum()),
        ("forward", tables.networks.values().map(|network| network.sharing.forwards.len()).sum()),
        ("rule", tables.rules.len()),
    ];
    let sizes = sizes.map(|(table, size)| (format!("table=\"{table}\""), size));
    text.family("table_entries", "gauge", "Entries of a table.", sizes);
    nexthops(core, view, text);
    let rules = rule_entries(view, None).into_iter().map(|rule| {
        let words = format!("{} {}", rule.priority, rule.action);
        let labels = format!(
            "network=\"{}\",rule=\"{}\",from=\"{}\",to=\"{}\",protocol=\"{}\",ports=\"{}\"",
            rule.network,
            escaped(&words),
            rule.from,
            rule.to,
            rule.protocol,
            rule.ports
        );
        (labels, rule.packets)
    });
    text.family("rule_packets_total", "counter", "Packets a rule decided.", rules);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use api::v1::RdmaCounter;

    #[test]
    fn interfaces_say_what_they_have_of_the_connection_table() {
        let vif = VifEntry {
            name: "vm1".to_owned(),
            kind: "tap".to_owned(),
            network: Some("blue".to_owned()),
            flows_opened: 7,
            flows_from_wire: 8,
            flows_refused: 9,
            flows_displaced: 10,
            ..VifEntry::default()
        };
        let mut text = Text::default();
        vifs(&[vif], &mut text);
        let labels = "{vif=\"vm1\",kind=\"tap\",network=\"blue\"}";
        for (name, n) in [("opened", 7), ("from_wire", 8), ("refused_total", 9), ("displaced_total", 10)] {
            assert!(text.0.contains(&format!("viaduct_vif_flows_{name}{labels} {n}\n")), "{}", text.0);
        }
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn windows_have_metrics() {
        let mut text = Text::default();
        windows(&[], &mut text);
        assert!(text.0.is_empty());
        let (name, kind, attached) = ("c1".to_owned(), "own".to_owned(), vec!["vm1".to_owned()]);
        windows(&[RdmaWindow { name, kind, attached, used_bytes: 4096, ..Default::default() }], &mut text);
        let labels = "{window=\"c1\",kind=\"own\"}";
        assert!(text.0.contains(&format!("viaduct_rdma_window_used_bytes{labels} 4096\n")), "{}", text.0);
        assert!(text.0.contains(&format!("viaduct_rdma_window_machines{labels} 1\n")), "{}", text.0);
    }

    #[test]
    fn verbs_devices_have_metrics() {
        let counters = vec![RdmaCounter { name: "out_of_sequence".to_owned(), value: 5 }];
        let (name, guest, network) = ("vm3.0".to_owned(), "vm3".to_owned(), "blue".to_owned());
        let device = RdmaDevice { name, guest, network, clients: 2, counters, ..RdmaDevice::default() };
        let mut text = Text::default();
        verbs(&[device], &mut text);
        let labels = "{device=\"vm3.0\",guest=\"vm3\",network=\"blue\"}";
        assert!(text.0.contains(&format!("viaduct_rdma_clients{labels} 2\n")), "{}", text.0);
        assert!(text.0.contains(&format!("viaduct_rdma_out_of_sequence_total{labels} 5\n")), "{}", text.0);
        assert!(!text.0.contains("viaduct_rdma_duplicate_request_total{"), "{}", text.0);
        let mut none = Text::default();
        verbs(&[], &mut none);
        assert_eq!(none.0, "");
    }
}
