// SPDX-License-Identifier: Apache-2.0
//
// `route_lookup` with a port for each thing that it reads, asks and finds. Latency and throughput as there.
module route_unit_sim
  import viaduct_pkg::*;
(
    input  logic               clk,
    input  logic               rst,
    input  logic [319:0]       secret,
    input  logic               s_valid,
    output logic               s_ready,
    input  tag_t               s_tag,
    input  logic               s_v6,
    input  logic [127:0]       s_dst,
    input  vrf_id_t            s_vrf,
    input  logic [19:0]        s_root,
    input  logic [127:0]       s_lengths6,
    output logic               m_valid,
    output tag_t               m_tag,
    output forward_result_t    m_result,
    output logic  [4:0]        req_valid,
    input  logic  [4:0]        req_ready,
    output line_t [4:0]        req_line,
    output tag_t  [4:0]        req_context,
    input  logic  [4:0]        resp_valid,
    output logic  [4:0]        resp_ready,
    input  tag_t  [4:0]        resp_context,
    input  logic  [4:0][255:0] resp_data
);
  lookup_t        asked;
  forward_found_t found;
  memory_req_t  [4:0] reqs;
  memory_resp_t [4:0] resps;

  for (genvar r = 0; r < 5; r++) begin : g_requester
    assign {req_valid[r], req_line[r], req_context[r], resp_ready[r]} = reqs[r];
    assign resps[r] = '{
        req_ready: req_ready[r], valid: resp_valid[r], tag: resp_context[r], data: 512'(resp_data[r])
    };
  end

  always_comb begin
    asked = '0;
    {asked.tag, asked.root, asked.lengths6}             = {s_tag, s_root, s_lengths6};
    {asked.key.v6, asked.key.dst, asked.key.vrf} = {s_v6, s_dst, s_vrf};
  end
  assign {m_valid, m_tag, m_result} = found;

  route_lookup #(
      .Route6Bits(10)
  ) dut (
      .clk,
      .rst,
      .secret,
      .s_valid,
      .s_ready,
      .s(asked),
      .found,
      .reqs,
      .resps
  );
endmodule
