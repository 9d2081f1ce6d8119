//! `wharfline csi loop` as a command: its arguments, its start, what never shows in its log.
use std::path::Path;

use clap::Parser;
use wharfline::csi::proto;
use wharfline::drivers::loopback::{DEFAULT_LIMIT, Mode, Server, Settings, StartError};
use wharfline::run::csi::{Args, Driver, LoopArgs};

use crate::rig::{self, Backend, MIB, ext4, stage};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    csi: Args,
}

fn parse(arguments: &[&str]) -> Result<LoopArgs, clap::Error> {
    let all = ["csi", "loop"].iter().chain(arguments);
    Command::try_parse_from(all).map(|command| match command.csi.driver {
        Driver::Loop(arguments) => arguments,
        other @ (Driver::Dir(_) | Driver::Btrfs(_) | Driver::Chaos(_)) => panic!("{other:?}"),
    })
}

#[test]
fn arguments_of_the_contract() {
    let given = ["--endpoint", "unix:///run/x.sock", "--node-id", "n1", "--data-dir", "/var/lib/x"];
    let parsed = parse(&given).unwrap();
    assert_eq!(parsed.common.endpoint, "unix:///run/x.sock");
    assert_eq!(
        (parsed.common.node_id.as_str(), parsed.common.data_dir.as_path()),
        ("n1", Path::new("/var/lib/x"))
    );
    assert_eq!((parsed.common.mode, parsed.max_volumes_per_node), (Mode::All, DEFAULT_LIMIT));
    for (word, mode) in [("controller", Mode::Controller), ("node", Mode::Node), ("all", Mode::All)] {
        assert_eq!(parse(&[&given[..], &["--mode", word]].concat()).unwrap().common.mode, mode);
    }
    let limited = |limit| parse(&[&given[..], &["--max-volumes-per-node", limit]].concat());
    assert_eq!(limited("3").unwrap().max_volumes_per_node, 3);
    for bad in ["0", "-1", "65536", "many"] {
        assert!(limited(bad).is_err(), "{bad}");
    }
    assert!(parse(&given[..4]).is_err(), "a data directory is needed");
    let help = <Command as clap::CommandFactory>::command();
    let help = help.find_subcommand("loop").unwrap();
    let env = |name: &str| help.get_arguments().find(|one| one.get_id() == name).and_then(clap::Arg::get_env);
    assert_eq!(env("endpoint"), Some("CSI_ENDPOINT".as_ref()));
    assert_eq!(env("node_id"), Some("NODE_NAME".as_ref()));
}

#[tokio::test]
async fn a_start_that_cannot_be_says_why() {
    let backend = Backend::new();
    let settings = |node_id: &str, data_dir: &str| Settings {
        endpoint: format!("unix://{}", backend.path("a.sock").display()),
        node_id: node_id.to_owned(),
        data_dir: backend.path(data_dir),
        mode: Mode::All,
        max_volumes: 1,
        programs: rig::programs(),
        topology: None,
    };
    std::fs::write(backend.path("file"), "").unwrap();
    assert!(matches!(Server::bind(&settings("../n", "D")).unwrap_err(), StartError::NodeId(_)));
    assert!(matches!(Server::bind(&settings("n", "file")).unwrap_err(), StartError::Data(_)));
    let topology = Some("no/topology".to_owned());
    let unreachable = Settings { topology, ..settings("n", "D") };
    assert!(matches!(Server::bind(&unreachable).unwrap_err(), StartError::Topology(_)));
    let first = Server::bind(&settings("n", "D")).unwrap();
    assert!(matches!(Server::bind(&settings("n", "D")).unwrap_err(), StartError::Endpoint(_)));
    drop(first);
}

#[tokio::test]
async fn no_secret_and_no_token_is_in_the_log() {
    let backend = Backend::new();
    let variables = vec![("RUST_LOG", "trace".into())];
    let driver = backend.start("node-a", rig::How { variables, ..Default::default() });
    let secrets = || [("password".to_owned(), "canary".to_owned())].into();
    let mut create = rig::create("web", 16 * MIB, &ext4());
    create.secrets = secrets();
    let id = driver.create(create).await.unwrap().volume_id;
    let request =
        proto::ControllerPublishVolumeRequest { secrets: secrets(), ..rig::attach(&id, "node-a", &ext4()) };
    let answer = driver.controller().controller_publish_volume(request).await.unwrap().into_inner();
    let staging = backend.staging("web");
    let mut staged = stage(&id, &answer.publish_context, &staging, &ext4());
    staged.secrets = secrets();
    driver.stage(staged.clone()).await.unwrap();
    let mut published = rig::publish(&staged, &backend.target("web"));
    published.secrets = secrets();
    driver.publish(published).await.unwrap();
    driver.unpublish(&id, &backend.target("web")).await.unwrap();
    driver.unstaged(&id, &staging).await;
    driver.detach(&id, "node-a").await.unwrap();
    driver.delete(&id).await.unwrap();
    let log = driver.log();
    for word in ["created", "attached", "formatted", "staged", "published", "unstaged", "detached", "deleted"]
    {
        assert!(log.contains(word), "{word} is missing in\n{log}");
    }
    for never in ["canary", answer.publish_context["attachment"].as_str()] {
        assert!(!log.contains(never), "{never} is in\n{log}");
    }
    driver.stop().await;
    backend.assert_nothing_left();
}
