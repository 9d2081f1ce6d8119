//! A network that a test makes: a bridge, and for each machine a network namespace with a cable to it.
//!
//! The thread that makes it is on the bridge from then on, and so is everything that it starts: etcd, servers, the command
//! line. Nothing of it can be seen from outside, so that tests never meet, and it goes with the last process on it.
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where the servers listen: the bridge.
pub(crate) const HUB: &str = "10.77.0.1";

/// The network of one test.
pub(crate) struct Net {
    /// Where the thread was before.
    before: File,
    ports: Vec<Port>,
}

/// One machine's namespace, which outlives its daemon.
struct Port {
    name: String,
    holder: Child,
}

/// What is wrong with a machine's cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nothing passes.
    Whole,
    /// What the machine sends is lost; what is sent to it arrives.
    Sent,
    /// What is sent to the machine is lost; what it sends arrives.
    Received,
}

impl Net {
    /// Moves this thread onto a bridge of its own.
    pub(crate) fn make() -> Self {
        let before = File::open("/proc/thread-self/ns/net").unwrap();
        let mut holder = namespace();
        let made = File::open(format!("/proc/{}/ns/net", holder.id())).unwrap();
        move_into_link_name_space(made.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        release(&mut holder);
        let net = Self { before, ports: Vec::new() };
        ip("link set lo up");
        ip("link add hub type bridge");
        ip(&format!("addr add {HUB}/24 dev hub"));
        ip("link set hub up");
        net
    }

    /// The namespace of a machine, as a path; with a cable the first time.
    pub(crate) fn port(&mut self, name: &str) -> String {
        if let Some(port) = self.ports.iter().find(|port| port.name == name) {
            return port.path();
        }
        let (n, holder) = (self.ports.len(), namespace());
        ip(&format!("link add {} type veth peer name eth0 netns {}", cable(n), holder.id()));
        ip(&format!("link set {} master hub up", cable(n)));
        let port = Port { name: name.to_owned(), holder };
        port.ip("link set lo up");
        port.ip(&format!("addr add {}/24 dev eth0", address(n)));
        port.ip("link set eth0 up");
        let path = port.path();
        self.ports.push(port);
        path
    }

    /// Cuts a machine off. No end of a connection hears of it.
    pub(crate) fn cut(&self, name: &str, cut: Cut) {
        let (n, port) = self.find(name);
        // Frames for a card that nobody has are lost without a word.
        let nowhere = "lladdr 02:00:00:00:00:ff nud permanent";
        match cut {
            Cut::Whole => ip(&format!("link set {} down", cable(n))),
            Cut::Sent => port.ip(&format!("neigh replace {HUB} {nowhere} dev eth0")),
            Cut::Received => ip(&format!("neigh replace {} {nowhere} dev hub", address(n))),
        }
    }

    /// Mends what [`cut`](Self::cut) did.
    pub(crate) fn mend(&self, name: &str) {
        let (n, port) = self.find(name);
        ip(&format!("link set {} up", cable(n)));
        for (inside, far, card) in [(true, HUB.to_owned(), "eth0"), (false, address(n), "hub")] {
            // It may not be there; then there is nothing to mend.
            let args = format!("neigh del {far} dev {card}");
            let mut command = if inside { port.command(&args) } else { command(&args) };
            command.output().unwrap();
        }
    }

    fn find(&self, name: &str) -> (usize, &Port) {
        let n = self.ports.iter().position(|port| port.name == name).unwrap();
        (n, &self.ports[n])
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for port in &mut self.ports {
            release(&mut port.holder);
        }
        move_into_link_name_space(self.before.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Port {
    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.id())
    }

    fn command(&self, args: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg("ip").args(args.split(' '));
        command
    }

    fn ip(&self, args: &str) {
        succeed(self.command(args));
    }
}

fn cable(n: usize) -> String {
    format!("cable{n}")
}

fn address(n: usize) -> String {
    format!("10.77.0.{}", n + 10)
}

/// A process in a network namespace of its own, which ends with its standard input: with this process at the latest.
fn namespace() -> Child {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", "echo made && exec cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "made\n", "no network namespace: root is needed");
    child
}

fn release(holder: &mut Child) {
    drop(holder.stdin.take());
    holder.wait().unwrap();
}

fn command(args: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(args.split(' '));
    command
}

/// `ip` on the bridge's side.
fn ip(args: &str) {
    succeed(command(args));
}

fn succeed(mut command: Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: iproute2 is needed"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}
