// SPDX-License-Identifier: Apache-2.0
// What travels between the parser's stages, and numbers assigned by IEEE and IANA.
package parse_pkg;

  import viaduct_pkg::*;

  // Bits of the window. It is kept with the packet's first byte highest, as numbers are on the wire: n bits from byte k on
  // are `window[Top - 8 * k -: n]`.
  localparam int unsigned Bits = 8 * WindowBytes;
  localparam int unsigned Top = Bits - 1;

  localparam logic [15:0] EthertypeIpv4 = 16'h0800;
  localparam logic [15:0] EthertypeArp = 16'h0806;
  localparam logic [15:0] EthertypeVlan = 16'h8100;
  localparam logic [15:0] EthertypeIpv6 = 16'h86dd;
  localparam logic [15:0] EthertypeMpls = 16'h8847;
  localparam logic [15:0] EthertypeQinq = 16'h88a8;

  localparam logic [7:0] ProtocolHopByHop = 8'd0;
  localparam logic [7:0] ProtocolIcmp = 8'd1;
  localparam logic [7:0] ProtocolTcp = 8'd6;
  localparam logic [7:0] ProtocolUdp = 8'd17;
  localparam logic [7:0] ProtocolRouting = 8'd43;
  localparam logic [7:0] ProtocolFragment = 8'd44;
  localparam logic [7:0] ProtocolGre = 8'd47;
  localparam logic [7:0] ProtocolAh = 8'd51;
  localparam logic [7:0] ProtocolIcmpv6 = 8'd58;
  localparam logic [7:0] ProtocolDestinationOptions = 8'd60;
  localparam logic [7:0] ProtocolSctp = 8'd132;

  localparam logic [15:0] PortVxlan = 16'd4789;
  localparam logic [15:0] PortMpls = 16'd6635;

  // A packet on its way through the stages. Once `header.exception` is set, nothing else of it is of account but `port` and
  // `size`.
  typedef struct packed {
    header_t         header;     // as far as it is known
    logic [7:0]      outer_tos;  // traffic class of the tunnel's IP header
    logic            later;      // a fragment without the L4 header
    logic [7:0]      at;         // offset in the frame of the header that is next
    logic [15:0]     left;       // bytes from there to the end of the packet that the header is of
    logic [Bits-1:0] window;     // from `at` on; what lies behind the frame's first 128 bytes is of no account
  } parse_t;

endpackage
