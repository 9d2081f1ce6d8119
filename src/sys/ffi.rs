//! The system calls that no safe crate offers yet, each as one small safe function.
//!
//! Decides nothing and keeps nothing. Numbers are those of the unified table, which all architectures share.
#![allow(unsafe_code)] // the one place for it: each block says why it is sound
pub(crate) mod btrfs;
pub(crate) mod filesystems;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ffi::{CStr, CString};
use std::io;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const SYS_MOUNT_SETATTR: libc::c_long = 442;
const SYS_STATMOUNT: libc::c_long = 457;
const SYS_LISTMOUNT: libc::c_long = 458;
const SYS_PIDFD_SEND_SIGNAL: libc::c_long = 424;
/// `_IOR(0xb7, 5, __u64)`: the id of a mount namespace that is never reused.
const NS_GET_MNTNS_ID: u64 = 0x8008_b705;

const LOOP_CLR_FD: u64 = 0x4c01;
const LOOP_GET_STATUS64: u64 = 0x4c05;
const LOOP_CONFIGURE: u64 = 0x4c0a;
const LOOP_CTL_GET_FREE: u64 = 0x4c82;
/// `_IO(0x12, 93)`: whether a block device may be written, an int.
const BLKROSET: u64 = 0x125d;

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Attributes and propagation for `mount_setattr(2)`; `MOUNT_ATTR_*` and `MS_*` bits.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MountAttributes {
    /// Bits to set.
    pub(crate) set: u64,
    /// Bits to clear.
    pub(crate) clear: u64,
    /// `MS_SHARED`, `MS_SLAVE`, `MS_PRIVATE`, or 0 to leave it.
    pub(crate) propagation: u64,
    /// The user namespace of an id-mapped mount; not used.
    pub(crate) userns_fd: u64,
}

/// Changes the mount that `fd` refers to, and with `recursive` everything beneath it.
pub(crate) fn mount_setattr(fd: impl AsFd, recursive: bool, attributes: MountAttributes) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string, the struct lives across the call and its size is its own.
    let result = unsafe {
        libc::syscall(
            SYS_MOUNT_SETATTR,
            fd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    check(result).map(drop)
}

#[repr(C)]
struct MountRequest {
    size: u32,
    spare: u32,
    mount: u64,
    param: u64,
}

impl MountRequest {
    fn new(mount: u64, param: u64) -> Self {
        Self { size: 24, spare: 0, mount, param }
    }
}

/// Fills `buffer` with the `struct statmount` of one mount, strings included; `mask` says which fields.
pub(crate) fn statmount(mount: u64, mask: u64, buffer: &mut [u64]) -> io::Result<()> {
    let request = MountRequest::new(mount, mask);
    // SAFETY: both pointers are valid for the sizes given; the kernel writes plain integers and bytes.
    let result = unsafe {
        libc::syscall(SYS_STATMOUNT, &raw const request, buffer.as_mut_ptr(), size_of_val(buffer), 0_u32)
    };
    check(result).map(drop)
}

/// The unique ids of the mounts reachable from this process's root, those after `last`; as many as fit.
pub(crate) fn listmount(last: u64, ids: &mut [u64]) -> io::Result<usize> {
    let request = MountRequest::new(u64::MAX, last);
    // SAFETY: both pointers are valid for the counts given; the kernel writes plain integers.
    let result =
        unsafe { libc::syscall(SYS_LISTMOUNT, &raw const request, ids.as_mut_ptr(), ids.len(), 0_u32) };
    check(result)
}

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 2;

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`; what follows counts as zero.
#[repr(C)]
struct ProgramToLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log: [u64; 2],
    version_and_flags: u64,
}

/// Has the kernel ask a program about each device that is opened or made in a cgroup of the v2 tree, for as long as
/// that is there. Each word is one instruction.
pub(crate) fn attach_device_program(cgroup: impl AsFd, program: &[u64]) -> io::Result<()> {
    let load = ProgramToLoad {
        kind: BPF_PROG_TYPE_CGROUP_DEVICE,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log: [0; 2],
        version_and_flags: 0,
    };
    let bpf = |call: libc::c_long, attributes: *const libc::c_void, size: usize| {
        // SAFETY: both callers below give a pointer to that many bytes, with pointers in them that live as long.
        check(unsafe { libc::syscall(libc::SYS_bpf, call, attributes, size) })
    };
    let fd = bpf(BPF_PROG_LOAD, (&raw const load).cast(), size_of::<ProgramToLoad>())?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the call made this descriptor and nothing else owns it.
    let loaded = unsafe { OwnedFd::from_raw_fd(fd) };
    let attach = [
        cgroup.as_fd().as_raw_fd().cast_unsigned(),
        loaded.as_raw_fd().cast_unsigned(),
        BPF_CGROUP_DEVICE,
        BPF_F_ALLOW_MULTI,
    ];
    bpf(BPF_PROG_ATTACH, (&raw const attach).cast(), size_of_val(&attach)).map(drop)
}

/// The signal by which a shim is told to stop its task within a number of milliseconds. A real-time one: of two
/// SIGTERMs that come close together the second would be lost, with its number.
pub(crate) fn stop_signal() -> i32 {
    libc::SIGRTMIN()
}

/// Sends a signal with a number attached (`sigqueue`), which a `signalfd` reader sees. Where as many signals wait as the
/// receiver's user may have (RLIMIT_SIGPENDING), which any process of that user can bring about, it goes without the
/// number: that never fails for want of room.
pub(crate) fn pidfd_queue(pidfd: impl AsFd, signal: i32, number: i32) -> io::Result<()> {
    // siginfo_t is 128 bytes: signo, errno, code, padding, pid, uid, value (a union as wide as a pointer).
    let mut info = [0_i32; 32];
    info[0] = signal;
    info[2] = libc::SI_QUEUE;
    let value = if cfg!(target_pointer_width = "64") { 6 } else { 5 };
    info[value] = number;
    let send = |info: *const i32| {
        // SAFETY: the kernel reads 128 bytes of a siginfo_t, which is how long the array is, or nothing where there is none.
        check(unsafe { libc::syscall(SYS_PIDFD_SEND_SIGNAL, pidfd.as_fd().as_raw_fd(), signal, info, 0_u32) })
    };
    match send(info.as_ptr()) {
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => send(std::ptr::null()).map(drop),
        result => result.map(drop),
    }
}

/// The id of a mount namespace that is never reused before the next boot (Linux 6.11).
pub(crate) fn mount_namespace_id(namespace: impl AsFd) -> io::Result<u64> {
    let mut id = 0_u64;
    // SAFETY: the ioctl writes one u64 through the pointer.
    let result = unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), NS_GET_MNTNS_ID as _, &raw mut id) };
    check(result.into()).map(|_| id)
}

/// Puts the descriptor in or out of reach of the next exec.
pub(crate) fn set_inherited(fd: BorrowedFd<'_>, inherited: bool) -> io::Result<()> {
    let flags = if inherited { rustix::io::FdFlags::empty() } else { rustix::io::FdFlags::CLOEXEC };
    Ok(rustix::io::fcntl_setfd(fd, flags)?)
}

/// Who this process is after [`fork`].
pub(crate) enum Fork {
    /// The new process.
    Child,
    /// The old one, with the new one's number.
    Parent(i32),
}

/// Makes a new process.
///
/// # Panics
/// Never; but call it only while this process has one thread: the child goes on with ordinary code.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: the caller has one thread, so no lock can be left held in the child.
    match unsafe { libc::fork() } {
        0 => Ok(Fork::Child),
        pid if pid > 0 => Ok(Fork::Parent(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `CLONE_INTO_CGROUP`, Linux 5.7.
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// [`fork`], with the new process in a cgroup of the v2 tree from its first moment.
///
/// # Panics
/// Never; but call it only while this process has one thread. In the child the C library does not know that it is
/// another process: it is for calls and an exec.
pub(crate) fn fork_into(cgroup: BorrowedFd<'_>) -> io::Result<Fork> {
    // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
    // set_tid_size, cgroup; each a u64.
    let mut wanted = [0_u64; 11];
    wanted[0] = INTO_CGROUP;
    wanted[4] = u64::from(libc::SIGCHLD.cast_unsigned());
    wanted[10] = u64::from(cgroup.as_raw_fd().cast_unsigned());
    // SAFETY: the kernel reads as many bytes as the array has. Memory is copied and there is one thread, so the child
    // goes on as after `fork`.
    match unsafe { libc::syscall(libc::SYS_clone3, wanted.as_ptr(), size_of_val(&wanted)) } {
        0 => Ok(Fork::Child),
        pid => check(pid).and_then(|pid| Ok(Fork::Parent(i32::try_from(pid).map_err(io::Error::other)?))),
    }
}

/// Replaces the program: by path, or with an empty path by descriptor. Returns only on failure.
pub(crate) fn execveat(fd: BorrowedFd<'_>, path: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*mut libc::c_char> {
        strings.iter().map(|s| s.as_ptr().cast_mut()).chain([std::ptr::null_mut()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    let flags = if path.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: both arrays end with null and point to C strings that outlive the call.
    unsafe { libc::execveat(fd.as_raw_fd(), path.as_ptr(), argv.as_ptr(), env.as_ptr(), flags) };
    io::Error::last_os_error()
}

/// A set of signals.
#[derive(Clone, Copy)]
pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    /// A set of these.
    pub(crate) fn new(signals: &[i32]) -> Self {
        // SAFETY: an all-zero sigset_t is valid storage, and sigemptyset initialises it.
        let mut set = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is valid; numbers that are no signals are refused without effect.
        unsafe {
            libc::sigemptyset(&raw mut set);
            for &signal in signals {
                libc::sigaddset(&raw mut set, signal);
            }
        }
        Self(set)
    }

    /// Makes these the only blocked signals of this thread.
    pub(crate) fn block_only(&self) -> io::Result<()> {
        // SAFETY: the set is initialised; the old mask is not asked for.
        let result = unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
        check(result.into()).map(drop)
    }

    /// A descriptor that gives these signals, once they are blocked.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set is initialised.
        let fd = unsafe { libc::signalfd(-1, &raw const self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        check(fd.into())?;
        // SAFETY: the call made this descriptor and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// One signal as a signal descriptor gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Which signal.
    pub(crate) signal: i32,
    /// The number that came with it, if it was sent by `sigqueue`.
    pub(crate) number: Option<i32>,
}

/// The next signal; none when there is none now.
pub(crate) fn next_signal(fd: impl AsFd) -> io::Result<Option<Arrived>> {
    // struct signalfd_siginfo: ssi_signo at 0, ssi_code at 8, ssi_int at 44; 128 bytes.
    let mut bytes = [0_u8; 128];
    let word = |bytes: &[u8; 128], at: usize| {
        i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    match rustix::io::read(fd, &mut bytes) {
        Ok(128) => {
            let queued = word(&bytes, 8) == libc::SI_QUEUE;
            Ok(Some(Arrived { signal: word(&bytes, 0), number: queued.then(|| word(&bytes, 44)) }))
        }
        Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What a process does when a signal comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// What the kernel does by itself.
    Default,
    /// Nothing.
    Ignore,
}

/// Sets what this process does on a signal.
pub(crate) fn set_disposition(signal: i32, disposition: Disposition) {
    let action = match disposition {
        Disposition::Default => libc::SIG_DFL,
        Disposition::Ignore => libc::SIG_IGN,
    };
    // SAFETY: no handler is installed, so no code runs in signal context. Refusal (SIGKILL) has no effect.
    unsafe { libc::signal(signal, action) };
}

/// Closes every descriptor from 3 on but these.
pub(crate) fn close_all_but(keep: &[i32]) {
    let mut keep: Vec<u32> = keep.iter().filter_map(|&fd| u32::try_from(fd).ok()).collect();
    keep.sort_unstable();
    let mut from = 3_u32;
    for fd in keep.into_iter().filter(|&fd| fd >= 3).chain([u32::MAX]) {
        if fd > from {
            // SAFETY: the caller names every descriptor that anything here still owns; the rest were inherited
            // by mistake and nobody knows them.
            unsafe { libc::close_range(from, if fd == u32::MAX { fd } else { fd - 1 }, 0) };
        }
        from = fd.saturating_add(1);
    }
}

/// Takes ownership of a descriptor that was inherited by number. None when there is no such descriptor.
pub(crate) fn inherited(fd: i32) -> Option<OwnedFd> {
    if fd < 3 {
        return None;
    }
    // SAFETY: F_GETFD only asks.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: it is open, and by contract of the shim's start nothing else in this process owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs in the child between fork and exec, before the program is replaced.
pub(crate) fn before_exec(
    command: &mut std::process::Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    use std::os::unix::process::CommandExt;
    // SAFETY: the closures given here make system calls only: no allocation, no lock.
    unsafe { command.pre_exec(prepare) };
}

/// Ends this process now, without running anything else.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` does not return and runs no handler.
    unsafe { libc::_exit(code) }
}

/// Gives this process a mount namespace of its own, a copy of the old one.
pub(crate) fn unshare_mounts() -> io::Result<()> {
    // SAFETY: only the mount namespace changes; no memory or descriptor is touched.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }.into()).map(drop)
}

/// One of the three descriptors that every program expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standard {
    /// Input, 0.
    Input = 0,
    /// Output, 1.
    Output = 1,
    /// Errors, 2.
    Error = 2,
}

/// Makes a standard descriptor mean what `fd` means; it is inherited.
pub(crate) fn redirect(fd: impl AsFd, standard: Standard) -> io::Result<()> {
    // SAFETY: nothing owns descriptors 0 to 2 as values; replacing them is what they are for.
    let result = unsafe { libc::dup2(fd.as_fd().as_raw_fd(), standard as i32) };
    check(result.into()).map(drop)
}

/// Lets the next exec inherit a descriptor by its number. For use between fork and exec: it only makes calls.
pub(crate) fn inherit_number(fd: i32) -> io::Result<()> {
    // SAFETY: F_SETFD changes a flag; a number that is no descriptor is refused.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }.into()).map(drop)
}

/// Sends any signal, of a name or not, to a child that is not reaped.
pub(crate) fn send_signal(child: i32, signal: i32) -> io::Result<()> {
    if child <= 0 {
        return Err(rustix::io::Errno::INVAL.into()); // a group, or everybody
    }
    // SAFETY: a signal touches no memory of this process.
    check(unsafe { libc::kill(child, signal) }.into()).map(drop)
}

/// A descriptor that tells the runtime when it can be read; for a pidfd, when its process is gone.
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` keeps giving the same open descriptor until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// A descriptor that tells the runtime of what `poll` calls priority: of a mount table, that it changed.
pub(crate) fn urgent(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` keeps giving the same open descriptor until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::PRIORITY) }?)
}

/// Gives back the pages of programs and libraries that were read and not written: the kernel reads them again when
/// they are needed. The loader touches megabytes of a large binary once; a process that only waits need not keep
/// them.
pub(crate) fn give_back_read_only_pages() {
    unsafe extern "C" fn visit(object: *mut libc::dl_phdr_info, _: usize, _: *mut libc::c_void) -> i32 {
        // SAFETY: the loader passes a valid object, whose headers are mapped and as many as it says.
        let (base, headers) = unsafe {
            let object = &*object;
            (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
        };
        for header in headers {
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
                let start = (base + header.p_vaddr) & !4095;
                let end = base + header.p_vaddr + header.p_memsz;
                // A length that this machine cannot address is no segment of ours.
                let Ok(length) = usize::try_from(end - start) else { continue };
                let start = start as *mut libc::c_void;
                // SAFETY: a segment that is not writable was never changed (relocated data is in writable ones), so
                // its pages come back from the file as they were. A refusal changes nothing.
                unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
            }
        }
        0
    }
    // SAFETY: the callback only reads what it is given, and no object is unloaded meanwhile: there is one thread.
    unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::null_mut()) };
}

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LoopStatus {
    /// The device of the file behind it, as `stat` shows it.
    pub(crate) device: u64,
    /// The inode of that file.
    pub(crate) inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    /// `LO_FLAGS_*`.
    pub(crate) flags: u32,
    /// Whatever was given at the start, ended by NUL.
    pub(crate) label: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl LoopStatus {
    /// A device over a whole file.
    pub(crate) fn new(label: [u8; 64], flags: u32) -> Self {
        // SAFETY: every field is an integer or an array of integers, for which zero is a value.
        let zero: Self = unsafe { std::mem::zeroed() };
        Self { flags, label, ..zero }
    }
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    status: LoopStatus,
    reserved: [u64; 8],
}

/// The number of a loop device that nothing was behind when the kernel looked.
pub(crate) fn loop_get_free(control: impl AsFd) -> io::Result<u32> {
    // SAFETY: the request takes no argument.
    let number = unsafe { libc::ioctl(control.as_fd().as_raw_fd(), LOOP_CTL_GET_FREE as _) };
    check(number.into()).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

/// Puts a file behind a loop device, all at once. EBUSY when there is one.
pub(crate) fn loop_configure(device: impl AsFd, file: impl AsFd, status: LoopStatus) -> io::Result<()> {
    let number = u32::try_from(file.as_fd().as_raw_fd()).map_err(io::Error::other)?;
    let config = LoopConfig { file: number, block_size: 0, status, reserved: [0; 8] };
    // SAFETY: the kernel reads a `struct loop_config` of this size through the pointer.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
    check(result.into()).map(drop)
}

/// What is behind a loop device; none when nothing is.
pub(crate) fn loop_status(device: impl AsFd) -> io::Result<Option<LoopStatus>> {
    let mut status = LoopStatus::new([0; 64], 0);
    // SAFETY: the kernel writes a `struct loop_info64` of this size through the pointer.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_GET_STATUS64 as _, &raw mut status) };
    match check(result.into()) {
        Ok(_) => Ok(Some(status)),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Takes the file away from a loop device; while anyone else has it open, with the last of them. None behind it is
/// success.
pub(crate) fn loop_clear(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CLR_FD as _) };
    match check(result.into()) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Lets a block device be written, or not.
pub(crate) fn set_block_read_only(device: impl AsFd, read_only: bool) -> io::Result<()> {
    let value = libc::c_int::from(read_only);
    // SAFETY: the kernel reads one int through the pointer.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), BLKROSET as _, &raw const value) };
    check(result.into()).map(drop)
}
