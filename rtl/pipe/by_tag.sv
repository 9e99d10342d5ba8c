// SPDX-License-Identifier: Apache-2.0
// What is known of packets, by their tags, until they are back in order.
//
// 2 clocks from `s` to `m`, one packet per clock; stands still while `m` is not taken.
module by_tag
  import registers_pkg::*;
  import viaduct_pkg::*;
  import pipe_pkg::*;
(
    input  logic           clk,
    input  logic           rst,
    // As it comes to be known.
    input  logic           begins,
    input  tag_t           begins_tag,
    input  header_t        header,
    input  context_t       ctx,
    input  flow_found_t    flow_found,
    input  forward_found_t route_found,
    input  bridge_found_t  bridge_found,
    input  bridge_found_t  source_found,
    // In order.
    input  logic           s_valid,
    output logic           s_ready,
    input  tag_t           s_tag,
    output logic           m_valid,
    input  logic           m_ready,
    output known_t         m,
    // Fetched elsewhere, with as many clocks.
    input  nexthop_t       own_hop,
    input  nexthop_t       hop
);

  localparam int unsigned Tags = 2 ** TagWidth;

  logic            step, reading;
  tag_t            reading_tag, tag;
  header_t         kept_header;
  context_t        kept_context;
  flow_result_t    kept_flow;
  forward_result_t kept_route;
  bridge_result_t  kept_bridge, kept_source;

  assign step    = !m_valid || m_ready;
  assign s_ready = step;

  always_ff @(posedge clk) begin
    if (step) begin
      {reading, reading_tag} <= {s_valid, s_tag};
      {m_valid, tag}         <= {reading, reading_tag};
    end
    if (rst) {reading, m_valid} <= '0;
  end

  table_ram #(.Width($bits(header_t) + $bits(context_t)), .Depth(Tags)) headers (
      .clk, .step, .wr_valid(begins), .wr_address(begins_tag), .wr_data({header, ctx}),
      .address(s_tag), .data({kept_header, kept_context})
  );
  table_ram #(.Width($bits(flow_result_t)), .Depth(Tags)) flows (
      .clk, .step, .wr_valid(flow_found.valid), .wr_address(flow_found.tag), .wr_data(flow_found.result),
      .address(s_tag), .data(kept_flow)
  );
  table_ram #(.Width($bits(forward_result_t)), .Depth(Tags)) routes (
      .clk, .step, .wr_valid(route_found.valid), .wr_address(route_found.tag), .wr_data(route_found.result),
      .address(s_tag), .data(kept_route)
  );
  table_ram #(.Width($bits(bridge_result_t)), .Depth(Tags)) destinations (
      .clk, .step, .wr_valid(bridge_found.valid), .wr_address(bridge_found.tag), .wr_data(bridge_found.result),
      .address(s_tag), .data(kept_bridge)
  );
  table_ram #(.Width($bits(bridge_result_t)), .Depth(Tags)) sources (
      .clk, .step, .wr_valid(source_found.valid), .wr_address(source_found.tag), .wr_data(source_found.result),
      .address(s_tag), .data(kept_source)
  );

  // A unit that wasn't asked left what it said of another packet.
  logic flow_asked;
  assign flow_asked = kept_context.punt == PuntNone && kept_header.ip && !kept_header.fragment;

  assign m = '{
      tag: tag, header: kept_header, ctx: kept_context, flow: flow_asked ? kept_flow : '0, route: kept_route,
      bridge: kept_bridge, source: kept_source, own_hop: own_hop, hop: hop
  };

endmodule
