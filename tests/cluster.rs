//! Servers over a real etcd and node daemons that joined them: the real binary, all on this machine. Root is needed.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, clippy::print_stderr)] // helpers of tests count as tests
#[path = "cluster/churn.rs"]
mod churn;
#[path = "cluster/drained.rs"]
mod drained;
#[path = "support/etcd.rs"]
mod etcd;
#[path = "cluster/full.rs"]
mod full;
#[path = "cluster/handed.rs"]
mod handed;
#[path = "cluster/joining.rs"]
mod joining;
#[path = "cluster/lost.rs"]
mod lost;
#[path = "cluster/machines.rs"]
mod machines;
#[path = "cluster/moving.rs"]
mod moving;
#[path = "cluster/net.rs"]
mod net;
#[path = "cluster/parted.rs"]
mod parted;
#[path = "cluster/rig.rs"]
mod rig;
#[path = "cluster/rolling.rs"]
mod rolling;
#[path = "cluster/servers.rs"]
mod servers;
#[path = "cluster/work.rs"]
mod work;
