// SPDX-License-Identifier: Apache-2.0
// A pipe: packets of guests or of wires in, the same packets rewritten, or for the host, out, in their order.
//
//   s -> parser -> headers -> classify -> lookups -> retire, by_tag -> verdict -> budget -> rewriter -> m
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
    input  logic        clk,
    input  logic        rst,
    input  settings_t   settings,
    input  write_t      write,
    input  logic        s_valid,
    output logic        s_ready,
    input  beat_t       s_beat,
    output logic        m_valid,
    input  logic        m_ready,
    output sent_t       m,
    output pipe_reqs_t  reqs,
    input  pipe_resps_t resps,
    output logic        conclusion_valid,
    output conclusion_t conclusion,
    input  logic        pause,  // no conclusion in this clock
    output logic [31:0] came,   // packets taken
    output logic [31:0] left    // packets sent or dropped
);

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
      .clk, .step(1'b1), .ip(parsed.ip), .v6(parsed.v6), .fragment(parsed.fragment),
      .src(parsed.src), .dst(parsed.dst), .protocol(parsed.protocol), .l4(parsed.l4), .sport(parsed.sport),
      .dport(parsed.dport),
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

  header_t  known;
  context_t known_context;
  marks_t   required;
  lookup_t  wanted, asked;
  logic     known_valid, known_ready;

  classify #(.Wire(Wire), .Ports(Ports), .Vrfs(Vrfs), .Labels(Labels), .Nexthops(Nexthops)) classify (
      .clk, .rst, .enable(settings.enable), .write,
      .s_valid(header_valid), .s_ready(header_ready), .s_header(header), .s_entropy(entropy),
      .m_valid(known_valid), .m_ready(known_ready), .m_header(known), .m_context(known_context), .m_marks(required),
      .m_lookup(wanted)
  );

  // ---- Look-ups: all that a packet needs begin at once, or none

  logic                      allocate_ready, begins, retired_ready;
  marks_t                    unit_ready, done;
  tag_t [$bits(marks_t)-1:0] done_tag;
  tag_t                      tag, retired_tag;
  nexthop_t                  own_hop, hop;
  flow_found_t               flow_found;
  forward_found_t            route_found;
  bridge_found_t             bridge_found, source_found;

  assign known_ready = allocate_ready && (unit_ready & required) == required;
  assign begins      = known_valid && known_ready;

  always_comb begin
    asked     = wanted;
    asked.tag = tag;
  end

  lookups #(
      .Nexthops(Nexthops), .FlowBits(FlowBits), .BridgeBits(BridgeBits), .Route6Bits(Route6Bits)
  ) lookups (
      .clk, .rst, .secret(settings.secret), .write,
      .begins(begins ? required : '0), .ready(unit_ready), .s(asked),
      .labelled(known_context.path != PathRouted), .label_nexthop(known_context.nexthop),
      .flow_found, .route_found, .bridge_found, .source_found, .done, .done_tag,
      .step(retired_ready), .tag(retired_tag), .own_hop, .hop, .reqs, .resps
  );

  // ---- Back into order

  localparam marks_t None = '0, OfFlow = 6'b000001, OfTables = 6'b000110;

  logic   retired_valid, found_valid, found_ready;
  known_t found;

  retire #(
      .Tags(2 ** TagWidth), .Marks($bits(marks_t)), .StandsFor({OfTables, OfFlow, None, None, None, None})
  ) retire (
      .clk, .rst,
      .allocate_valid(begins), .allocate_ready, .allocate_required(required), .allocate_tag(tag),
      .mark_valid(done), .mark_tag(done_tag),
      .retire_valid(retired_valid), .retire_ready(retired_ready), .retire_tag(retired_tag)
  );

  by_tag by_tag (
      .clk, .rst, .begins, .begins_tag(tag), .header(known), .ctx(known_context),
      .flow_found, .route_found, .bridge_found, .source_found,
      .s_valid(retired_valid), .s_ready(retired_ready), .s_tag(retired_tag),
      .m_valid(found_valid), .m_ready(found_ready), .m(found), .own_hop, .hop
  );

  // ---- Verdict

  decision_t said, decision;
  logic      said_valid, said_ready, decided, edit_ready, order_ready, go;

  verdict #(.Wire(Wire), .Nexthops(Nexthops), .HostEgress(HostEgress)) verdict (
      .clk, .rst, .write, .s_valid(found_valid), .s_ready(found_ready), .s(found),
      .m_valid(said_valid), .m_ready(said_ready), .m(said)
  );

  punt_budget #(.Ports(Ports)) punt_budget (
      .clk, .rst, .budget(settings.budget), .reason(settings.budget_reason),
      .s_valid(said_valid), .s_ready(said_ready), .s(said),
      .m_valid(decided), .m_ready(edit_ready && go), .m(decision)
  );

  assign conclusion       = decision.conclusion;
  assign conclusion_valid = decided && edit_ready && go;

  // ---- Rewriting

  // A checksum over the payload waits for all of the packet, which the store has room for; nothing else does.
  logic  checksummed;
  edit_t edit;
  assign checksummed = decision.edit.encap && decision.edit.outer_v6 && decision.edit.tunnel != TunnelMplsGre;
  always_comb begin
    edit          = decision.edit;
    edit.checksum = edit.checksum + 17'(sum);
  end

  assign go = order_ready && !pause && (sum_ready || !checksummed);

  beat_t      rewritten;
  sent_t      sent, direct_m;
  logic       sent_valid, sent_ready, direct_m_valid, direct_m_ready;
  logic       order_valid, order_pop, order_drop, order_punt;
  logic [3:0] order_egress;
  hold_t      order_hold;

  rewriter rewriter (
      .clk, .rst,
      .edit_valid(decided && go), .edit_ready, .edit,
      .s_valid(stored_valid), .s_ready(stored_ready), .s_beat(stored),
      .m_valid(sent_valid), .m_ready(sent_ready && order_valid && !order_drop), .m_beat(rewritten)
  );

  // Where the packets in the rewriter go, in their order; those that are dropped too, so that all can be counted.
  fifo #(.Width(6 + $bits(hold_t)), .Depth(64)) order (
      .clk, .rst,
      .s_valid(conclusion_valid), .s_ready(order_ready),
      .s_data({edit.punt, edit.drop, decision.egress, decision.hold}),
      .m_valid(order_valid), .m_ready(order_pop), .m_data({order_punt, order_drop, order_egress, order_hold}),
      .level(), .almost_full()
  );
  assign order_pop = order_drop || sent_valid && sent_ready && rewritten.last;

  // A packet that has a beat in front which says why it is the host's.
  always_comb begin
    sent             = '{egress: order_egress, hold: order_hold, beat: rewritten};
    sent.beat.direct = order_punt;
  end

  direct direct (
      .clk, .rst,
      .s_valid(direct_s_valid), .s_ready(direct_s_ready), .s_beat(direct_s),
      .m_valid(direct_m_valid), .m_ready(direct_m_ready), .m_beat(direct_m.beat), .m_egress(direct_m.egress),
      .m_hold(direct_m.hold)
  );

  packet_mux #(.Inputs(2), .Width($bits(sent_t))) out (
      .clk, .rst,
      .s_valid({direct_m_valid, sent_valid && order_valid && !order_drop}), .s_ready({direct_m_ready, sent_ready}),
      .s_data({direct_m, sent}), .s_last({direct_m.beat.last, rewritten.last}),
      .m_valid, .m_ready, .m_data(m), .m_last()
  );

  always_ff @(posedge clk) begin
    // A packet's look-ups may begin with its first beat.
    if (taken && !begun) came <= came + 32'd1;
    if (taken) begun <= !s_beat.last;
    if (order_valid && order_pop) left <= left + 32'd1;
    if (rst) {came, left, begun} <= '0;
  end

endmodule
