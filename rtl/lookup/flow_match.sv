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
    output logic         m_valid,
    output tag_t         m_tag,
    output flow_result_t m_result
);
  // A line has more than any of these functions needs.
  /* verilator lint_off UNUSEDSIGNAL */

  // An action of a newer driver is left to the host. From 8 on they are those of hold groups.
  function automatic flow_action_e known(input logic [3:0] action);
    return action[3] || 32'(action) < FlowActionCount ? flow_action_e'(action) : FlowActionHost;
  endfunction

  function automatic flow_result_t result4(input flow4_t flow);
    return '{
        hit: 1'b1,
        action: known(flow.action),
        generation: flow.generation,
        index: flow.index,
        nexthop: flow.nexthop,
        has_nexthop: flow.has_nexthop,
        nat_src: flow.nat_src,
        nat_dst: flow.nat_dst,
        new_src: flow.new_src,
        new_dst: flow.new_dst
    };
  endfunction

  function automatic flow_result_t result6(input flow6_t flow);
    return '{
        hit: 1'b1,
        action: known(flow.action),
        generation: flow.generation,
        index: flow.index,
        nexthop: flow.nexthop,
        has_nexthop: flow.has_nexthop,
        nat_src: 1'b0,
        nat_dst: 1'b0,
        new_src: '0,
        new_dst: '0
    };
  endfunction

  // An IPv4 flow's key, as in its entry: all below `kind`.
  function automatic logic [127:0] narrow(input flow_key_t k);
    return {k.zone, k.v6, k.from_tunnel, k.path, k.vrf, k.protocol, k.dport, k.sport, k.dst[31:0], k.src[31:0]};
  endfunction

  function automatic logic matches4(input flow4_t flow, input flow_key_t k);
    return flow.kind == FlowKindV4 && !k.v6 && flow[127:0] == narrow(k);
  endfunction

  function automatic logic matches6(input flow6_t flow, input flow_key_t k);
    return flow.kind == FlowKindV6Low && flow.kind_high == FlowKindV6High && flow.version == flow.version_high &&
        k.v6 && {flow.dst, flow[191:0]} == k;
  endfunction

  /* verilator lint_on UNUSEDSIGNAL */

  flow_key_t keys[1 << TagWidth];
  flow_key_t compared;
  logic [1:0] valid;
  tag_t tags[2];
  logic [511:0] bucket, matched;
  logic low, high, whole;

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
      matched <= bucket;
      tags[1] <= tags[0];
    end
    // Cycle 2.
    if (valid[1]) begin
      m_tag <= tags[1];
      if (whole) m_result <= result6(matched);
      else if (low) m_result <= result4(matched[255:0]);
      else if (high) m_result <= result4(matched[511:256]);
      else m_result <= '0;
    end
    {m_valid, valid} <= rst ? '0 : {valid, s_valid};
  end
endmodule
