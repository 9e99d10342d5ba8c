# SPDX-License-Identifier: Apache-2.0
# Run by the shell's build, in this directory: reads the engine, packages before those that use them.
set rtl [file normalize [file join [pwd] .. ..]]
read_verilog -quiet -sv [list $rtl/registers_pkg.sv $rtl/viaduct_pkg.sv $rtl/parse/parse_pkg.sv $rtl/pipe/pipe_pkg.sv]
foreach folder {axis parse lookup memory rewrite pipe engine opennic} {
    foreach file [glob $rtl/$folder/*.sv] {
        if {![string match *_pkg.sv $file]} { read_verilog -quiet -sv $file }
    }
}
read_verilog -quiet -sv [file join [pwd] hbm_channels.sv]
source [file join [pwd] hbm_ip.tcl]
