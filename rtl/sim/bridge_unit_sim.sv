// SPDX-License-Identifier: Apache-2.0
//
// `bridge_lookup` with a port for each thing that it reads, asks and finds. Latency and throughput as there.
module bridge_unit_sim
  import viaduct_pkg::*;
(
    input  logic               clk,
    input  logic               rst,
    input  logic [319:0]       secret,
    input  logic               s_valid,
    output logic               s_ready,
    input  tag_t               s_tag,
    input  vrf_id_t            s_vrf,
    input  logic [47:0]        s_mac,
    output logic               m_valid,
    output tag_t               m_tag,
    output bridge_result_t     m_result,
    output logic  [1:0]        req_valid,
    input  logic  [1:0]        req_ready,
    output line_t [1:0]        req_line,
    output tag_t  [1:0]        req_context,
    input  logic  [1:0]        resp_valid,
    output logic  [1:0]        resp_ready,
    input  tag_t  [1:0]        resp_context,
    input  logic  [1:0][255:0] resp_data
);
  lookup_t       asked;
  bridge_found_t found;
  memory_req_t  [1:0] reqs;
  memory_resp_t [1:0] resps;

  for (genvar r = 0; r < 2; r++) begin : g_requester
    assign {req_valid[r], req_line[r], req_context[r], resp_ready[r]} = reqs[r];
    assign resps[r] = '{
        req_ready: req_ready[r], valid: resp_valid[r], tag: resp_context[r], data: 512'(resp_data[r])
    };
  end

  always_comb begin
    asked = '0;
    {asked.tag, asked.key.vrf, asked.mac_dst} = {s_tag, s_vrf, s_mac};
  end
  assign {m_valid, m_tag, m_result} = found;

  bridge_lookup #(
      .BridgeBits(8)
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
