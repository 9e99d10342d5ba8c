// SPDX-License-Identifier: Apache-2.0
//
// What a bucket of the flow table says to a key: two IPv4 flows or an IPv6 one. Keys are given before, by tag.
// Latency 3 cycles, throughput 1 bucket per cycle; never stalls.
module flow_match
  import registers_pkg::*;
  import viaduct_pkg::*;
(
    input  logic         clk,
    input  logic         rst,
    input  logic         key_valid,
    input  tag_t         key_tag,
    input  flow_key_t    key,
    input  logic         s_valid,
    input  tag_t         s_tag,
    input  logic [511:0] s_bucket,
    output flow_key_t    compared,   // the key of the bucket that was given in the cycle before
    input  flow_result_t otherwise,  // a cycle later: the result where the bucket has none
    output logic         m_valid,
    output tag_t         m_tag,
    output flow_result_t m_result
);
  // A line has more than any of these functions needs.
  /* verilator lint_off UNUSEDSIGNAL */

  // An IPv4 flow's key, as in its entry: all below `kind`.
  function automatic logic [127:0] narrow(input flow_key_t k);
    return {k.zone, k.v6, k.from_tunnel, k.path, k.vrf, k.protocol, k.dport, k.sport, k.dst[31:0], k.src[31:0]};
  endfunction

  function automatic logic matches4(input flow4_t flow, input flow_key_t k);
    return flow.kind == FlowKindV4 && !k.v6 && flow[127:0] == narrow(k);
  endfunction

  function automatic logic matches6(input flow6_t flow, input flow_key_t k);
    return flow_whole6(flow) && k.v6 && {flow.dst, flow[191:0]} == k;
  endfunction

  /* verilator lint_on UNUSEDSIGNAL */

  flow_key_t keys[1 << TagWidth];
  logic [1:0] valid;
  tag_t tags[2];
  logic [511:0] bucket, matched;
  logic low, high, whole, bad;
  flow_result_t missing;

  always_comb begin
    missing     = otherwise;
    missing.bad = bad && !otherwise.hit;
  end

  always_ff @(posedge clk) begin
    if (key_valid) keys[key_tag] <= key;
    // Cycle 0.
    if (s_valid) begin
      compared <= keys[s_tag];
      bucket   <= s_bucket;
      tags[0]  <= s_tag;
    end
    // Cycle 1.
    if (valid[0]) begin
      low     <= matches4(bucket[255:0], compared);
      high    <= matches4(bucket[511:256], compared);
      whole   <= matches6(bucket, compared);
      bad     <= bad_bucket(bucket);
      matched <= bucket;
      tags[1] <= tags[0];
    end
    // Cycle 2.
    if (valid[1]) begin
      m_tag <= tags[1];
      if (whole) m_result <= flow_result6(matched);
      else if (low) m_result <= flow_result4(matched[255:0]);
      else if (high) m_result <= flow_result4(matched[511:256]);
      else m_result <= missing;
    end
    {m_valid, valid} <= rst ? '0 : {valid, s_valid};
  end
endmodule
