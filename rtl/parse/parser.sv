// SPDX-License-Identifier: Apache-2.0
// The headers of a packet, or why the card doesn't look into it: as `packet::Headers` and `packet::tunnel` say, within the
// first 128 bytes.
//
// Wire = 0: a guest's frame, in which tunnels are not looked into. Wire = 1: what comes by a wire, which must be a tunnel
// packet. It listens only: a beat is taken with every `s_valid`. Packets come out in order, each once, but for those with
// `direct` set, which don't.
// An exception is the first thing that is wrong, in the order of `packet`. Neighbour discovery outside a tunnel is one too;
// the tenant's, malformed or not, has `neighbour` set.
// Latency from a packet's second beat, or its only one: 7 clocks with Wire = 0, 13 with Wire = 1. Throughput: one beat and
// one packet per clock.
module parser
  import viaduct_pkg::*;
  import parse_pkg::*;
#(
    parameter bit Wire = 1'b0
) (
    input  logic    clk,
    input  logic    rst,
    input  logic    s_valid,
    input  beat_t   s_beat,
    output logic    header_valid,
    output header_t header
);

  logic window_valid, frame_valid, ip_valid, l4_valid;
  parse_t window, frame, ip;
  // verilator lint_off UNUSEDSIGNAL
  parse_t l4;  // its window has been read
  // verilator lint_on UNUSEDSIGNAL

  parse_window first_beats (
      .clk,
      .rst,
      .s_valid,
      .s_beat,
      .m_valid(window_valid),
      .m(window)
  );

  // A wire's frame is gone through twice: outside and inside.
  if (Wire) begin : g_outer
    logic outer_frame_valid, outer_ip_valid, outer_l4_valid;
    parse_t outer_frame, outer_ip, outer_l4;
    logic   tunnel_valid;
    parse_t tunnel;

    parse_ethernet outer_ethernet_stage (
        .clk,
        .rst,
        .s_valid(window_valid),
        .s(window),
        .m_valid(outer_frame_valid),
        .m(outer_frame)
    );
    parse_ip outer_ip_stage (
        .clk,
        .rst,
        .s_valid(outer_frame_valid),
        .s(outer_frame),
        .m_valid(outer_ip_valid),
        .m(outer_ip)
    );
    parse_l4 outer_l4_stage (
        .clk,
        .rst,
        .s_valid(outer_ip_valid),
        .s(outer_ip),
        .m_valid(outer_l4_valid),
        .m(outer_l4)
    );
    parse_tunnel tunnel_stage (
        .clk,
        .rst,
        .s_valid(outer_l4_valid),
        .s(outer_l4),
        .m_valid(tunnel_valid),
        .m(tunnel)
    );
    parse_ethernet ethernet_stage (
        .clk,
        .rst,
        .s_valid(tunnel_valid),
        .s(tunnel),
        .m_valid(frame_valid),
        .m(frame)
    );
  end else begin : g_guest
    parse_ethernet ethernet_stage (
        .clk,
        .rst,
        .s_valid(window_valid),
        .s(window),
        .m_valid(frame_valid),
        .m(frame)
    );
  end

  parse_ip ip_stage (
      .clk,
      .rst,
      .s_valid(frame_valid),
      .s(frame),
      .m_valid(ip_valid),
      .m(ip)
  );
  parse_l4 l4_stage (
      .clk,
      .rst,
      .s_valid(ip_valid),
      .s(ip),
      .m_valid(l4_valid),
      .m(l4)
  );
  parse_ecn ecn_stage (
      .clk,
      .rst,
      .s_valid(l4_valid),
      .s_header(l4.header),
      .outer_ecn(l4.outer_tos[1:0]),
      .m_valid(header_valid),
      .m_header(header)
  );

endmodule
