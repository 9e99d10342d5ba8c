// SPDX-License-Identifier: Apache-2.0
// A pipe: packets of guests or of wires in, the same packets rewritten, or for the host, out, in their order.
//
//   s -> parser -> headers -> classify -> look-ups, by tag -> retire -> verdict -> budget -> rewriter -> m
//   s -> packets -------------------------------------------------------------------------^
//   s -> payload_sum --------------------------------------------------------------^
//
// A beat per clock in and out. Look-ups are done in any order by units whose memory all pipes share; `retire` brings
// packets back into theirs. What the host sends as it is (`direct`) goes past all that.
module pipe
  import registers_pkg::*;
  import viaduct_pkg::*;
  import pipe_pkg::*;
#(
    parameter bit          Wire       = 1'b0,   // packets come from wires, in tunnels; else from guests
    parameter logic [3:0]  HostEgress = 4'd0,   // where packets to the host go
    parameter int unsigned Ports      = 1024,
    parameter int unsigned Vrfs       = 4096,
    parameter int unsigned Labels     = 65536,
    parameter int unsigned Nexthops   = 16384,  // on chip
    parameter int unsigned FlowBits   = 22,     // buckets of a way, binary logarithm
    parameter int unsigned BridgeBits = 15,     // lines of a way, likewise
    parameter int unsigned Route6Bits = 18      // lines of a way, likewise
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 enable,
    input  logic [319:0]         secret,
    input  logic [31:0]          budget,         // see `punt_budget`
    input  logic [7:0]           budget_reason,
    input  logic                 wr_valid,
    input  logic [3:0]           wr_table,
    input  logic [19:0]          wr_address,
    input  logic [511:0]         wr_data,
    input  logic                 s_valid,
    output logic                 s_ready,
    input  beat_t                s_beat,
    output logic                 m_valid,
    input  logic                 m_ready,
    output beat_t                m_beat,
    output logic [3:0]           m_egress,
    output hold_t                m_hold,
    // Memory: the flow table's two ways; the bridge table's for destinations and for sources; the route table's for the
    // trie's three levels and the two ways of IPv6 prefixes; the nexthops', of flows and of the other tables.
    output logic  [1:0]          flow_req_valid,
    input  logic  [1:0]          flow_req_ready,
    output line_t [1:0]          flow_req_line,
    output tag_t  [1:0]          flow_req_context,
    input  logic  [1:0]          flow_resp_valid,
    output logic  [1:0]          flow_resp_ready,
    input  tag_t  [1:0]          flow_resp_context,
    input  logic  [1:0][511:0]   flow_resp_data,
    output logic  [3:0]          bridge_req_valid,
    input  logic  [3:0]          bridge_req_ready,
    output line_t [3:0]          bridge_req_line,
    output tag_t  [3:0]          bridge_req_context,
    input  logic  [3:0]          bridge_resp_valid,
    output logic  [3:0]          bridge_resp_ready,
    input  tag_t  [3:0]          bridge_resp_context,
    input  logic  [3:0][255:0]   bridge_resp_data,
    output logic  [4:0]          route_req_valid,
    input  logic  [4:0]          route_req_ready,
    output line_t [4:0]          route_req_line,
    output tag_t  [4:0]          route_req_context,
    input  logic  [4:0]          route_resp_valid,
    output logic  [4:0]          route_resp_ready,
    input  tag_t  [4:0]          route_resp_context,
    input  logic  [4:0][255:0]   route_resp_data,
    output logic  [1:0]          hop_req_valid,
    input  logic  [1:0]          hop_req_ready,
    output line_t [1:0]          hop_req_line,
    output tag_t  [1:0]          hop_req_context,
    input  logic  [1:0]          hop_resp_valid,
    output logic  [1:0]          hop_resp_ready,
    input  tag_t  [1:0]          hop_resp_context,
    input  logic  [1:0][511:0]   hop_resp_data,
    output logic                 conclusion_valid,
    output conclusion_t          conclusion,
    input  logic                 pause,  // no conclusion in this clock
    output logic [31:0]          came,  // packets taken
    output logic [31:0]          left   // packets sent or dropped
);

  localparam int unsigned Tags = 2 ** TagWidth;

  // ---- In: to the parser and the packet store, or past everything

  logic  store_ready, headers_full, direct_ready;
  logic  taken, begun;
  beat_t stored;
  logic  stored_valid, stored_ready;
  beat_t direct_s;
  logic  direct_s_valid, direct_s_ready;

  assign s_ready = s_beat.direct ? direct_ready : store_ready && !headers_full;
  assign taken   = s_valid && s_ready && !s_beat.direct;

  fifo #(.Width($bits(beat_t)), .Depth(1024)) packets (
      .clk, .rst,
      .s_valid(taken), .s_ready(store_ready), .s_data(s_beat),
      .m_valid(stored_valid), .m_ready(stored_ready), .m_data(stored),
      .level(), .almost_full()
  );

  // What the host sends comes as whole packets, but maybe slower than it leaves.
  fifo #(.Width($bits(beat_t)), .Depth(256)) directs (
      .clk, .rst,
      .s_valid(s_valid && s_beat.direct), .s_ready(direct_ready), .s_data(s_beat),
      .m_valid(direct_s_valid), .m_ready(direct_s_ready), .m_data(direct_s),
      .level(), .almost_full()
  );

  // ---- Headers: the parser never waits, so what it may still hold must fit behind it

  header_t     parsed, hashing, hashed, header;
  logic        parsed_valid, hashing_valid, hashed_valid, header_valid, header_ready;
  logic [31:0] hash, entropy;

  parser #(.Wire(Wire)) parser (
      .clk, .rst, .s_valid(taken), .s_beat, .header_valid(parsed_valid), .header(parsed)
  );

  entropy entropy_hash (
      .clk, .step(1'b1), .ip(parsed.ip), .v6(parsed.v6), .fragment(parsed.fragment), .src(parsed.src), .dst(parsed.dst),
      .protocol(parsed.protocol), .l4(parsed.l4), .sport(parsed.sport), .dport(parsed.dport),
      .mac_src(parsed.mac_src), .mac_dst(parsed.mac_dst), .ethertype(parsed.ethertype), .hash
  );

  always_ff @(posedge clk) begin
    {hashing, hashed} <= {parsed, hashing};
    {hashing_valid, hashed_valid} <= rst ? '0 : {parsed_valid, hashing_valid};
  end

  fifo #(.Width(32 + $bits(header_t)), .Depth(128), .AlmostFull(64)) headers (
      .clk, .rst,
      .s_valid(hashed_valid), .s_ready(), .s_data({hash, hashed}),
      .m_valid(header_valid), .m_ready(header_ready), .m_data({entropy, header}),
      .level(), .almost_full(headers_full)
  );

  // ---- Sums of what may leave in a tunnel, by how `classify` will tell bridged from routed packets

  logic        bridged, sum_ready;
  logic [15:0] sum;

  assign bridged = parsed.has_ethernet && parsed.mac_dst != GatewayMac;

  payload_sum payload_sum (
      .clk, .rst, .s_valid(taken), .s_last(s_beat.last), .s_data(s_beat.data),
      .part_valid(parsed_valid), .part_start(bridged ? parsed.start : parsed.l3_at),
      .part_end(bridged ? parsed.stop : 16'(parsed.l3_at) + parsed.ip_len),
      .take(conclusion_valid), .ready(sum_ready), .sum
  );

  // ---- Classification

  header_t      known;
  context_t     known_context;
  marks_t       required;
  logic         known_valid, known_ready;
  logic [127:0] lengths6;
  logic [19:0]  root;

  classify #(.Wire(Wire), .Ports(Ports), .Vrfs(Vrfs), .Labels(Labels), .Nexthops(Nexthops)) classify (
      .clk, .rst, .enable, .wr_table, .wr_valid, .wr_address(wr_address[15:0]), .wr_data,
      .s_valid(header_valid), .s_ready(header_ready), .s_header(header), .s_entropy(entropy),
      .m_valid(known_valid), .m_ready(known_ready), .m_header(known), .m_context(known_context), .m_marks(required),
      .m_lengths6(lengths6), .m_root(root)
  );

  // ---- Look-ups: all that a packet needs begin at once, or none

  logic      allocate_ready, begin_all, routed;
  logic      flow_found, route_found, bridge_found;
  marks_t    unit_ready, done;
  tag_t      tag, retired_tag;
  tag_t      flow_tag, route_tag, bridge_tag, source_tag;
  flow_key_t key;

  assign begin_all   = known_valid && allocate_ready && (unit_ready & required) == required;
  assign known_ready = allocate_ready && (unit_ready & required) == required;

  assign routed      = known_context.path == PathRouted;

  assign {unit_ready.hop, unit_ready.own_hop} = '1;

  always_comb begin
    key = '{src: known.src, dst: known.dst, sport: known.sport, dport: known.dport, protocol: known.protocol,
            vrf: known_context.vrf, path: known_context.path, from_tunnel: Wire, v6: known.v6, zone: '0};
  end

  flow_result_t    flow_result;
  forward_result_t route_result;
  bridge_result_t  bridge_result, source_result;

  flow_lookup #(.BucketBits(FlowBits)) flow (
      .clk, .rst, .secret,
      .wr_valid(wr_valid && wr_table == TableStash), .wr_number(wr_address[$clog2(StashFlows)-1:0]), .wr_data,
      .s_valid(begin_all && required.flow), .s_ready(unit_ready.flow), .s_tag(tag), .s_key(key),
      .m_valid(flow_found), .m_tag(flow_tag), .m_result(flow_result),
      .req_valid(flow_req_valid), .req_ready(flow_req_ready), .req_line(flow_req_line), .req_context(flow_req_context),
      .resp_valid(flow_resp_valid), .resp_ready(flow_resp_ready), .resp_context(flow_resp_context),
      .resp_data(flow_resp_data)
  );

  route_lookup #(.Route6Bits(Route6Bits)) route (
      .clk, .rst, .secret,
      .s_valid(begin_all && required.route && routed), .s_ready(unit_ready.route), .s_tag(tag),
      .s_v6(known.v6), .s_dst(known.dst), .s_vrf(known_context.vrf), .s_root(root), .s_lengths6(lengths6),
      .m_valid(route_found), .m_tag(route_tag), .m_result(route_result),
      .req_valid(route_req_valid), .req_ready(route_req_ready), .req_line(route_req_line),
      .req_context(route_req_context),
      .resp_valid(route_resp_valid), .resp_ready(route_resp_ready), .resp_context(route_resp_context),
      .resp_data(route_resp_data)
  );

  bridge_lookup #(.BridgeBits(BridgeBits)) bridge (
      .clk, .rst, .secret,
      .s_valid(begin_all && required.bridge), .s_ready(unit_ready.bridge), .s_tag(tag),
      .s_vrf(known_context.vrf), .s_mac(known.mac_dst),
      .m_valid(bridge_found), .m_tag(bridge_tag), .m_result(bridge_result),
      .req_valid(bridge_req_valid[1:0]), .req_ready(bridge_req_ready[1:0]), .req_line(bridge_req_line[1:0]),
      .req_context(bridge_req_context[1:0]),
      .resp_valid(bridge_resp_valid[1:0]), .resp_ready(bridge_resp_ready[1:0]),
      .resp_context(bridge_resp_context[1:0]), .resp_data(bridge_resp_data[1:0])
  );

  bridge_lookup #(.BridgeBits(BridgeBits)) source (
      .clk, .rst, .secret,
      .s_valid(begin_all && required.source), .s_ready(unit_ready.source), .s_tag(tag),
      .s_vrf(known_context.vrf), .s_mac(known.mac_src),
      .m_valid(done.source), .m_tag(source_tag), .m_result(source_result),
      .req_valid(bridge_req_valid[3:2]), .req_ready(bridge_req_ready[3:2]), .req_line(bridge_req_line[3:2]),
      .req_context(bridge_req_context[3:2]),
      .resp_valid(bridge_resp_valid[3:2]), .resp_ready(bridge_resp_ready[3:2]),
      .resp_context(bridge_resp_context[3:2]), .resp_data(bridge_resp_data[3:2])
  );

  // ---- Nexthops that are not on chip: fetched as soon as they are found, though another may be used in the end

  logic       retired_valid, retired_ready, verdict_ready;
  logic       own_fetches;
  logic [2:0] fetches;
  tag_t       own_hop_tag, hop_tag;
  nexthop_t   own_hop, hop;

  nexthop_fetch #(.OnChip(Nexthops), .Sources(1)) own_hops (
      .clk, .rst,
      .s_valid(flow_found && flow_result.hit && flow_result.has_nexthop), .s_tag(flow_tag),
      .s_nexthop(flow_result.nexthop), .fetches(own_fetches), .m_valid(done.own_hop), .m_tag(own_hop_tag),
      .step(retired_ready), .tag(retired_tag), .nexthop(own_hop),
      .req_valid(hop_req_valid[0]), .req_ready(hop_req_ready[0]), .req_line(hop_req_line[0]),
      .req_context(hop_req_context[0]), .resp_valid(hop_resp_valid[0]), .resp_ready(hop_resp_ready[0]),
      .resp_context(hop_resp_context[0]), .resp_data(hop_resp_data[0])
  );

  nexthop_fetch #(.OnChip(Nexthops), .Sources(3)) hops (
      .clk, .rst,
      .s_valid({begin_all && required.route && !routed, bridge_found && bridge_result.found,
                route_found && route_result.found}),
      .s_tag({tag, bridge_tag, route_tag}),
      .s_nexthop({known_context.nexthop, bridge_result.nexthop, route_result.nexthop}),
      .fetches, .m_valid(done.hop), .m_tag(hop_tag),
      .step(retired_ready), .tag(retired_tag), .nexthop(hop),
      .req_valid(hop_req_valid[1]), .req_ready(hop_req_ready[1]), .req_line(hop_req_line[1]),
      .req_context(hop_req_context[1]), .resp_valid(hop_resp_valid[1]), .resp_ready(hop_resp_ready[1]),
      .resp_context(hop_resp_context[1]), .resp_data(hop_resp_data[1])
  );

  assign done.flow   = flow_found && !own_fetches;
  assign done.route  = route_found && !fetches[0];
  assign done.bridge = bridge_found && !fetches[1];

  // ---- Back into order

  localparam marks_t None = '0, OfFlow = 6'b000001, OfTables = 6'b000110;

  retire #(
      .Tags(Tags), .Marks($bits(marks_t)), .StandsFor({OfTables, OfFlow, None, None, None, None})
  ) retire (
      .clk, .rst,
      .allocate_valid(begin_all), .allocate_ready, .allocate_required(required), .allocate_tag(tag),
      .mark_valid(done), .mark_tag({hop_tag, own_hop_tag, source_tag, bridge_tag, route_tag, flow_tag}),
      .retire_valid(retired_valid), .retire_ready(retired_ready), .retire_tag(retired_tag)
  );

  // What is known of a packet, by its tag: 2 clocks to read.
  header_t         kept_header;
  context_t        kept_context;
  flow_result_t    kept_flow;
  forward_result_t kept_route;
  bridge_result_t  kept_bridge, kept_source;
  logic            kept_valid, reading;
  tag_t            kept_tag, reading_tag;

  assign retired_ready = !kept_valid || verdict_ready;

  always_ff @(posedge clk) begin
    if (retired_ready) begin
      {reading, reading_tag} <= {retired_valid, retired_tag};
      {kept_valid, kept_tag} <= {reading, reading_tag};
    end
    if (rst) {reading, kept_valid} <= '0;
  end

  table_ram #(.Width($bits(header_t) + $bits(context_t)), .Depth(Tags)) by_tag (
      .clk, .step(retired_ready), .wr_valid(begin_all), .wr_address(tag), .wr_data({known, known_context}),
      .address(retired_tag), .data({kept_header, kept_context})
  );
  table_ram #(.Width($bits(flow_result_t)), .Depth(Tags)) flow_by_tag (
      .clk, .step(retired_ready), .wr_valid(flow_found), .wr_address(flow_tag), .wr_data(flow_result),
      .address(retired_tag), .data(kept_flow)
  );
  table_ram #(.Width($bits(forward_result_t)), .Depth(Tags)) route_by_tag (
      .clk, .step(retired_ready), .wr_valid(route_found), .wr_address(route_tag), .wr_data(route_result),
      .address(retired_tag), .data(kept_route)
  );
  table_ram #(.Width($bits(bridge_result_t)), .Depth(Tags)) bridge_by_tag (
      .clk, .step(retired_ready), .wr_valid(bridge_found), .wr_address(bridge_tag), .wr_data(bridge_result),
      .address(retired_tag), .data(kept_bridge)
  );
  table_ram #(.Width($bits(bridge_result_t)), .Depth(Tags)) source_by_tag (
      .clk, .step(retired_ready), .wr_valid(done.source), .wr_address(source_tag), .wr_data(source_result),
      .address(retired_tag), .data(kept_source)
  );

  // ---- Verdict and rewriting

  logic        said_valid, said_ready, edit_valid, edit_ready, order_ready, go;
  edit_t       said, edit;
  logic [3:0]  said_egress, egress;
  hold_t       said_hold, hold;
  conclusion_t said_conclusion;

  verdict #(.Wire(Wire), .Nexthops(Nexthops), .HostEgress(HostEgress)) verdict (
      .clk, .rst, .wr_valid(wr_valid && wr_table == TableNexthop),
      .change_valid(wr_valid && wr_table == TableNexthopChange), .wr_address, .wr_data,
      .s_valid(kept_valid), .s_ready(verdict_ready), .s_tag(kept_tag), .s_header(kept_header), .s_context(kept_context),
      // A unit that wasn't asked left what it said of another packet.
      .s_flow(kept_context.punt == PuntNone && kept_header.ip && !kept_header.fragment ? kept_flow : '0),
      .s_route(kept_route), .s_bridge(kept_bridge), .s_source(kept_source), .s_own_hop(own_hop), .s_hop(hop),
      .m_valid(said_valid), .m_ready(said_ready), .m_edit(said), .m_egress(said_egress), .m_hold(said_hold),
      .m_conclusion(said_conclusion)
  );

  punt_budget #(.Ports(Ports)) punt_budget (
      .clk, .rst, .budget, .reason(budget_reason),
      .s_valid(said_valid), .s_ready(said_ready), .s_edit(said), .s_egress(said_egress), .s_hold(said_hold),
      .s_conclusion(said_conclusion),
      .m_valid(edit_valid), .m_ready(edit_ready && go), .m_edit(edit), .m_egress(egress), .m_hold(hold),
      .m_conclusion(conclusion)
  );

  // A checksum over the payload waits for all of the packet, which the store has room for; nothing else does.
  logic  checksummed;
  edit_t summed;
  assign checksummed = edit.encap && edit.outer_v6 && edit.tunnel != TunnelMplsGre;
  always_comb begin
    summed          = edit;
    summed.checksum = edit.checksum + 17'(sum);
  end

  assign go               = order_ready && !pause && (sum_ready || !checksummed);
  assign conclusion_valid = edit_valid && edit_ready && go;

  beat_t      sent, marked, direct_m;
  logic       sent_valid, sent_ready, direct_m_valid, direct_m_ready;
  logic       order_valid, order_pop, order_drop, order_punt;
  logic [3:0] sent_egress, direct_egress;
  hold_t      sent_hold, direct_hold;

  rewriter rewriter (
      .clk, .rst,
      .edit_valid(edit_valid && go), .edit_ready, .edit(summed),
      .s_valid(stored_valid), .s_ready(stored_ready), .s_beat(stored),
      .m_valid(sent_valid), .m_ready(sent_ready && order_valid && !order_drop), .m_beat(sent)
  );

  // Where the packets in the rewriter go, in their order; those that are dropped too, so that all can be counted.
  fifo #(.Width(6 + $bits(hold_t)), .Depth(64)) order (
      .clk, .rst,
      .s_valid(conclusion_valid), .s_ready(order_ready),
      .s_data({edit.punt, edit.drop, egress, hold}),
      .m_valid(order_valid), .m_ready(order_pop), .m_data({order_punt, order_drop, sent_egress, sent_hold}),
      .level(), .almost_full()
  );
  assign order_pop = order_drop || sent_valid && sent_ready && sent.last;

  // A packet that has a beat in front which says why it is the host's.
  always_comb begin
    marked        = sent;
    marked.direct = order_punt;
  end

  direct direct (
      .clk, .rst,
      .s_valid(direct_s_valid), .s_ready(direct_s_ready), .s_beat(direct_s),
      .m_valid(direct_m_valid), .m_ready(direct_m_ready), .m_beat(direct_m), .m_egress(direct_egress),
      .m_hold(direct_hold)
  );

  packet_mux #(.Inputs(2), .Width(4 + $bits(hold_t) + $bits(beat_t))) out (
      .clk, .rst,
      .s_valid({direct_m_valid, sent_valid && order_valid && !order_drop}), .s_ready({direct_m_ready, sent_ready}),
      .s_data({direct_egress, direct_hold, direct_m, sent_egress, sent_hold, marked}),
      .s_last({direct_m.last, sent.last}),
      .m_valid, .m_ready, .m_data({m_egress, m_hold, m_beat}), .m_last()
  );

  always_ff @(posedge clk) begin
    // A packet's look-ups may begin with its first beat.
    if (taken && !begun) came <= came + 32'd1;
    if (taken) begun <= !s_beat.last;
    if (order_valid && order_pop) left <= left + 32'd1;
    if (rst) {came, left, begun} <= '0;
  end

endmodule
