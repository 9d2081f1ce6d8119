//! What something else runs: taken as running until it is asked to end.
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::json;
use wharfline::api::allocation::Task;
use wharfline::node::runtime::external::External;
use wharfline::node::runtime::{Asked, Ended, Found, Kind, Order, Place, Runtime};

use crate::support::soon;

#[tokio::test]
async fn it_runs_from_its_start_to_its_stop_and_leaves_nothing() {
    let data = tempfile::tempdir().unwrap();
    let place = Place::new(data.path(), "6e3f", "main");
    let task: Task = serde_json::from_value(
        json!({ "name": "main", "runtime": { "external": { "socket": "/srv/${NODE_NAME}.sock" } } }),
    )
    .unwrap();
    let variables = [("NODE_NAME", "n0".to_owned())].into();
    assert_eq!(External.socket(&task, "/run/own".into(), &variables), PathBuf::from("/srv/n0.sock"));
    assert_eq!((External.kind(), External.runs()), (Kind::External, false));
    let order = Order {
        place: &place,
        name: "default/app".to_owned(),
        task: &task,
        variables,
        env: [].into(),
        grace: Duration::ZERO,
        volumes: Vec::new(),
        plugin: None,
    };
    let started = External.start(&order, Vec::new()).await.unwrap();
    let Found::Running(adopted) = External.adopt(&place).await.unwrap() else {
        panic!("it is taken as running")
    };
    for running in [started, adopted] {
        assert!(running.wait().now_or_never().is_none());
        assert_eq!(running.stop(Some(Duration::from_secs(3600))).unwrap(), Asked::Over);
        assert_eq!(soon(running.wait()).await.unwrap(), Ended::LetGo);
        assert_eq!(soon(running.wait()).await.unwrap(), Ended::LetGo, "asked again");
    }
    assert_eq!(External.clear(&place).await.unwrap(), 0);
    External.forget(&place).await.unwrap();
    assert!(External.list().await.unwrap().is_empty());
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
}
