// SPDX-License-Identifier: Apache-2.0
// The IPv4 or IPv6 header, as `ethertype` says; other packets pass.
//
// IPv4 options are stepped over, and the checksum is that of the whole header; IPv6 extension headers are an exception.
// Latency: 3 clocks, those of the checksum. Throughput: one packet per clock.
module parse_ip
  import registers_pkg::*;
  import viaduct_pkg::*;
  import parse_pkg::*;
(
    input  logic   clk,
    input  logic   rst,
    input  logic   s_valid,
    input  parse_t s,
    output logic   m_valid,
    output parse_t m
);

  // 16-bit words of the longest IPv4 header, in groups that are summed at once.
  localparam int unsigned Words = 30;
  localparam int unsigned Groups = 8;

  // ---- First clock: fields, and what is wrong with them; sums of groups of words

  logic v6;
  logic ip;
  logic [3:0] ihl;
  logic [5:0] fixed_len;
  logic [5:0] header_len;
  logic [16:0] ip_len;
  logic [15:0] data_len;
  logic [127:0] src6;
  logic [31:0] src4;
  logic [7:0] next_header;
  logic [12:0] fragment_at;  // 8 bytes each
  logic more_fragments;

  always_comb begin
    v6 = s.header.ethertype == EthertypeIpv6;
    ip = v6 || s.header.ethertype == EthertypeIpv4;
    ihl = s.window[Top-4-:4];
    fixed_len = v6 ? 6'd40 : 6'd20;
    header_len = v6 ? 6'd40 : {ihl, 2'b0};
    ip_len = v6 ? 17'(s.window[Top-8*4-:16]) + 17'd40 : 17'(s.window[Top-8*2-:16]);
    data_len = v6 ? s.window[Top-8*4-:16] : s.window[Top-8*2-:16] - 16'(header_len);
    src6 = s.window[Top-8*8-:128];
    src4 = s.window[Top-8*12-:32];
    next_header = s.window[Top-8*6-:8];
    more_fragments = s.window[Top-8*6-2];
    fragment_at = s.window[Top-8*6-3-:13];
  end

  logic  bad_source;
  logic  bad_fragment;
  logic  extension;
  logic  wrong_version;
  punt_e early;  // found before the checksum is looked at
  punt_e late;   // and behind it

  always_comb begin
    bad_source = v6 ? src6[127:120] == 8'hff || src6 == 128'd1 :
        src4[31:28] == 4'he || src4[31:24] == 8'd127 || src4 == '1;
    // One that ends past 65535, isn't the last and no multiple of 8 long, or could overwrite the flags of a TCP header
    // that came before (RFC 3128).
    bad_fragment = (more_fragments || fragment_at != 0) &&
        (17'({fragment_at, 3'b0}) + 17'(data_len) > 17'h0ffff ||
         (more_fragments && (data_len[2:0] != 0 || data_len == 0)) ||
         (s.window[Top-8*9-:8] == ProtocolTcp && fragment_at == 13'd1));
    extension = next_header inside {ProtocolHopByHop, ProtocolRouting, ProtocolFragment, ProtocolAh,
                                    ProtocolDestinationOptions};
    wrong_version = s.window[Top-:4] != (v6 ? 4'd6 : 4'd4) || (!v6 && ihl < 4'd5);
    if (s.header.exception != PuntNone) early = s.header.exception;
    else if (!ip) early = PuntNone;
    else if (s.left < 16'(fixed_len)) early = PuntIpTruncated;
    else if (s.at > 8'(WindowBytes) - 8'(fixed_len)) early = PuntHeaderTooLong;
    else if (wrong_version) early = PuntIpHeader;
    else if (ip_len < 17'(header_len) || ip_len > 17'(s.left)) early = PuntIpLength;
    else if (s.at > 8'(WindowBytes) - 8'(header_len)) early = PuntHeaderTooLong;
    else early = PuntNone;
    if (!ip) late = PuntNone;
    else if (bad_source) late = PuntIpSource;
    else if (!v6 && bad_fragment) late = PuntFragment;
    // A payload length of 0 stands for a jumbogram (RFC 2675).
    else if (v6 && extension) late = data_len == 0 ? PuntIpLength : PuntIpv6Extension;
    else late = PuntNone;
  end

  parse_t next;

  always_comb begin
    next = s;
    next.header.exception = early;
    next.header.ip = ip;
    if (ip) begin
      next.header.v6 = v6;
      next.header.header_len = header_len;
      next.header.ip_len = ip_len[15:0];
      next.header.src = v6 ? src6 : 128'(src4);
      next.header.dst = v6 ? s.window[Top-8*24-:128] : 128'(s.window[Top-8*16-:32]);
      next.header.protocol = v6 ? next_header : s.window[Top-8*9-:8];
      next.header.ttl = v6 ? s.window[Top-8*7-:8] : s.window[Top-8*8-:8];
      next.header.tos = v6 ? s.window[Top-4-:8] : s.window[Top-8-:8];
      next.header.fragment = !v6 && (more_fragments || fragment_at != 0);
      next.later = !v6 && fragment_at != 0;
      next.at = s.at + 8'(header_len);
      next.left = data_len;
    end
  end

  logic [Groups-1:0][17:0] sums;

  always_comb begin
    sums = '0;
    for (int unsigned k = 0; k < Words; k++) begin
      // Word k is part of a header of more than k / 2 times 4 bytes.
      if (32'(ihl) > k / 2) sums[k%Groups] += 18'(s.window[Top-16*k-:16]);
    end
  end

  parse_t parsed;
  logic parsed_valid;
  logic summed;  // it has a checksum
  punt_e parsed_late;
  logic [Groups-1:0][17:0] parsed_sums;

  always_ff @(posedge clk) begin
    parsed <= next;
    parsed_valid <= s_valid && !rst;
    summed <= ip && !v6;
    parsed_late <= late;
    parsed_sums <= sums;
  end

  // ---- Second clock: their sum

  logic [20:0] total;

  always_comb begin
    total = '0;
    for (int k = 0; k < Groups; k++) total += 21'(parsed_sums[k]);
  end

  parse_t waiting;
  logic waiting_valid;
  logic waiting_summed;
  punt_e waiting_late;
  logic [20:0] sum;

  always_ff @(posedge clk) begin
    waiting <= parsed;
    waiting_valid <= parsed_valid && !rst;
    waiting_summed <= summed;
    waiting_late <= parsed_late;
    sum <= total;
  end

  // ---- Third clock: the verdict; on to what follows

  logic right;

  // Folded it is all ones. Where folding carries once more, the result is too small to be.
  assign right = 17'(sum[15:0]) + 17'(sum[20:16]) == 17'h0ffff;

  always_ff @(posedge clk) begin
    m <= waiting;
    m_valid <= waiting_valid && !rst;
    if (waiting.header.exception == PuntNone) begin
      m.header.exception <= waiting_summed && !right ? PuntIpChecksum : waiting_late;
    end
    if (waiting.header.ip) m.window <= waiting.window << {waiting.header.header_len[5:2], 5'b0};
  end

endmodule
