//! Lets clients in that call the socket by its path.
//!
//! gRPC libraries for Python, Java, Swift and others send the path of the socket, often percent-encoded, as HTTP/2's
//! `:authority`. The server library takes that for a malformed header and resets the stream
//! (<https://github.com/hyperium/h2/pull/487>; once that is in, this file can go). On a socket the field says nothing,
//! so its value is replaced before the library sees it.
//!
//! Only header blocks are touched, and of them only that one value; everything else passes through byte by byte. What
//! cannot be understood passes through as well: refusing it is the library's part. No compression state is kept: the
//! new value is never longer than the old one, so the reader's table holds at least what the writer's does.
//!
//! ```text
//! Preface -> Frame -> Through ------------> Frame
//!              |----> Block -> Frame (CONTINUATION) -> Block -> ... -> Frame
//!              '----> Raw (a block too long to hold; to the end of the connection)
//! ```
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
/// The longest frame that a peer must take, unasked.
const LONGEST_FRAME: usize = 16_384;
/// Longer header blocks are not looked into.
const LONGEST_BLOCK: usize = 256 * 1024;
const READ_AT_ONCE: usize = 8 * 1024;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// `:authority` in the static table of HPACK.
const AUTHORITY: usize = 1;
/// The same name spelled out, which is how gRPC's C core sends it, and in HPACK's Huffman code. Both with their length.
const SPELLED: &[u8] = b"\x0a:authority";
const CODED: &[u8] = b"\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f";
/// One character, and so never longer than what it replaces; as a string of HPACK.
const REPLACEMENT: [u8; 2] = [1, b'x'];

/// A connection whose requests all have a well-formed `:authority`.
#[derive(Debug)]
pub(crate) struct AnyAuthority<C> {
    connection: C,
    rewriter: Rewriter,
    ready: Vec<u8>,
    taken: usize,
}

impl<C> AnyAuthority<C> {
    /// Wraps the server's end of a new connection.
    pub(crate) fn new(connection: C) -> Self {
        Self { connection, rewriter: Rewriter::default(), ready: Vec::new(), taken: 0 }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for AnyAuthority<C> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.taken == this.ready.len() {
            this.ready.clear();
            this.taken = 0;
            let mut bytes = [0; READ_AT_ONCE];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.connection).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(())); // the end; what was held back is no whole frame and never will be
            }
            this.rewriter.push(read.filled(), &mut this.ready);
        }
        let rest = &this.ready[this.taken..];
        let count = rest.len().min(out.remaining());
        out.put_slice(&rest[..count]);
        this.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for AnyAuthority<C> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().connection).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().connection).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().connection).poll_shutdown(context)
    }
}

impl<C: Connected> Connected for AnyAuthority<C> {
    type ConnectInfo = C::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.connection.connect_info()
    }
}

/// The position in what the client sends.
#[derive(Debug)]
enum At {
    /// So many bytes of the preface are to come.
    Preface(usize),
    /// In a frame header, held back until it is whole.
    Frame,
    /// So many bytes of a frame that is none of ours are to come.
    Through(usize),
    /// In a frame with a part of a header block, held back until it is whole.
    Block(FrameHeader),
    /// Nothing is looked at any more.
    Raw,
}

#[derive(Clone, Copy, Debug)]
struct FrameHeader {
    length: usize,
    flags: u8,
    stream: [u8; 4],
}

/// Turns what a client sends into what the library reads.
#[derive(Debug)]
struct Rewriter {
    at: At,
    /// The frame or frame header that is not whole yet.
    held: Vec<u8>,
    /// The frames of a header block, as they came.
    frames: Vec<u8>,
    /// The HEADERS frame of that block, once there is one, and the block so far.
    open: Option<(FrameHeader, Vec<u8>)>,
}

impl Default for Rewriter {
    fn default() -> Self {
        Self { at: At::Preface(PREFACE), held: Vec::new(), frames: Vec::new(), open: None }
    }
}

impl Rewriter {
    fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            match self.at {
                At::Preface(left) => bytes = self.pass(bytes, left, At::Preface, out),
                At::Through(left) => bytes = self.pass(bytes, left, At::Through, out),
                At::Raw => {
                    out.extend_from_slice(bytes);
                    return;
                }
                At::Frame => {
                    bytes = self.hold(bytes, FRAME_HEADER);
                    if self.held.len() == FRAME_HEADER {
                        self.begin(out);
                    }
                }
                At::Block(header) => {
                    bytes = self.hold(bytes, header.length);
                    if self.held.len() == header.length {
                        self.end(header, out);
                    }
                }
            }
        }
    }

    /// Hands on up to `left` bytes; returns what is behind them.
    fn pass<'a>(&mut self, bytes: &'a [u8], left: usize, at: fn(usize) -> At, out: &mut Vec<u8>) -> &'a [u8] {
        let (now, rest) = bytes.split_at(left.min(bytes.len()));
        out.extend_from_slice(now);
        self.at = if now.len() == left { At::Frame } else { at(left - now.len()) };
        rest
    }

    /// Keeps bytes until there are `whole` of them; returns what is behind them.
    fn hold<'a>(&mut self, bytes: &'a [u8], whole: usize) -> &'a [u8] {
        let (now, rest) = bytes.split_at((whole - self.held.len()).min(bytes.len()));
        self.held.extend_from_slice(now);
        rest
    }

    /// A frame header is whole.
    fn begin(&mut self, out: &mut Vec<u8>) {
        let Ok(header) = <[u8; FRAME_HEADER]>::try_from(self.held.as_slice()) else { return };
        let [a, b, c, kind, flags, stream @ ..] = header;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let header = FrameHeader { length, flags, stream };
        let ours = kind == HEADERS && self.open.is_none() || kind == CONTINUATION && self.open.is_some();
        self.frames.append(&mut self.held);
        if ours && self.frames.len() + length <= LONGEST_BLOCK {
            self.at = At::Block(header);
            if length == 0 {
                self.end(header, out);
            }
            return;
        }
        // In the middle of a block anything else is a fault of the client, and a block too long is not for us.
        let intact = self.open.is_none() && !ours;
        out.append(&mut self.frames);
        self.at = match (intact, length) {
            (false, _) => At::Raw,
            (true, 0) => At::Frame,
            (true, length) => At::Through(length),
        };
    }

    /// A frame with a part of a header block is whole.
    fn end(&mut self, header: FrameHeader, out: &mut Vec<u8>) {
        let payload = std::mem::take(&mut self.held);
        self.frames.extend_from_slice(&payload);
        let (first, block) = match self.open.take() {
            Some((first, mut block)) => {
                block.extend_from_slice(&payload);
                (first, Some(block))
            }
            None => (header, fragment(header.flags, &payload).map(<[u8]>::to_vec)),
        };
        let Some(block) = block else {
            out.append(&mut self.frames);
            self.at = At::Raw;
            return;
        };
        self.at = At::Frame;
        if header.flags & END_HEADERS == 0 {
            self.open = Some((first, block));
            return;
        }
        match rewritten(&block) {
            Some(block) => {
                self.frames.clear();
                put_block(first, &block, out);
            }
            None => out.append(&mut self.frames),
        }
    }
}

/// The part of a HEADERS frame that belongs to the block, without padding and priority.
fn fragment(flags: u8, payload: &[u8]) -> Option<&[u8]> {
    let (padding, rest) = match flags & PADDED {
        0 => (0, payload),
        _ => payload.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
    };
    let from = if flags & PRIORITY == 0 { 0 } else { 5 };
    rest.get(from..rest.len().checked_sub(padding)?)
}

fn put_block(first: FrameHeader, block: &[u8], out: &mut Vec<u8>) {
    let parts = block.chunks(LONGEST_FRAME).collect::<Vec<_>>();
    // A block is never empty where a value in it was replaced.
    for (index, part) in parts.iter().enumerate() {
        let (kind, mut flags) =
            if index == 0 { (HEADERS, first.flags & END_STREAM) } else { (CONTINUATION, 0) };
        if index + 1 == parts.len() {
            flags |= END_HEADERS;
        }
        let length = u32::try_from(part.len()).unwrap_or_default().to_be_bytes();
        out.extend_from_slice(&length[1..]);
        out.extend_from_slice(&[kind, flags]);
        out.extend_from_slice(&first.stream);
        out.extend_from_slice(part);
    }
}

/// The block with another value of `:authority`; `None` when there is none in it, or it is not understood.
fn rewritten(block: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(block.len());
    let mut replaced = false;
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        let start = at;
        // The width of the number in the first byte, and whether a name and a value follow (RFC 7541, section 6).
        let (bits, literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (index, behind) = number(block, at, bits)?;
        at = behind;
        let mut ours = literal && index == AUTHORITY;
        if literal && index == 0 {
            at = string(block, at)?;
            ours = matches!(&block[behind..at], SPELLED | CODED);
        }
        let value = at;
        if literal {
            at = string(block, at)?;
        }
        if ours && block[value] & 0x7f != 0 {
            out.extend_from_slice(&block[start..value]);
            out.extend_from_slice(&REPLACEMENT);
            replaced = true;
        } else {
            out.extend_from_slice(&block[start..at]);
        }
    }
    replaced.then_some(out)
}

/// A number whose first `bits` bits are at `at`, and the position behind it.
fn number(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let most = (1_usize << bits) - 1;
    let mut value = usize::from(*block.get(at)?) & most;
    let mut at = at + 1;
    if value < most {
        return Some((value, at));
    }
    for shift in [0, 7, 14] {
        let byte = *block.get(at)?;
        at += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

/// The position behind the string at `at`.
fn string(block: &[u8], at: usize) -> Option<usize> {
    let (length, at) = number(block, at, 7)?;
    let end = at + length;
    (end <= block.len()).then_some(end)
}

#[cfg(test)]
mod tests;
