// SPDX-License-Identifier: Apache-2.0
// What travels between the modules of the engine.
//
// Byte k of a packet is in bits [8k +: 8] of its beats; numbers taken from a packet (addresses, ports, lengths) are kept
// as numbers, that is with the first byte of the wire highest. An IPv4 address is in the lower 32 bits of an address, the
// upper ones 0.
package viaduct_pkg;

  import registers_pkg::*;

  localparam int unsigned BeatBytes = 64;
  localparam int unsigned BeatWidth = 512;
  // What the parser looks at: a packet's first two beats.
  localparam int unsigned WindowBytes = 128;
  localparam int unsigned TagWidth = 10;
  localparam int unsigned SecretWidth = 320;
  // Flows that find no place in their buckets, and are looked up all the same.
  localparam int unsigned StashFlows = 16;
  localparam logic [47:0] GatewayMac = 48'h00005e000100;

  typedef logic [9:0] port_id_t;
  typedef logic [11:0] vrf_id_t;
  typedef logic [19:0] nexthop_id_t;
  typedef logic [TagWidth-1:0] tag_t;

  // A beat of a packet, and what is known of the whole packet (the same in each of its beats).
  typedef struct packed {
    logic                 last;
    // To the host, to be decided, or from it, to be sent as it is: its first beat is a `punt_meta_t`.
    logic                 direct;
    port_id_t                port;
    logic [15:0]          size;  // bytes
    logic [BeatWidth-1:0] data;
  } beat_t;

  // Whether a packet waits where it leaves until its flow's hold group is released, or is that release.
  typedef enum logic [1:0] {
    HoldNone,
    HoldWait,
    HoldRelease
  } hold_e;

  localparam int unsigned HoldGroups = 4;

  typedef struct packed {
    hold_e      kind;
    logic       turn;
    logic [1:0] group;
  } hold_t;

  // ---- What the parser found

  typedef enum logic [2:0] {
    L4Other,
    L4Tcp,
    L4Udp,
    L4Sctp,
    L4Icmp
  } l4_e;

  // A tenant's packet and the tunnel it came in. As `packet::Headers` and `packet::Tunnel`.
  typedef struct packed {
    punt_e        exception;    // PuntNone: well-formed, and within what the card reads
    port_id_t        port;         // it came in by
    logic [15:0]  size;         // of the frame, bytes
    // The outer frame, of what came by a wire.
    logic [47:0]  outer_mac;    // its destination
    logic         tunnelled;
    tunnel_e      tunnel;
    logic [23:0]  id;           // label or VNI
    logic [7:0]   label_ttl;    // 1 or more, or it is of no account
    logic         outer_v6;
    logic [127:0] outer_src;
    logic [127:0] outer_dst;
    // The tenant's packet: the frame itself, or what the tunnel carried.
    logic [7:0]   start;        // offset of its first byte in the frame
    logic [15:0]  stop;         // offset just past it
    logic         has_ethernet; // not out of MPLS
    logic [47:0]  mac_dst;
    logic [47:0]  mac_src;
    logic [15:0]  ethertype;    // behind the tags
    logic [1:0]   tags;
    logic         priority_tag; // the outermost is a C-tag that bears a priority alone
    logic [7:0]   l3_at;        // offset of the IP header in the frame
    logic         ip;
    logic         v6;
    logic [5:0]   header_len;   // of the IP header, bytes: 20 to 60
    logic [15:0]  ip_len;       // of the IP packet, bytes
    logic [127:0] src;
    logic [127:0] dst;
    logic [7:0]   protocol;
    logic [7:0]   ttl;
    logic [7:0]   tos;          // as it goes on: after decapsulation (RFC 6040)
    logic         new_tos;      // decapsulation changed it
    logic         fragment;     // `l4` is L4Other, ports are 0
    l4_e          l4;
    logic         icmp_echo;    // request or reply
    logic [15:0]  sport;        // or ICMP echo's identifier, in both; 0 where there is none
    logic [15:0]  dport;
    logic [7:0]   tcp_flags;    // FIN 1, SYN 2, RST 4, ACK 16
    logic         neighbour;    // ARP, or neighbour discovery
  } header_t;

  // ---- Look-ups

  // Key of a flow as it is hashed: an IPv6 flow's; of IPv4 the addresses are extended by zeros.
  typedef struct packed {
    logic [127:0] dst;
    logic [7:0]   zone;
    logic         v6;
    logic         from_tunnel;
    path_e        path;
    vrf_id_t      vrf;
    logic [7:0]   protocol;
    logic [15:0]  dport;
    logic [15:0]  sport;
    logic [127:0] src;
  } flow_key_t;

  typedef struct packed {
    logic         bad;          // found nothing, but could not read every line
    logic         hit;
    flow_action_e action;
    logic [7:0]   generation;
    logic [23:0]  index;
    nexthop_id_t  nexthop;
    logic         has_nexthop;
    logic         nat_src;
    logic         nat_dst;
    logic         keep_ttl;
    logic [31:0]  new_src;
    logic [31:0]  new_dst;
  } flow_result_t;

  // ---- What a line of the flow table says. It has more than any of these functions needs.

  /* verilator lint_off UNUSEDSIGNAL */

  // An action of a newer driver is left to the host. From 8 on they are those of hold groups.
  function automatic flow_action_e flow_action(input logic [3:0] action);
    return action[3] || 32'(action) < FlowActionCount ? flow_action_e'(action) : FlowActionHost;
  endfunction

  function automatic flow_result_t flow_result4(input flow4_t flow);
    return '{
        bad: 1'b0,
        hit: 1'b1,
        action: flow_action(flow.action),
        generation: flow.generation,
        index: flow.index,
        nexthop: flow.nexthop,
        has_nexthop: flow.has_nexthop,
        nat_src: flow.nat_src,
        nat_dst: flow.nat_dst,
        keep_ttl: flow.keep_ttl,
        new_src: flow.new_src,
        new_dst: flow.new_dst
    };
  endfunction

  function automatic flow_result_t flow_result6(input flow6_t flow);
    return '{
        bad: 1'b0,
        hit: 1'b1,
        action: flow_action(flow.action),
        generation: flow.generation,
        index: flow.index,
        nexthop: flow.nexthop,
        has_nexthop: flow.has_nexthop,
        nat_src: 1'b0,
        nat_dst: 1'b0,
        keep_ttl: flow.keep_ttl,
        new_src: '0,
        new_dst: '0
    };
  endfunction

  // Whether both lines of a bucket are an IPv6 flow, and of one moment.
  function automatic logic flow_whole6(input flow6_t flow);
    return flow.kind == FlowKindV6Low && flow.kind_high == FlowKindV6High && flow.version == flow.version_high;
  endfunction

  // ---- A line that memory answers with an error is all ones. The host writes no such line.

  // A bucket of no kind.
  function automatic logic bad_bucket(input logic [511:0] bucket);
    flow4_t flow4;
    flow6_t flow6;
    flow4 = bucket[255:0];
    flow6 = bucket;
    return flow4.kind == '1 && flow6.kind == '1;
  endfunction

  // No host has the broadcast address.
  function automatic logic bad_bridge(input bridge_t entry);
    return entry.mac == '1;
  endfunction

  function automatic logic bad_route4(input route4_t entry);
    return entry.kind == '1;
  endfunction

  // No prefix is that long.
  function automatic logic bad_route6(input route6_t entry);
    return entry.length == '1;
  endfunction

  function automatic logic bad_nexthop(input nexthop_t nexthop);
    return nexthop.kind == '1;
  endfunction

  /* verilator lint_on UNUSEDSIGNAL */

  // ---- What the other tables say

  typedef struct packed {
    logic         bad;          // found nothing, but could not read every line
    logic         found;
    nexthop_id_t  nexthop;
  } forward_result_t;

  // A bridge entry, or none.
  typedef struct packed {
    logic         bad;          // found nothing, but could not read every line
    logic         found;
    logic         fixed;
    nexthop_id_t  nexthop;
    logic         at_tunnel;
    logic [31:0]  at;
  } bridge_result_t;

  // Whether a nexthop is not on chip, but in HBM.
  function automatic logic in_memory(nexthop_id_t nexthop, int unsigned on_chip);
    return 32'(nexthop) >= on_chip;
  endfunction

  // ---- How all look-ups are asked, and what they find

  // Of a packet. Each look-up reads its part.
  typedef struct packed {
    tag_t         tag;
    flow_key_t    key;
    logic [47:0]  mac_dst;
    logic [47:0]  mac_src;
    logic [19:0]  root;         // of the network's IPv4 trie, units of 256 KiB
    logic [127:0] lengths6;     // of its IPv6 prefixes, longest first, a byte each; 255 ends them
  } lookup_t;

  typedef struct packed {
    logic            valid;
    tag_t            tag;
    flow_result_t    result;
  } flow_found_t;

  typedef struct packed {
    logic            valid;
    tag_t            tag;
    forward_result_t result;
  } forward_found_t;

  typedef struct packed {
    logic            valid;
    tag_t            tag;
    bridge_result_t  result;
  } bridge_found_t;

  // ---- Memory

  // Counts lines of the table (32 or 64 bytes) over all of its channels.
  typedef logic [26:0] line_t;

  // A look-up asks memory for a line, and takes lines that it asked for.
  typedef struct packed {
    logic  valid;
    line_t line;
    tag_t  tag;                 // comes back with the line
    logic  resp_ready;
  } memory_req_t;

  typedef struct packed {
    logic         req_ready;
    logic         valid;
    tag_t         tag;
    logic [511:0] data;         // a line of 32 bytes in the lower half
  } memory_resp_t;

  // A write of a table on chip.
  typedef struct packed {
    logic         valid;
    logic [3:0]   into;         // table_e
    logic [19:0]  address;
    logic [511:0] data;
  } write_t;

  // ---- What is done with a packet

  typedef struct packed {
    logic         drop;         // nothing leaves
    logic         punt;         // to the host: a beat with `meta`, then the frame as it came
    punt_meta_t   meta;
    port_id_t        port;         // it leaves by
    logic [7:0]   strip;        // bytes taken off the front
    logic [15:0]  kept;         // bytes kept behind those
    // The kept packet: its IP header, in its first beat, and what changes.
    logic         ip;
    logic         v6;
    logic [4:0]   l3_at;        // offset in what is kept: 0, 14, 18 or 22
    logic [5:0]   header_len;   // bytes; 20 where addresses are translated
    logic         set_tos;
    logic [7:0]   tos;
    logic         decrement_ttl;
    logic         nat_src;      // IPv4, with `l3_at` 0
    logic         nat_dst;
    logic [31:0]  new_src;
    logic [31:0]  new_dst;
    l4_e          l4;           // whose checksum covers the addresses
    // New Ethernet header: to this MAC, from the gateway's.
    logic         ethernet;
    logic [47:0]  mac;
    logic [15:0]  ethertype;
    // Tunnel headers.
    logic         encap;
    tunnel_e      tunnel;
    logic         outer_v6;
    logic [23:0]  id;
    logic [127:0] outer_src;
    logic [127:0] outer_dst;
    logic [47:0]  outer_src_mac;
    logic [47:0]  outer_dst_mac;
    logic [7:0]   outer_tos;
    logic [31:0]  entropy;
    logic [16:0]  checksum;     // of UDP over IPv6: what adds up to it with lengths, source port and what is edited
  } edit_t;

endpackage
