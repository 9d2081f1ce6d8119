//! The allocator: mimalloc, but the system's in a shim, which shall stay small and allocates next to nothing.
#![allow(unsafe_code)] // an allocator cannot be written without
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

/// The first argument of a shim.
pub const SHIM: &str = "shim";

/// Set once, before anything is allocated: what one allocator gave must not go back to the other.
static SMALL: AtomicBool = AtomicBool::new(false);

/// The allocator of this program.
///
/// Objects are many small pieces of JSON that one thread makes and another drops: with the system's allocator a burst of
/// volumes took 1.4 times as long. Where the program is a shim, mimalloc would cost it 4 MB for each task.
#[derive(Debug, Clone, Copy)]
pub struct Allocator;

// The loader calls what stands in this section with the program's arguments, before `main` and before Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn(c_int, *const *const c_char) = choose;

extern "C" fn choose(count: c_int, arguments: *const *const c_char) {
    if count < 2 || arguments.is_null() {
        return;
    }
    // SAFETY: glibc passes argc and argv as `main` gets them: `count` pointers to strings that end with a zero.
    let first = unsafe { CStr::from_ptr(*arguments.add(1)) };
    SMALL.store(first.to_bytes() == SHIM.as_bytes(), Ordering::Relaxed);
}

fn small() -> bool {
    SMALL.load(Ordering::Relaxed)
}

// SAFETY: each call goes on to one of two allocators, always the same one in one process.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the callee's condition.
        if small() { unsafe { System.alloc(layout) } } else { unsafe { MiMalloc.alloc(layout) } }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the callee's condition.
        if small() {
            unsafe { System.dealloc(pointer, layout) }
        } else {
            unsafe { MiMalloc.dealloc(pointer, layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the callee's condition.
        if small() {
            unsafe { System.alloc_zeroed(layout) }
        } else {
            unsafe { MiMalloc.alloc_zeroed(layout) }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if small() {
            // SAFETY: the caller's promise is the callee's condition.
            unsafe { System.realloc(pointer, layout, size) }
        } else {
            // SAFETY: the caller's promise is the callee's condition.
            unsafe { MiMalloc.realloc(pointer, layout, size) }
        }
    }
}
