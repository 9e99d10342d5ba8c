// SPDX-License-Identifier: Apache-2.0
//
// Verilator's library with its output and its ends taken over: what a model prints is kept for the caller, and a failed
// assertion, $stop or $fatal unwinds to rtl_eval() instead of aborting the process.

#include <cstddef>
#include <cstdio>
#include <string>

#define VL_USER_FINISH
#define VL_USER_STOP
#define VL_USER_FATAL
#define VL_PRINTF rtl_printf
extern "C" int rtl_printf(const char* format, ...) __attribute__((format(printf, 1, 2)));

#include "verilated.cpp"
#include "verilated_threads.cpp"
#if VM_TRACE
#include "verilated_vcd_c.cpp"
#endif

#include "runtime.h"

namespace {

struct Stopped {};

thread_local std::string printed;
thread_local bool finished = false;

enum Outcome : uint8_t { Printed = 1, Finished = 2, Failed = 4 };

// The library asks for "the thread's context" to print times and scopes.
void enter(const rtl::Model& model) {
    auto* context = const_cast<VerilatedContext*>(&model.context);
    if (Verilated::threadContextp() != context) Verilated::threadContextp(context);
}

template <typename Step>
uint8_t outcome_of(Step step) {
    uint8_t outcome = 0;
    printed.clear();
    finished = false;
    try {
        step();
    } catch (const Stopped&) {
        outcome |= Failed;
    }
    return outcome | (printed.empty() ? 0 : Printed) | (finished ? Finished : 0);
}

}  // namespace

extern "C" int rtl_printf(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printed += _vl_string_vprintf(format, arguments);
    va_end(arguments);
    return 0;
}

void vl_finish(const char*, int, const char*) { finished = true; }

// A failed assertion and $fatal have printed why, $stop has not.
void vl_stop(const char* file, int line, const char*) {
    rtl_printf("stopped at %s:%d\n", file, line);
    throw Stopped{};
}

void vl_fatal(const char* file, int line, const char*, const char* message) {
    rtl_printf("%s:%d: %s\n", file, line, message);
    throw Stopped{};
}

extern "C" {

// Evaluates once; a set of Outcome.
uint8_t rtl_eval(rtl::Model* model) noexcept {
    enter(*model);
    return outcome_of([&] { model->eval(); });
}

// Runs the final blocks; a set of Outcome.
uint8_t rtl_final(rtl::Model* model) noexcept {
    enter(*model);
    return outcome_of([&] { model->final(); });
}

// What the last call on this thread printed; valid until the next one.
const char* rtl_printed(size_t* length) noexcept {
    *length = printed.size();
    return printed.data();
}

void rtl_trace(rtl::Model* model, const char* path) noexcept {
    enter(*model);
    model->trace(path);
}

void rtl_delete(rtl::Model* model) noexcept { delete model; }
}
