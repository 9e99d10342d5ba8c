# SPDX-License-Identifier: Apache-2.0
# Makes AMD's HBM controller (PG276) as hbm_channels.sv wants it, for a device with 16 GB in two stacks: 16 memory
# controllers with two pseudo channels each, all 32 ports on, each to its own pseudo channel. Nobody has run this yet.
create_ip -name hbm -vendor xilinx.com -library ip -module_name viaduct_hbm

set config [list \
    CONFIG.USER_HBM_DENSITY {16GB} CONFIG.USER_HBM_STACK {2} \
    CONFIG.USER_SWITCH_ENABLE_00 {FALSE} CONFIG.USER_SWITCH_ENABLE_01 {FALSE} \
    CONFIG.USER_APB_EN {false} CONFIG.USER_XSDB_INTF_EN {FALSE} \
    CONFIG.USER_CLK_SEL_LIST0 {AXI_00_ACLK} CONFIG.USER_CLK_SEL_LIST1 {AXI_16_ACLK} \
    CONFIG.USER_AXI_CLK_FREQ {250} CONFIG.USER_AXI_CLK1_FREQ {250} \
    CONFIG.USER_AXI_INPUT_CLK_FREQ {250} CONFIG.USER_AXI_INPUT_CLK1_FREQ {250}]
# Of each stack: 900 MHz, 1.8 Gb/s a pin, which is the most there is; reference and APB are the shell's 100 MHz.
foreach stack {0 1} {
    lappend config CONFIG.USER_HBM_TCK_$stack {900} \
        CONFIG.USER_HBM_REF_CLK_$stack {100} CONFIG.USER_APB_PCLK_$stack {100}
}
for {set port 0} {$port < 32} {incr port} {
    lappend config [format CONFIG.USER_SAXI_%02d $port] {true}
}
# Of each memory controller: any order of requests, refresh bank by bank. ECC corrects, and what it can't is answered
# with an error; writes have all bytes, so it needs no masks. All memory is written once before it is ready: what was
# never written has no valid ECC.
for {set mc 0} {$mc < 16} {incr mc} {
    lappend config [format CONFIG.USER_MC_ENABLE_%02d $mc] {TRUE}
    set of CONFIG.USER_MC$mc
    lappend config ${of}_TRAFFIC_OPTION {User_Defined} ${of}_REORDER_EN {true} \
        ${of}_EN_SBREF {true} ${of}_LOOKAHEAD_SBRF {true} ${of}_EN_DATA_MASK {false} \
        ${of}_ECC_BYPASS {false} ${of}_ENABLE_ECC_CORRECTION {true} ${of}_ENABLE_ECC_SCRUBBING {true} \
        ${of}_INITILIZE_MEM_USING_ECC_SCRUB {true}
}
set_property -dict $config [get_ips viaduct_hbm]
