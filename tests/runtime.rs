//! What every way to run a task must do: one list of cases, each on a machine of its own. Needs root, as the tests of `sys`.
#![allow(clippy::unwrap_used)] // the exception for tests does not reach their helpers
#[path = "support/systemd.rs"]
mod booted;
#[path = "runtime/containerd.rs"]
mod containerd;
#[path = "runtime/external.rs"]
mod external;
#[path = "runtime/fixture.rs"]
mod fixture;
#[path = "support/containerd.rs"]
#[allow(dead_code, reason = "each binary uses its own part of it")]
mod its;
#[path = "support/image.rs"]
#[allow(dead_code, unreachable_pub, reason = "each binary uses its own part of it")]
mod made;
#[path = "runtime/suite.rs"]
mod suite;
#[path = "sys/support.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod support;
#[path = "runtime/systemd.rs"]
mod systemd;

use fixture::Flavour;

/// As processes of the host.
macro_rules! process_cases {
    ($($case:ident,)*) => { mod process { $(
        #[tokio::test]
        async fn $case() {
            super::suite::$case(super::Flavour::Process).await;
        }
    )* } };
}
suite::for_each_case!(process_cases);

/// As containers.
macro_rules! oci_cases {
    ($($case:ident,)*) => { mod oci { $(
        #[tokio::test]
        async fn $case() {
            super::suite::$case(super::Flavour::Oci).await;
        }
    )* } };
}
suite::for_each_case!(oci_cases);

/// As containers of containerd's.
macro_rules! containerd_cases {
    ($($case:ident,)*) => { mod through_containerd { $(
        #[tokio::test]
        async fn $case() {
            super::suite::$case(super::Flavour::Containerd).await;
        }
    )* } };
}
suite::for_each_case!(containerd_cases);
