//! The code that all tops have in common. The only unsafe code over the verilated models is here and in the generated
//! `new`s.

use std::ffi::{CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::{env, fs, slice, thread};

use crate::{Bits, BitsMut};

/// A top on the C++ side.
#[repr(C)]
pub(crate) struct Raw {
    _opaque: [u8; 0],
}

/// Address and width of a port. Same layout as `rtl::Port` in `shim/runtime.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Port {
    data: *mut c_void,
    bits: u32,
}

/// Makes a model and fills in its ports.
pub(crate) type Create = unsafe extern "C" fn(*mut Port) -> *mut Raw;

/// Facts about a top that are known when it is built.
pub(crate) struct Top {
    pub name: &'static str,
    pub create: Create,
    pub ports: usize,
    pub clk: Option<usize>,
    pub rst: Option<usize>,
}

unsafe extern "C" {
    fn rtl_eval(model: *mut Raw) -> u8;
    fn rtl_final(model: *mut Raw) -> u8;
    fn rtl_printed(length: *mut usize) -> *const c_char;
    fn rtl_trace(model: *mut Raw, path: *const c_char);
    fn rtl_delete(model: *mut Raw);
}

/// Bits of the results of `rtl_eval` and `rtl_final`.
const PRINTED: u8 = 1;
const FINISHED: u8 = 2;
const FAILED: u8 = 4;

/// A module being simulated. Its prints (`$display`) go to standard output.
///
/// # Panics
/// Every method that evaluates the module panics when an assertion fails or at `$stop`, `$fatal`. The message names the
/// place.
pub struct Model {
    raw: NonNull<Raw>,
    ports: Box<[Port]>,
    top: &'static Top,
    cycle: u64,
    finished: bool,
}

// SAFETY: a model shares nothing with others: it has a context of its own, which `rtl_eval` makes its thread's before
// each evaluation. So it may move between threads, but (raw pointers: not `Sync`) not be used by two at a time.
unsafe impl Send for Model {}

impl Model {
    pub(crate) fn new(top: &'static Top) -> Self {
        static ONE_AT_A_TIME: Mutex<u64> = Mutex::new(0);
        let mut made = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut ports = vec![Port { data: std::ptr::null_mut(), bits: 0 }; top.ports].into_boxed_slice();
        // SAFETY: the generated `create` fills in as many ports as the generated `top.ports` says; the lock is held,
        // since the library notes the latest context in a global.
        let raw = unsafe { (top.create)(ports.as_mut_ptr()) };
        let raw = NonNull::new(raw).expect("new doesn't return null");
        let mut model = Self { raw, ports, top, cycle: 0, finished: false };
        model.trace(*made);
        *made += 1;
        drop(made);
        // Runs the initial blocks.
        model.eval();
        model
    }

    /// Updates everything that follows from the inputs without a clock edge.
    #[track_caller]
    pub fn eval(&mut self) {
        // SAFETY: `raw` is a model until drop.
        let outcome = unsafe { rtl_eval(self.raw.as_ptr()) };
        if outcome != 0 {
            self.heed(outcome);
        }
    }

    /// Simulates one cycle: a rising edge of `clk`, which takes the inputs as they are, then a falling one.
    #[inline]
    #[track_caller]
    pub fn clock(&mut self) {
        let clk = self.top.clk.expect("a top with a port clk");
        self.set(clk, 1);
        self.eval();
        self.set(clk, 0);
        self.eval();
        self.cycle += 1;
    }

    /// Holds `rst` high for some cycles, then leaves it low.
    #[track_caller]
    pub fn reset(&mut self, cycles: u32) {
        let rst = self.top.rst.expect("a top with a port rst");
        self.set(rst, 1);
        for _ in 0..cycles {
            self.clock();
        }
        self.set(rst, 0);
        self.eval();
    }

    /// Returns the number of cycles so far, including those in reset.
    pub fn cycle(&self) -> u64 {
        self.cycle
    }

    /// Returns whether the model came to `$finish`.
    pub fn finished(&self) -> bool {
        self.finished
    }

    #[cold]
    #[track_caller]
    fn heed(&mut self, outcome: u8) {
        self.finished |= outcome & FINISHED != 0;
        let printed = if outcome & (PRINTED | FAILED) == 0 { String::new() } else { printed() };
        assert!(
            outcome & FAILED == 0,
            "{} failed in cycle {}: {}",
            self.top.name,
            self.cycle,
            printed.trim_end()
        );
        print!("{printed}");
    }

    /// Opens a VCD file in the directory that VIADUCT_RTL_TRACE names, if the variable was set at build time, too.
    fn trace(&mut self, number: u64) {
        let Some(directory) = env::var_os("VIADUCT_RTL_TRACE").filter(|_| TRACING) else { return };
        let thread = thread::current().name().unwrap_or("thread").replace("::", ".");
        let path = format!("{}/{thread}-{}-{number}.vcd", directory.to_string_lossy(), self.top.name);
        let _ = fs::create_dir_all(&directory);
        let path = CString::new(path).expect("no NUL in an environment variable or a thread's name");
        // SAFETY: `raw` is a model, the path a C string that is copied.
        unsafe { rtl_trace(self.raw.as_ptr(), path.as_ptr()) };
    }

    #[inline]
    pub(crate) fn get(&self, port: usize) -> u64 {
        let Port { data, bits } = self.ports[port];
        // SAFETY: `data` points to the port, whose type follows from its width; nothing writes it while `self` is
        // borrowed.
        unsafe {
            match bits {
                0..=8 => u64::from(*data.cast::<u8>()),
                9..=16 => u64::from(*data.cast::<u16>()),
                17..=32 => u64::from(*data.cast::<u32>()),
                33..=64 => *data.cast::<u64>(),
                _ => unreachable!("a port of {bits} bits is Bits"),
            }
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, port: usize, value: u64) {
        let Port { data, bits } = self.ports[port];
        assert!(bits >= 64 || value >> bits == 0, "{value:#x} has more than the port's {bits} bits");
        // SAFETY: as for `get`, and `self` is borrowed exclusively; the casts lose nothing, as was just asserted.
        unsafe {
            match bits {
                0..=8 => *data.cast::<u8>() = value as u8,
                9..=16 => *data.cast::<u16>() = value as u16,
                17..=32 => *data.cast::<u32>() = value as u32,
                33..=64 => *data.cast::<u64>() = value,
                _ => unreachable!("a port of {bits} bits is Bits"),
            }
        }
    }

    /// Returns the value of a port of more than 64 bits.
    #[inline]
    pub(crate) fn bits(&self, port: usize) -> Bits<'_> {
        let Port { data, bits } = self.ports[port];
        assert!(bits > 64);
        let width = bits as usize;
        // SAFETY: a port of more than 64 bits is an array of words; nothing writes it while `self` is borrowed.
        let words = unsafe { slice::from_raw_parts(data.cast(), width.div_ceil(32)) };
        Bits::new(words, width)
    }

    /// Returns a port of more than 64 bits, to be written.
    #[inline]
    pub(crate) fn bits_mut(&mut self, port: usize) -> BitsMut<'_> {
        let Port { data, bits } = self.ports[port];
        assert!(bits > 64);
        let width = bits as usize;
        // SAFETY: as for `bits`, and `self` is borrowed exclusively.
        let words = unsafe { slice::from_raw_parts_mut(data.cast(), width.div_ceil(32)) };
        BitsMut::new(words, width)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: `raw` is a model, and nobody uses it any more. The text is copied before the next call.
        unsafe {
            if rtl_final(self.raw.as_ptr()) & (PRINTED | FAILED) != 0 {
                print!("{}", printed());
            }
            rtl_delete(self.raw.as_ptr());
        }
    }
}

/// Returns the text that the last evaluation on this thread printed.
fn printed() -> String {
    let mut length = 0;
    // SAFETY: returns this thread's text and its length; it stays until the next evaluation on this thread.
    let text = unsafe {
        let text = rtl_printed(&raw mut length);
        slice::from_raw_parts(text.cast::<u8>(), length)
    };
    String::from_utf8_lossy(text).into_owned()
}

/// Whether the models were built with tracing.
const TRACING: bool = option_env!("VIADUCT_RTL_TRACE").is_some();
