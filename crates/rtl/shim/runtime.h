// SPDX-License-Identifier: Apache-2.0
//
// What all verilated tops share: one interface over models of any type. Its only caller is src/model.rs.

#pragma once
#include <cstdint>

#include "verilated.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

namespace rtl {

// The same layout as `Port` in src/model.rs.
struct Port {
    void* data;
    uint32_t bits;
};

// A verilated top, with a context (time, $finish, tracing) of its own: that lets models live side by side.
class Model {
  public:
    virtual ~Model() = default;
    virtual void eval() = 0;
    virtual void final() = 0;
    virtual void trace(const char* path) = 0;

    VerilatedContext context;
};

template <typename Verilated>
class ModelOf final : public Model {
  public:
    void eval() override {
        top.eval();
        context.timeInc(1);
#if VM_TRACE
        if (vcd_.isOpen()) vcd_.dump(context.time());
#endif
    }
    void final() override { top.final(); }
#if VM_TRACE
    void trace(const char* path) override {
        context.traceEverOn(true);
        top.trace(&vcd_, 99);
        vcd_.open(path);
    }
#else
    void trace(const char*) override {}
#endif

    Verilated top{&context};

#if VM_TRACE
  private:
    VerilatedVcdC vcd_;
#endif
};

}  // namespace rtl
