//! Examples and grammars in help texts and manual pages.

use clap::Command;

/// Names the object in the help texts of actions on it, as in "Add a guest".
pub fn of(noun: &'static str) -> impl FnMut(Command) -> Command {
    move |action| match action.get_name() {
        "add" => action.about(format!("Add {noun}")),
        "show" => action.about(format!("Show {noun} in full")),
        "set" => action.about(format!("Change fields of {noun}, in place")),
        _ => action,
    }
}

pub const SET: &str = "\
Examples:
  viaduct guest set vm1 mtu=1400 addresses=10.1.1.5,fd00:1::5
  viaduct guest set vm1 'rate={ mbps = 100 }' --confirm 60
  viaduct rule set 7 action=drop
  viaduct network set blue --unset mtu";

pub const LEASE_EXAMPLES: &str = "\
Examples:
  viaduct lease
  viaduct lease del vm1     # forget its MAC, so that it may come back with another";

pub const GUEST_EXAMPLES: &str = "\
Examples:
  viaduct guest add vm1 --network blue --kind vhost --mac 02:00:00:00:00:01 --address 10.1.1.1 --label 100
  viaduct guest set vm1 mtu=1400
  viaduct guest add vm2 --mode ovs
  viaduct guest export vm1 | ssh other sudo viaduct guest import vm1";

pub const RT_EXAMPLES: &str = "\
Examples:
  viaduct rt --network blue
  viaduct rt show --network blue 10.9.3.4
  viaduct rt add --network blue 10.9.0.0/16 --to mpls-over-udp:192.0.2.2:100
  viaduct rt add --network blue 10.9.0.0/16 --to vxlan:[2001:db8::2]:5001 --to vxlan:[2001:db8::3]:5001
  viaduct rt del --network blue 10.9.0.0/16
  printf '%s\\n' 10.8.0.0/16 10.9.0.0/16 | viaduct rt add --network blue -f - --to nexthop:spine
  viaduct rt del --network blue -f routes.txt";

pub const RULE_EXAMPLES: &str = "\
Examples:
  viaduct rule add --network blue --priority 100 --from 10.1.1.0/24 --to vm1 --protocol tcp --ports 80-443 --action allow
  viaduct rule del 7";

pub const RUN_EXAMPLES: &str = "Examples:
  viaduct run --guest c1 -- redis-server
  viaduct run --only-ports 6379 -- redis-benchmark -h 10.1.1.2";

pub const RDMA_EXAMPLES: &str = "\
Examples:
  viaduct rdma
  viaduct rdma show vm1
  viaduct rdma qp --device vm1
  viaduct rdma tree --follow /run/job7 c1 c2";

pub const BGP_EXAMPLES: &str = "\
Examples:
  viaduct bgp
  viaduct bgp routes --network blue
  viaduct bgp explain 10.1.1.3
  viaduct bgp evpn --network blue
  viaduct bgp drain";

pub const OVS_EXAMPLES: &str = "\
Examples:
  viaduct ovs
  viaduct ovs flows --port vm1
  viaduct ovs refused";

pub const NEXTHOP_EXAMPLES: &str = "\
Examples:
  viaduct nexthop add spine --to mpls-over-udp:192.0.2.2:100 --to mpls-over-udp:192.0.2.3:100
  viaduct nexthop show spine";

pub const NAT_EXAMPLES: &str = "\
Examples:
  viaduct nat add --network blue 10.1.1.1 --outside 203.0.113.7 --outside-network public
  viaduct nat show --network blue 10.1.1.1";

pub const FORWARD_EXAMPLES: &str = "\
Examples:
  viaduct forward add --network blue tcp 203.0.113.5 8080 --guest vm1 --to-port 80
  viaduct forward del --network blue 'tcp 203.0.113.5 8080'";

pub const FLOOD_EXAMPLES: &str = "\
Example: viaduct flood add blue --to vxlan:192.0.2.2:5001 --to vxlan:192.0.2.3:5001";

pub const EXPLAIN: &str = "\
Examples:
  viaduct explain --in vm1 '10.1.1.1 > 10.1.1.3'
  viaduct explain --in vm1 '10.1.1.1 > 10.1.1.3 / icmp'
  viaduct explain --in vm1 '10.1.1.1 > 10.1.1.3 / tcp 80'
  viaduct explain --in vm1 '10.1.1.1 > 10.1.1.3 / tcp 40000 > 80 syn ack'
  viaduct explain --in vm1 'eth 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff / arp request 10.1.1.1 at 02:00:00:00:00:01 for 10.1.1.2'
  viaduct explain --in vm1 question.pcap";

/// The grammar of packets, which `model::text` parses.
pub const PACKETS: &str = "\
A packet is a list of layers, joined by ' / '. Words in brackets may be left out; so may the outer
Ethernet layer, the outer ip4 or ip6, and what is in that: then it is a ping. Lengths and checksums follow from the
layers.

  eth SRC > DST [vlan ID | svlan ID]... [type N]
  arp request SENDER at MAC for TARGET
  arp reply SENDER at MAC to TARGET at MAC
  [ip4] SRC > DST [ttl N] [tos N] [id N] [df] [frag OFFSET] [more] [proto N] [len N] [badsum]
  [ip6] SRC > DST [ttl N] [tos N] [flow N] [id N] [frag OFFSET] [more] [proto N] [len N]
  icmp, icmp6                     a ping; else echo ID SEQ, reply ID SEQ, or TYPE CODE [REST]
  tcp PORT                        a SYN to this port
  tcp SRC > DST [FLAGS] [seq N] [ack N] [win N] [mss N] [scale N]
                                  FLAGS: syn, ack, fin, rst, psh, urg, ece, cwr, or letters of FSRPAUEC
  udp PORT, sctp PORT             to this port
  udp SRC > DST [len N] [nosum], sctp SRC > DST
  [partial | sum N]               at the end of tcp, udp, icmp: the checksum is left to a device, or is this one
  ns TARGET [at MAC], na TARGET [at MAC] [FLAGS]
                                  neighbour discovery; FLAGS: letters of rso
  gre, mpls LABEL [ttl N] [tc N] [more], vxlan VNI, geneve VNI
                                  tunnels: what follows is inside
  roce rc|uc|ud OPERATION > QPN [psn N]
  payload N, hex BYTES            data
  pad N, cut N                    at the end: zeros behind the frame; only its first bytes";

pub const EXPLAIN_JSON: &str = "\
With --json: verdict (forward, flood, reply, hold, drop or consumed), reason (why it is dropped, as dropstats names
it), steps (table, key, result; no result: a miss), ingress and egress ports with their state, decision (lines).";

pub const CAPTURE: &str = "\
Examples:
  viaduct capture -i vm1 -n host 10.1.1.1 and tcp port 80
  viaduct capture 'udp port 53 or (icmp and not src 10.1.1.9)'
  viaduct capture -i vm1 dropped
  viaduct capture -w - | wireshark -k -i -

Each line has the time (UTC), < for a packet that arrives by the interface or > for one that leaves by it, the
interface, and the packet as in `viaduct explain --help`; of data longer than 32 bytes, only the length is told. A
dropped packet has the reason, too.";

/// The grammar of filters, which `control::matching` parses.
pub const FILTERS: &str = "\
A filter has the words of tcpdump (pcap-filter(7)). A tunnel packet matches by its outer or its inner headers.

  ADDRESS, PREFIX                 as host ADDRESS, net PREFIX
  [src|dst] host ADDRESS          an end of the packet; ARP too
  [src|dst] net PREFIX            as in: net 10.1.1.0/24
  [src|dst] port PORT
  [src|dst] portrange FIRST-LAST
  tcp, udp, sctp, icmp, icmp6, proto N
                                  the IP protocol; also before host, net, port: tcp dst port 80
  ip, ip6, arp                    likewise
  ether [src|dst] [host] MAC
  inbound, outbound               came in by the interface, left by it
  dropped                         the packets that Viaduct drops
  A and B, A or B, not A, (A)     also & | !; 'and' and 'or' bind alike, from the left";

/// The grammar of filters for connections.
pub const FLOW_FILTERS: &str = "\
MATCH has the words of tcpdump, as in `viaduct capture --help`, but not arp, ether, inbound, outbound and dropped; and
it has these:

  network NAME                    an end is in this network
  new, established, closing, closed
                                  the state of the connection

Example: viaduct flow --match 'established and tcp dst port 443 and not net 10.1.1.0/24'";

pub const DOCTOR: &str = "\
Each line is good, warning (it works, but slower or less safely) or broken, and says what to do. The exit status is 1 if
a line is broken. Run it as root, so that it sees what the daemon sees.";
