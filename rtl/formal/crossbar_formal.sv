// SPDX-License-Identifier: Apache-2.0
//
// Properties of `crossbar`: every beat comes out once, unchanged, at the output that its packet's first beat named, in
// order per (input, output); packets aren't mixed; a beat on offer stays; who can go isn't kept. Beats carry input,
// output, a number per (input, output) and `last`. Destinations of later beats are arbitrary.
module crossbar_formal #(
    localparam int unsigned Inputs  = 2,
    localparam int unsigned Outputs = 2,
    localparam int unsigned Width   = 6,
    localparam int unsigned Queue   = 4
) (
    input logic               clk,
    input logic               reset_again,
    input logic [ Inputs-1:0] s_valid,
    input logic [ Inputs-1:0] s_last,
    input logic [ Inputs-1:0][0:0] s_destination,
    input logic [Outputs-1:0] m_ready
);
  logic begun = 1'b0;
  always_ff @(posedge clk) begun <= 1'b1;
  logic rst;
  assign rst = !begun || reset_again;

  logic [Inputs-1:0] s_ready;
  logic [Inputs-1:0][Width-1:0] s_data;
  logic [Outputs-1:0] m_valid, m_last;
  logic [Outputs-1:0][Width-1:0] m_data;
  crossbar #(
      .Inputs (Inputs),
      .Outputs(Outputs),
      .Width  (Width),
      .Queue  (Queue)
  ) dut (
      .*
  );

  logic [Inputs-1:0][Outputs-1:0][2:0] sent, received;
  logic [Inputs-1:0] open, held, destination;
  for (genvar i = 0; i < Inputs; i++) begin : g_input
    assign destination[i] = open[i] ? held[i] : s_destination[i];
    assign s_data[i]      = {1'(i), destination[i], sent[i][destination[i]], s_last[i]};
    always_ff @(posedge clk)
      if (begun && !$past(rst) && $past(s_valid[i] && !s_ready[i]))
        assume (s_valid[i] && s_last[i] == $past(s_last[i]) && s_destination[i] == $past(s_destination[i]));
    always_ff @(posedge clk) begin
      if (s_valid[i] && s_ready[i]) begin
        sent[i][destination[i]] <= sent[i][destination[i]] + 1'b1;
        open[i]                 <= !s_last[i];
        held[i]                 <= destination[i];
      end
      if (rst) begin
        sent[i] <= '0;
        open[i] <= 1'b0;
      end
    end
  end

  logic [Outputs-1:0] open_out, source_out, source;
  for (genvar o = 0; o < Outputs; o++) begin : g_output
    assign source[o] = m_data[o][5];
    always_ff @(posedge clk) begin
      if (m_valid[o] && m_ready[o]) begin
        open_out[o]   <= !m_last[o];
        source_out[o] <= source[o];
      end
      if (rst) open_out[o] <= 1'b0;
    end
    for (genvar i = 0; i < Inputs; i++) begin : g_received
      always_ff @(posedge clk) begin
        if (m_valid[o] && m_ready[o] && source[o] == 1'(i)) received[i][o] <= received[i][o] + 1'b1;
        if (rst) received[i][o] <= '0;
      end
    end
    always_comb
      if (!rst && m_valid[o]) begin
        assert (m_data[o][4] == 1'(o));
        assert (m_data[o][3:1] == received[source[o]][o]);
        assert (m_data[o][0] == m_last[o]);
        if (open_out[o]) assert (source[o] == source_out[o]);
      end
    always_ff @(posedge clk)
      if (begun && !rst && !$past(rst) && $past(m_valid[o] && !m_ready[o]))
        assert (m_valid[o] && m_data[o] == $past(m_data[o]) && m_last[o] == $past(m_last[o]));
  end

  // A beat that waits for a free output is held up only by another input's packet for the same.
  for (genvar o = 0; o < Outputs; o++) begin : g_free
    for (genvar i = 0; i < Inputs; i++) begin : g_free
      always_comb
        if (!rst && dut.valid[o][i] && m_ready[o] && !dut.valid[o][1-i] && !dut.g_output[o].mux.holder[1-i])
          assert (dut.ready[o][i]);
    end
  end

  // What holds inside, for the induction: who holds an output, what stands in the queues, and that the numbers of the
  // beats held follow those received.
  for (genvar o = 0; o < Outputs; o++) begin : g_holder
    logic [Inputs-1:0] holder;
    assign holder = dut.g_output[o].mux.holder;
    always_comb
      if (!rst) begin
        if (m_valid[o]) assert (holder == (m_last[o] ? '0 : Inputs'(1) << source[o]));
        else assert (holder == (open_out[o] ? Inputs'(1) << source_out[o] : '0));
      end
  end
  for (genvar i = 0; i < Inputs; i++) begin : g_inside
    logic in_packet, first_valid, first_last, first_destination;
    logic spare_valid, spare_last, spare_named, spare_destination;
    logic [Width-1:0] spare_data;
    assign in_packet         = dut.g_input[i].demux.in_packet;
    assign first_valid       = dut.g_input[i].held_valid;
    assign first_last        = dut.g_input[i].held_last;
    assign first_destination = dut.g_input[i].demux.destination;
    assign spare_valid       = dut.g_input[i].head.spare_valid;
    assign {spare_named, spare_last, spare_data} = dut.g_input[i].head.spare_data;
    assign spare_destination = first_last ? spare_named : first_destination;
    always_comb
      if (!rst) begin
        if (spare_valid) assert (first_valid && open[i] == !spare_last && (!open[i] || held[i] == spare_destination));
        else if (first_valid) assert (open[i] == !first_last && (!open[i] || held[i] == first_destination));
        else assert (open[i] == in_packet && (!open[i] || held[i] == dut.g_input[i].demux.held));
      end
    for (genvar o = 0; o < Outputs; o++) begin : g_inside
      logic out, first, second, ram_valid;
      logic [2:0] level, in_ram, oldest, newest;
      logic [Width:0] word, word_in_ram;
      assign out       = m_valid[o] && source[o] == 1'(i);
      assign first     = first_valid && first_destination == 1'(o);
      assign second    = spare_valid && spare_destination == 1'(o);
      assign level     = dut.g_input[i].g_queue[o].queue.level;
      assign ram_valid = dut.g_input[i].g_queue[o].queue.ram_valid;
      assign in_ram    = dut.g_input[i].g_queue[o].queue.write_pointer - dut.g_input[i].g_queue[o].queue.read_pointer;
      assign word      = dut.g_input[i].g_queue[o].queue.m_data;
      assign word_in_ram = dut.g_input[i].g_queue[o].queue.ram_data;
      assign oldest    = received[i][o] + 3'(out);
      assign newest    = oldest + level;
      always_comb
        if (!rst) begin
          assert (in_ram <= 3'(Queue) && level <= 3'(Queue));
          assert (level == in_ram + 3'(ram_valid) + 3'(dut.valid[o][i]));
          assert (dut.g_input[i].ready_in[o] == (level != 3'(Queue)));
          assert (sent[i][o] == newest + 3'(first) + 3'(second));
          if (dut.valid[o][i]) assert (word == {word[0], 1'(i), 1'(o), oldest, word[0]});
          if (ram_valid)
            assert (word_in_ram == {word_in_ram[0], 1'(i), 1'(o), 3'(oldest + 3'(dut.valid[o][i])), word_in_ram[0]});
          if (first) assert (dut.g_input[i].held_data == {1'(i), 1'(o), newest, first_last});
          if (second) assert (spare_data == {1'(i), 1'(o), 3'(newest + 3'(first)), spare_last});
        end
      for (genvar k = 0; k < Queue; k++) begin : g_word
        logic [Width:0] waiting;
        assign waiting = dut.g_input[i].g_queue[o].queue.ram[2'(dut.g_input[i].g_queue[o].queue.read_pointer+3'(k))];
        always_comb
          if (!rst && 3'(k) < in_ram)
            assert (waiting == {waiting[0], 1'(i), 1'(o),
                3'(oldest + 3'(dut.valid[o][i]) + 3'(ram_valid) + 3'(k)), waiting[0]});
      end
    end
  end

  always_comb
    if (!rst) begin
      cover (&m_valid && &m_ready && source == 2'b01 && open_out == '1);
      cover (&m_valid && &m_ready && source == 2'b10 && open_out == '1);
      cover (open_out[0] && m_valid[0] && m_last[0] && received[0][0] == 2 && received[1][0] == 1);
      cover (open == '1 && s_valid == '1 && s_ready == '0);
      // A packet for a free output goes past one that waits.
      cover (m_valid[1] && source[1] == 1'b0 && m_valid[0] && !m_ready[0] && dut.valid[0][0] && received[0][1] == 1);
    end
endmodule
