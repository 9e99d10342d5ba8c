//! Tells callgrind what to count.
//!
//! This is the only request needed of `valgrind/callgrind.h`; bindings to that file would need libclang to build.

/// `CALLGRIND_TOGGLE_COLLECT`: tool "CT", its request 2.
const TOGGLE_COLLECT: u64 = 0x4354_0002;

/// Starts or stops counting. Does nothing without callgrind.
#[inline(always)]
pub fn toggle() {
    #[cfg(target_arch = "x86_64")]
    {
        let request = [TOGGLE_COLLECT, 0, 0, 0, 0, 0];
        // SAFETY: valgrind recognises these instructions and reads the request at rax. On a CPU they do nothing: the
        // rotations of rdi add up to 128 bits.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
                in("rax") request.as_ptr(),
                inout("rdx") 0_u64 => _,
            );
        }
    }
}

#[allow(dead_code)] // some stages mark their begin and end themselves
pub fn counted<T>(work: impl FnOnce() -> T) -> T {
    toggle();
    let done = work();
    toggle();
    done
}
