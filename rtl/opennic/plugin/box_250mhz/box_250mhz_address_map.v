// SPDX-License-Identifier: Apache-2.0
// Nothing: see box_250mhz_address_map_inst.vh. The shell's build reads this file.
