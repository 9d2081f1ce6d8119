//! Random bytes: names, incarnations, jitter.

/// A source of random bytes. Simulations seed it; the real one is fit for keys.
pub trait Random: Send + Sync + std::fmt::Debug {
    /// Fills the whole buffer.
    fn fill(&self, buffer: &mut [u8]);

    /// A random number below `bound`; 0 when `bound` is 0. The bias is below 2^-32 for bounds below 2^32.
    fn below(&self, bound: u64) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes).checked_rem(bound).unwrap_or(0)
    }

    /// Sixteen random bytes as 32 lower-case hexadecimal digits.
    fn token(&self) -> String {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
            text.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
            text.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
            text
        })
    }
}

/// The kernel's generator (`getrandom`), which never runs dry after boot.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealRandom;

impl Random for RealRandom {
    fn fill(&self, buffer: &mut [u8]) {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::rand::getrandom(&mut buffer[done..], rustix::rand::GetRandomFlags::empty()) {
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    panic!("getrandom exists since Linux 3.17 and fails for no other reason: {error}")
                }
            }
        }
    }
}
