// SPDX-License-Identifier: Apache-2.0
// All look-ups of a pipe: each of them does what it is asked, in any order, and says by tag when it is done.
//
// Latencies are those of the units; throughput 1 packet per clock.
module lookups
  import registers_pkg::*;
  import viaduct_pkg::*;
  import pipe_pkg::*;
#(
    parameter int unsigned Nexthops   = 16384,  // on chip
    parameter int unsigned FlowBits   = 22,     // buckets of a way, binary logarithm
    parameter int unsigned BridgeBits = 15,     // lines of a way, likewise
    parameter int unsigned Route6Bits = 18      // lines of a way, likewise
) (
    input  logic                           clk,
    input  logic                           rst,
    input  logic [319:0]                   secret,
    input  write_t                         write,     // those of the stash are the flows'
    // What begins, all at once; only where all that it names are ready.
    input  marks_t                         begins,
    output marks_t                         ready,
    input  lookup_t                        s,
    input  logic                           labelled,  // the way is a label's nexthop; the mark `route` stands for that
    input  nexthop_id_t                    label_nexthop,
    // What was found, and whose mark that is.
    output flow_found_t                    flow_found,
    output forward_found_t                 route_found,
    output bridge_found_t                  bridge_found,
    output bridge_found_t                  source_found,
    output marks_t                         done,
    output tag_t [$bits(marks_t)-1:0]      done_tag,
    // The fetched nexthops of a tag, 2 clocks later.
    input  logic                           step,
    input  tag_t                           tag,
    output nexthop_t                       own_hop,
    output nexthop_t                       hop,
    output pipe_reqs_t                     reqs,
    input  pipe_resps_t                    resps
);

  assign {ready.hop, ready.own_hop} = '1;

  flow_lookup #(.BucketBits(FlowBits)) flows (
      .clk, .rst, .secret, .write, .s_valid(begins.flow), .s_ready(ready.flow), .s, .found(flow_found),
      .reqs(reqs.flow), .resps(resps.flow)
  );

  route_lookup #(.Route6Bits(Route6Bits)) routes (
      .clk, .rst, .secret, .s_valid(begins.route && !labelled), .s_ready(ready.route), .s, .found(route_found),
      .reqs(reqs.route), .resps(resps.route)
  );

  bridge_lookup #(.BridgeBits(BridgeBits)) destinations (
      .clk, .rst, .secret, .s_valid(begins.bridge), .s_ready(ready.bridge), .s, .found(bridge_found),
      .reqs(reqs.bridge[1:0]), .resps(resps.bridge[1:0])
  );

  bridge_lookup #(.Source(1'b1), .BridgeBits(BridgeBits)) sources (
      .clk, .rst, .secret, .s_valid(begins.source), .s_ready(ready.source), .s, .found(source_found),
      .reqs(reqs.bridge[3:2]), .resps(resps.bridge[3:2])
  );

  // ---- Nexthops that are not on chip: fetched as soon as they are found, though another may be used in the end

  logic       own_fetches, own_fetched, fetched;
  logic [2:0] fetches;
  tag_t       own_hop_tag, hop_tag;

  nexthop_fetch #(.OnChip(Nexthops), .Sources(1)) own_hops (
      .clk, .rst,
      .s_valid(flow_found.valid && flow_found.result.hit && flow_found.result.has_nexthop), .s_tag(flow_found.tag),
      .s_nexthop(flow_found.result.nexthop), .fetches(own_fetches), .m_valid(own_fetched), .m_tag(own_hop_tag),
      .step, .tag, .nexthop(own_hop), .req(reqs.hop[0]), .resp(resps.hop[0])
  );

  nexthop_fetch #(.OnChip(Nexthops), .Sources(3)) hops (
      .clk, .rst,
      .s_valid({begins.route && labelled, bridge_found.valid && bridge_found.result.found,
                route_found.valid && route_found.result.found}),
      .s_tag({s.tag, bridge_found.tag, route_found.tag}),
      .s_nexthop({label_nexthop, bridge_found.result.nexthop, route_found.result.nexthop}),
      .fetches, .m_valid(fetched), .m_tag(hop_tag),
      .step, .tag, .nexthop(hop), .req(reqs.hop[1]), .resp(resps.hop[1])
  );

  assign done = '{
      hop: fetched, own_hop: own_fetched, source: source_found.valid,
      bridge: bridge_found.valid && !fetches[1], route: route_found.valid && !fetches[0],
      flow: flow_found.valid && !own_fetches
  };
  assign done_tag = {hop_tag, own_hop_tag, source_found.tag, bridge_found.tag, route_found.tag, flow_found.tag};

endmodule
