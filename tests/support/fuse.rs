//! A FUSE file system of one readable file, spoken by hand over `/dev/fuse`, that can be killed and held up.
//!
//! Killed, it is what a FUSE driver leaves that ends with its mounts: everybody who has one gets ENOTCONN. Held up, it
//! is a server that does not answer for a while. What it tells of files may be kept for an hour, as honest drivers say.
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The file's name, and what is in it.
pub const FILE: (&str, &[u8]) = ("hello", b"from userspace\n");

const ROOT: u64 = 1;
const HELLO: u64 = 2;
/// Seconds for which the kernel may keep names and attributes.
const KEPT: u64 = 3600;
const DIRECTORY_MODE: u32 = 0o040_755;
const FILE_MODE: u32 = 0o100_444;

// The requests that are answered; all others get ENOSYS.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

const HOLD: u8 = b'h';
const GO_ON: u8 = b'g';

/// A mounted file system and its server, a thread.
pub struct Fuse {
    at: PathBuf,
    /// Its end is the server's.
    control: Option<UnixStream>,
    server: Option<JoinHandle<()>>,
}

impl Fuse {
    /// Mounts it on a directory and serves it.
    pub fn mount(at: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        rustix::fs::fcntl_setfl(&device, rustix::fs::OFlags::NONBLOCK).unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        mount("by-hand", at, "fuse", MountFlags::empty(), options.as_c_str()).unwrap();
        let (control, told) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || serve(device, told));
        Self { at: at.to_owned(), control: Some(control), server: Some(server) }
    }

    /// Ends the server as SIGKILL would. Its mounts stay, dead; on return everybody gets ENOTCONN.
    pub fn kill(&mut self) {
        self.control = None;
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }

    /// It answers nothing until [`Fuse::go_on`].
    pub fn hold(&mut self) {
        self.control.as_mut().unwrap().write_all(&[HOLD]).unwrap();
    }

    /// It answers again, what was asked meanwhile too.
    pub fn go_on(&mut self) {
        self.control.as_mut().unwrap().write_all(&[GO_ON]).unwrap();
    }

    /// Ends the server and takes the mount away that it made itself; binds of it are whose they are.
    pub fn finish(mut self) {
        self.kill();
        unmount(&self.at, UnmountFlags::DETACH).unwrap();
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // Of a test that failed: nothing may hang on it.
        self.control = None;
    }
}

fn serve(mut device: File, mut told: UnixStream) {
    let mut held = false;
    let mut request = vec![0; 256 * 1024];
    loop {
        // While it is held up, requests stay with the kernel.
        let wanted = if held { PollFlags::empty() } else { PollFlags::IN };
        let mut both = [PollFd::new(&told, PollFlags::IN), PollFd::new(&device, wanted)];
        match poll(&mut both, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => panic!("poll: {errno}"),
        }
        let (of_test, of_kernel) = (both[0].revents(), both[1].revents());
        if !of_test.is_empty() {
            let mut word = [0];
            match told.read(&mut word) {
                Ok(1) => held = word[0] == HOLD,
                // The test let go of it: the device is closed with this.
                Ok(_) | Err(_) => return,
            }
        } else if of_kernel.contains(PollFlags::ERR) {
            // Unmounted everywhere.
            return;
        } else if of_kernel.contains(PollFlags::IN) {
            match device.read(&mut request) {
                Ok(length) => answer(&mut device, &request[..length]),
                // Whoever asked gave up meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                Err(_) => return,
            }
        }
    }
}

fn answer(device: &mut File, request: &[u8]) {
    let opcode = u32::from_ne_bytes(request[4..8].try_into().unwrap());
    let node = u64::from_ne_bytes(request[16..24].try_into().unwrap());
    let argument = &request[40..];
    let result = match opcode {
        FORGET | BATCH_FORGET | INTERRUPT => return,
        INIT => Ok(init()),
        GETATTR => Ok(words(&[KEPT, 0]).into_iter().chain(attributes(node)).collect()),
        LOOKUP if node == ROOT && argument == [FILE.0.as_bytes(), &[0]].concat() => {
            let mut entry = words(&[HELLO, 0, KEPT, KEPT, 0]);
            entry.extend(attributes(HELLO));
            Ok(entry)
        }
        LOOKUP => Err(Errno::NOENT),
        OPEN | OPENDIR => Ok(words(&[0, 0])),
        READ => Ok(read(argument)),
        STATFS => Ok(vec![0; 80]),
        READDIR | RELEASE | RELEASEDIR | FLUSH => Ok(Vec::new()),
        _ => Err(Errno::NOSYS),
    };
    let (error, body) = match result {
        Ok(body) => (0, body),
        Err(errno) => (-errno.raw_os_error(), Vec::new()),
    };
    let mut message = u32::try_from(16 + body.len()).unwrap().to_ne_bytes().to_vec();
    message.extend(error.to_ne_bytes());
    message.extend(&request[8..16]);
    message.extend(body);
    // Whoever asked may have given up, and the mount may be gone.
    let _nobody_waits = device.write(&message);
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `struct fuse_init_out` of 7.31: what the kernel offers is not asked for.
fn init() -> Vec<u8> {
    let mut out: Vec<u8> = [7_u32, 31, 0, 0, 0, 4096, 1].iter().flat_map(|word| word.to_ne_bytes()).collect();
    out.resize(64, 0);
    out
}

/// `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, links, size) =
        if node == ROOT { (DIRECTORY_MODE, 2, 0) } else { (FILE_MODE, 1, FILE.1.len() as u64) };
    let mut out = words(&[node, size, 1, 0, 0, 0]);
    out.extend([0_u32, 0, 0, mode, links, 0, 0, 0, 4096, 0].iter().flat_map(|word| word.to_ne_bytes()));
    out
}

fn read(argument: &[u8]) -> Vec<u8> {
    let offset = u64::from_ne_bytes(argument[8..16].try_into().unwrap());
    let size = u32::from_ne_bytes(argument[16..20].try_into().unwrap());
    let from = FILE.1.len().min(usize::try_from(offset).unwrap());
    let rest = &FILE.1[from..];
    rest[..rest.len().min(size as usize)].to_vec()
}
