//! The layouts on plain files: what is written where. The kernel's part is in `tests/sys/cgroup.rs`.
use super::*;

const PATH: &str = "/wharfline/node/one";
const LIMITS: Limits = Limits { memory_bytes: Some(4096), cpu_millis: Some(1500), pids: Some(7) };

/// A directory that looks like the mounted trees; each of these files is made, with this text.
fn mounted(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let file = directory.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    directory
}

fn wanted(limits: Limits) -> Cgroup {
    Cgroup { path: PATH.to_owned(), limits }
}

/// Every file and its text beneath the tree, those that the test made aside.
fn written(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for inner in walk(directory).unwrap() {
        for entry in std::fs::read_dir(&inner).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                let name = entry.path().strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
                found.push((name, std::fs::read_to_string(entry.path()).unwrap()));
            }
        }
    }
    found.sort();
    found
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn v2_alone_has_one_directory_and_controllers_enabled_above_it() {
    let mounted = mounted(&[("cgroup.controllers", "cpuset cpu io memory pids\n")]);
    let trees = Trees::at(mounted.path());
    let leaf = Leaf::make(&trees, &wanted(LIMITS), &[]).unwrap();
    leaf.join(Rest::All).unwrap();
    // The last word written to a plain file stays; the kernel adds up what is enabled.
    let enabled = "+pids";
    assert_eq!(
        written(mounted.path()),
        pairs(&[
            ("cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("cgroup.subtree_control", enabled),
            ("wharfline/cgroup.subtree_control", enabled),
            ("wharfline/node/cgroup.subtree_control", enabled),
            ("wharfline/node/one/cgroup.procs", "0"),
            ("wharfline/node/one/cpu.max", "150000 100000"),
            ("wharfline/node/one/memory.max", "4096"),
            ("wharfline/node/one/pids.max", "7"),
        ])
    );
    let directory = mounted.path().join("wharfline/node/one");
    std::fs::write(directory.join("memory.events"), "low 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 5\n")
        .unwrap();
    assert_eq!(leaf.oom_kills(), Some(2));
    assert_eq!(Leaf::find(&trees, PATH).parts, leaf.parts);
    leaf.kill().unwrap();
    assert_eq!(std::fs::read_to_string(directory.join("cgroup.kill")).unwrap(), "1");
}

#[test]
fn a_controller_that_is_not_there_matters_only_with_its_limit() {
    let mounted = mounted(&[("cgroup.controllers", "cpu\n"), ("memory/cgroup.procs", "")]);
    let trees = Trees::at(mounted.path());
    let error = Leaf::make(&trees, &wanted(LIMITS), &[]).unwrap_err();
    assert_eq!(error, "limit memory: this machine has no such cgroups", "`memory` is a cgroup of v2 here");
    let leaf = Leaf::make(&trees, &wanted(Limits::default()), &[]).unwrap();
    assert_eq!((leaf.parts.len(), leaf.oom_kills()), (1, None));
    let nothing = tempfile::tempdir().unwrap();
    let error = Leaf::make(&Trees::at(nothing.path()), &wanted(Limits::default()), &[]).unwrap_err();
    assert_eq!(error, "this machine has no cgroups");
}

#[test]
fn v1_has_a_directory_in_each_tree_that_is_needed() {
    let files =
        ["memory", "cpu,cpuacct", "pids", "devices", "freezer"].map(|name| format!("{name}/cgroup.procs"));
    let files: Vec<(&str, &str)> = files.iter().map(|file| (file.as_str(), "")).collect();
    let mounted = mounted(&files);
    let trees = Trees::at(mounted.path());
    let device = DeviceId { major: 7, minor: 3 };
    let leaf = Leaf::make(&trees, &wanted(LIMITS), &[device]).unwrap();
    leaf.join(Rest::All).unwrap();
    let mut expected = pairs(&files);
    expected.extend(pairs(&[
        ("cpu,cpuacct/wharfline/node/one/cpu.cfs_period_us", "100000"),
        ("cpu,cpuacct/wharfline/node/one/cpu.cfs_quota_us", "150000"),
        ("cpu,cpuacct/wharfline/node/one/tasks", "0"),
        ("devices/wharfline/node/one/devices.deny", "b 7:3 w"),
        ("devices/wharfline/node/one/tasks", "0"),
        ("memory/wharfline/node/one/memory.limit_in_bytes", "4096"),
        ("memory/wharfline/node/one/tasks", "0"),
        ("pids/wharfline/node/one/pids.max", "7"),
        ("pids/wharfline/node/one/tasks", "0"),
    ]));
    expected.sort();
    assert_eq!(written(mounted.path()), expected);
    let inner = mounted.path().join("memory/wharfline/node/one/inner");
    std::fs::create_dir(&inner).unwrap();
    for (directory, count) in [(inner.parent().unwrap(), 1), (&inner, 2)] {
        let text = format!("oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n");
        std::fs::write(directory.join("memory.oom_control"), text).unwrap();
    }
    assert_eq!(leaf.oom_kills(), Some(3), "each counts its own");
}

#[test]
fn without_limits_one_directory_counts_the_processes() {
    for (files, made) in [
        (&["cgroup.controllers"][..], ".."),
        (&["unified/cgroup.controllers", "memory/cgroup.procs", "pids/cgroup.procs"], "unified"),
        (&["memory/cgroup.procs", "pids/cgroup.procs"], "pids"),
    ] {
        let files: Vec<(&str, &str)> = files.iter().map(|file| (*file, "memory pids\n")).collect();
        let mounted = mounted(&files);
        let leaf = Leaf::make(&Trees::at(mounted.path()), &wanted(Limits::default()), &[]).unwrap();
        let parts: Vec<_> = leaf.parts.iter().map(|(_, directory)| directory.clone()).collect();
        let root = if made == ".." { mounted.path().to_owned() } else { mounted.path().join(made) };
        assert_eq!(parts, [root.join("wharfline/node/one")]);
    }
}

#[test]
fn a_hybrid_has_v2_first_and_takes_controllers_where_they_are() {
    let mounted = mounted(&[
        ("unified/cgroup.controllers", "hugetlb pids\n"),
        ("memory/cgroup.procs", ""),
        ("pids/cgroup.procs", ""),
    ]);
    let trees = Trees::at(mounted.path());
    let limits = Limits { cpu_millis: None, ..LIMITS };
    let leaf = Leaf::make(&trees, &wanted(limits), &[]).unwrap();
    assert_eq!(leaf.parts[0], (Tree::V2, mounted.path().join("unified/wharfline/node/one")));
    assert_eq!(leaf.parts.len(), 2, "{leaf:?}");
    let max = mounted.path().join("unified/wharfline/node/one/pids.max");
    assert_eq!(std::fs::read_to_string(max).unwrap(), "7");
}

#[test]
fn members_are_those_that_live() {
    let mounted = mounted(&[("cgroup.controllers", "")]);
    let trees = Trees::at(mounted.path());
    let leaf = Leaf::make(&trees, &wanted(Limits::default()), &[]).unwrap();
    let ourselves = i32::try_from(std::process::id()).unwrap();
    let inner = mounted.path().join("wharfline/node/one/inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(inner.join("cgroup.procs"), format!("{ourselves}\n0\n{}\n", i32::MAX)).unwrap();
    assert_eq!(leaf.members().unwrap(), [ourselves]);
    // A list that cannot be read is no empty one.
    let list = inner.join("cgroup.procs");
    std::fs::remove_file(&list).unwrap();
    std::fs::create_dir(&list).unwrap();
    assert!(leaf.members().is_err() && leaf.kill().is_err());
}

#[test]
fn only_plain_absolute_paths_of_two_names_are_paths() {
    for good in ["/a/b", "/wharfline/0f3a/uid.task"] {
        assert_eq!(fault_of(good), None, "{good}");
    }
    for bad in ["", "/", "/a", "a/b", "/a/", "//a", "/a/../b", "/a/./b", "/a/b\n"] {
        assert!(fault_of(bad).is_some(), "{bad:?}");
    }
}
