//! Volumes made, used and deleted again and again on three machines, after which everything is as it was before.
use std::collections::BTreeSet;

use crate::rig::{Cluster, until};
use crate::work::{allocation, driver, finish, instances};

const MACHINES: [&str; 3] = ["n0", "n1", "n2"];

/// What could be left behind: on each machine, in the backend, in the store, in the kernel.
fn leftovers(cluster: &Cluster) -> Vec<String> {
    let mut left = Vec::new();
    let backend = cluster.place("backend");
    for machine in MACHINES {
        let foreign = cluster.mounts(machine).into_iter().filter(|point| !point.ends_with("/run"));
        left.extend(foreign.map(|point| format!("{machine}: {point}")));
        for folder in ["staging", "publish"] {
            let place = cluster.place(machine).join("volumes").join(folder);
            let inside = cluster.inside(machine, place.to_str().unwrap());
            for entry in std::fs::read_dir(inside).into_iter().flatten() {
                left.push(format!("{machine}: {folder}/{}", entry.unwrap().file_name().display()));
            }
        }
    }
    for entry in std::fs::read_dir(backend.join("volumes")).into_iter().flatten() {
        left.push(format!("backend: {}", entry.unwrap().file_name().display()));
    }
    for kind in ["volumes", "volumeattachments", "volumeclaims"] {
        left.extend(
            cluster.list(kind).iter().map(|object| format!("{kind}: {}", object["metadata"]["name"])),
        );
    }
    for entry in std::fs::read_dir("/sys/block").unwrap() {
        let file = entry.unwrap().path().join("loop/backing_file");
        let backing = std::fs::read_to_string(file).unwrap_or_default();
        if backing.starts_with(backend.to_str().unwrap()) {
            left.push(format!("loop device: {backing}"));
        }
    }
    left
}

/// The claim of the manifest by another name.
fn claim(driver: &str, name: &str) -> String {
    driver.split("\n---\n").nth(2).unwrap().replace("name: disk", &format!("name: {name}"))
}

/// So many volumes, each written on one machine and read on the next one.
fn round(cluster: &mut Cluster, driver: &str, round: usize, off: Option<&str>) {
    let names: Vec<_> = (0..MACHINES.len()).map(|n| format!("v{round}-{n}")).collect();
    let work = |what: &str, shift: usize, script: &str| {
        let of = names.iter().enumerate().map(|(n, name)| {
            let pin = format!("nodeName: {}", MACHINES[(n + shift) % MACHINES.len()]);
            allocation(&format!("{what}{name}"), &pin, script)
                .replace("claimName: disk", &format!("claimName: {name}"))
                .replace("restartPolicy: Never", "restartPolicy: OnFailure")
        });
        of.collect::<Vec<_>>().join("---\n")
    };
    cluster.apply(&names.iter().map(|name| claim(driver, name)).collect::<Vec<_>>().join("\n---\n"));
    cluster.apply(&work("w", 0, "echo written > /disk/word && sync"));
    // Somebody changes their mind before anything can have happened, or just when it does.
    cluster.apply(
        &allocation(&format!("o{}", names[0]), "", "exec sleep infinity")
            .replace("claimName: disk", &format!("claimName: {}", names[0])),
    );
    cluster.run(&["delete", "allocation", &format!("o{}", names[0]), "--timeout", "60s"]);
    if let Some(machine) = off {
        cluster.power_off(machine);
        cluster.machine(machine, &format!("boot-{round}"));
    }
    let cluster = &*cluster;
    complete(cluster, "w", &names);
    cluster.apply(&work("r", 1, "grep -q written /disk/word"));
    complete(cluster, "r", &names);
    cluster.run(&["delete", "allocations", "--all", "--timeout", "60s"]);
    cluster.run(&["delete", "volumeclaims", "--all", "--timeout", "60s"]);
}

/// Waits until the users of these volumes have ended well.
fn complete(cluster: &Cluster, what: &str, volumes: &[String]) {
    let mut open: BTreeSet<_> = volumes.iter().map(|name| format!("{what}{name}")).collect();
    until("all have ended well", || {
        for object in cluster.list("allocations") {
            assert_ne!(object["status"]["phase"], "Failed", "{object:#}");
            if object["status"]["phase"] == "Complete" {
                open.remove(object["metadata"]["name"].as_str().unwrap());
            }
        }
        one_machine(cluster);
        open.is_empty()
    });
}

/// No volume is attached to two machines.
fn one_machine(cluster: &Cluster) {
    let mut seen = BTreeSet::new();
    for attachment in cluster.list("volumeattachments") {
        let up = attachment["status"]["node"]["staged"] == "Up";
        let volume = attachment["spec"]["volume"].to_string();
        assert!(!up || seen.insert(volume), "staged on two machines: {attachment:#}");
    }
}

/// What the machines logged, and the events.
async fn churn(rounds: usize, driver_of: impl Fn(&Cluster) -> String, power: bool) -> String {
    let mut cluster = Cluster::apart(1).await;
    for machine in MACHINES {
        cluster.machine(machine, "boot-0");
    }
    let driver = driver_of(&cluster);
    cluster.apply(&driver);
    cluster.run(&["delete", "volumeclaim", "disk"]);
    until("the plugin serves everywhere", || instances(&cluster).len() == MACHINES.len());
    let before = leftovers(&cluster);
    for n in 0..rounds {
        // In the middle of some rounds one machine goes off; it comes back with what it had on its disk.
        let off = (power && n % 3 == 1).then(|| MACHINES[n % MACHINES.len()]);
        round(&mut cluster, &driver, n, off);
        until("nothing is left of the round", || leftovers(&cluster) == before);
    }
    let said = MACHINES.map(|machine| cluster.log(machine)).join("")
        + &cluster.run(&["get", "events", "-A", "-o", "json"]);
    finish(cluster, &MACHINES);
    // Of the first requests of a machine that has just joined none was refused because of another.
    assert!(!said.contains("no member of its cluster"), "{said}");
    said
}

/// Scenarios B52, B130.
#[tokio::test]
async fn ten_rounds_leave_nothing() {
    churn(10, driver, true).await;
}

/// Scenario B132: one call of ten ends with a code of its own, some of them although it was done.
#[tokio::test]
async fn a_driver_that_fails_now_and_then_leaves_nothing() {
    let faulty = |cluster: &Cluster| {
        let driver = driver(cluster);
        assert_eq!(driver.matches("      runtime:\n").count(), 1);
        driver.replace("      runtime:\n", "      env: {WHARFLINE_CSI_FAULTS: \"10\"}\n      runtime:\n")
    };
    let said = churn(5, faulty, false).await;
    assert!(said.contains("a fault that a test asked for"), "nothing failed");
}
