//! Block devices that a leaf's processes may read and not write: the small program that v2 wants for it.
//!
//! The kernel asks the program whenever one of them opens or makes a device node. It hears the kind of device and of
//! access in one word, then the numbers; it answers 0 for no. All programs of the cgroups above are asked too.
use crate::sys::ffi;
use crate::sys::kernel::DeviceId;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::path::Path;

/// In the lower half of the word that says what is wanted.
const BLOCK: i32 = 1;
/// In the upper half of that word.
const WRITE: i32 = 4 << 16;

const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const AND: u8 = 0x57;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const EXIT: u8 = 0x95;

/// Lets nobody in the cgroup of the v2 tree open these to write.
pub(super) fn deny_writes(cgroup: &Path, devices: &[DeviceId]) -> io::Result<()> {
    let directory =
        rustix::fs::open(cgroup, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    ffi::attach_device_program(&directory, &program(devices))
}

/// One instruction: what, on which register, from which, how far, with what.
fn step(code: u8, (to, from): (u8, u8), off: i16, number: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from };
    let [o0, o1] = off.to_ne_bytes();
    let [n0, n1, n2, n3] = number.to_ne_bytes();
    u64::from_ne_bytes([code, registers, o0, o1, n0, n1, n2, n3])
}

fn program(devices: &[DeviceId]) -> Vec<u64> {
    // 1 is the question; 2 becomes what is wanted, 3 the major number, 4 the minor one; 0 is the answer.
    let mut program: Vec<u64> =
        [(2, 0), (3, 4), (4, 8)].map(|(to, at)| step(LOAD_WORD, (to, 1), at, 0)).to_vec();
    for device in devices {
        // As signed numbers: none of them has the highest bit.
        let [major, minor] = [device.major, device.minor].map(u32::cast_signed);
        program.extend([
            step(JUMP_UNLESS_EQUAL, (3, 0), 9, major),
            step(JUMP_UNLESS_EQUAL, (4, 0), 8, minor),
            step(MOVE, (5, 2), 0, 0),
            step(AND, (5, 0), 0, 0xffff),
            step(JUMP_UNLESS_EQUAL, (5, 0), 5, BLOCK),
            step(MOVE, (5, 2), 0, 0),
            step(AND, (5, 0), 0, WRITE),
            step(JUMP_IF_EQUAL, (5, 0), 2, 0),
            step(SET, (0, 0), 0, 0),
            step(EXIT, (0, 0), 0, 0),
        ]);
    }
    program.extend([step(SET, (0, 0), 0, 1), step(EXIT, (0, 0), 0, 0)]);
    program
}
