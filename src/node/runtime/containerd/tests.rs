//! What a shim is told of a container of containerd's, and what is told of a machine without it.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;

use super::super::preparations::Grants;
use super::*;
use crate::plan::container::Trust;
use crate::sys::containerd::{Contained, ContainerdError};
use crate::sys::random::RealRandom;
use crate::sys::real::{Pool, RealContainers, RealFiles, RealProcesses};

/// A containerd that has these, and remembers what it was asked.
#[derive(Debug, Default)]
struct Has {
    all: Vec<Contained>,
    strays: Vec<String>,
    called_for: Vec<PathBuf>,
    lack: Mutex<Option<Lack>>,
    /// So often it does not answer when it is to forget a task.
    silent: AtomicU32,
    asked: Mutex<Vec<String>>,
}

#[async_trait]
impl sys::Containerd for Has {
    async fn check(&self) -> Result<(), Lack> {
        self.lack.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    async fn list(&self) -> Result<Vec<Contained>, ContainerdError> {
        Ok(self.all.clone())
    }

    async fn called_for(&self, _: &Path) -> Vec<PathBuf> {
        self.called_for.clone()
    }

    async fn strays(&self) -> Result<Vec<String>, ContainerdError> {
        Ok(self.strays.clone())
    }

    async fn remove(&self, id: &str) -> Result<(), ContainerdError> {
        self.asked.lock().unwrap().push(id.to_owned());
        Ok(())
    }

    async fn remove_of(&self, directory: &Path, _: &Path) -> Result<(), ContainerdError> {
        self.asked.lock().unwrap().push(directory.display().to_string());
        let silent = self.silent.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match silent {
            Ok(_) => Err(ContainerdError::InDoubt { call: "forget it", said: "silence".to_owned() }),
            Err(_) => Ok(()),
        }
    }
}

fn runtime(data_dir: &Path, there: Option<Arc<Has>>) -> Containerd {
    let pool = Pool::new(1, Duration::from_secs(1));
    let (processes, files) = (RealProcesses::new(pool.clone()), RealFiles::new(pool));
    let shimmed = Shimmed::new(Arc::new(processes), Arc::new(files), data_dir, Path::new("/run/w/abc"));
    let grants = Grants { image_dirs: Vec::new(), bind_paths: Vec::new(), trust: Trust::Confined };
    let containers = there.as_ref().map(|_| Arc::new(RealContainers::new(data_dir)) as Arc<_>);
    let oci = Arc::new(Oci::new(shimmed.clone(), containers, Path::new("/run/w/abc"), grants));
    let there = there.map(|has| (has as Arc<dyn sys::Containerd>, PathBuf::from("/c.sock")));
    Containerd::new(oci, shimmed, there, Arc::new(RealRandom))
}

fn task() -> Task {
    let runtime = json!({ "containerd": { "archive": "/i" } });
    serde_json::from_value(json!({ "name": "main", "runtime": runtime })).unwrap()
}

#[tokio::test]
async fn without_it_nothing_is_begun_for_good() {
    let none = runtime(Path::new("/D"), None);
    let place = Place::new(Path::new("/D"), "u1", "main");
    let absent = Readiness::Unusable(Obstacle::Missing, Lack::Absent.to_string());
    assert_eq!(none.readiness(&place, (&task(), false)), absent);
    assert_eq!(none.look().await, Some(Lack::Absent));
    assert!(none.sweep().await.is_ok(), "there is nothing to look through");
    let order = Order {
        place: &place,
        name: "shop/app".into(),
        task: &task(),
        variables: BTreeMap::new(),
        env: BTreeMap::new(),
        grace: Duration::from_secs(3),
        volumes: Vec::new(),
        plugin: None,
    };
    assert!(matches!(none.spec(&order), Err(RuntimeError::Unprepared)));
}

#[tokio::test]
async fn what_does_not_answer_may_answer_later() {
    let has = Arc::new(Has::default());
    let there = runtime(Path::new("/D"), Some(Arc::clone(&has)));
    let place = Place::new(Path::new("/D"), "u1", "main");
    *has.lack.lock().unwrap() = Some(Lack::Containerd { said: "gone".to_owned() });
    // runc may be lacking here as well, which goes before.
    assert!(there.look().await.is_some_and(|lack| lack.may_end()));
    assert_eq!(there.readiness(&place, (&task(), false)), Readiness::Unprepared, "it is asked at each start");
}

#[tokio::test]
async fn only_what_is_known_to_be_nobodys_is_removed() {
    let data = tempfile::tempdir().unwrap();
    let tasks = data.path().join("tasks");
    std::fs::create_dir_all(tasks.join("u.known")).unwrap();
    let one = |id: &str, directory: PathBuf, runs| Contained { id: id.to_owned(), directory, runs };
    let all = vec![
        one("known", tasks.join("u.known"), false),
        one("gone", tasks.join("u.gone"), false),
        one("running", tasks.join("u.gone"), true),
        one("elsewhere", "/other/tasks/u.gone".into(), false),
        one("deeper", tasks.join("u.gone/x"), false),
    ];
    let has = Arc::new(Has { all, strays: vec!["forgotten".to_owned()], ..Has::default() });
    runtime(data.path(), Some(Arc::clone(&has))).sweep().await.unwrap();
    assert_eq!(*has.asked.lock().unwrap(), ["gone", "forgotten"]);
}

/// It was away when the task was forgotten, and is when the next daemon begins.
#[tokio::test(start_paused = true)]
async fn what_an_earlier_daemon_could_not_have_forgotten_is_removed_when_it_answers() {
    let data = tempfile::tempdir().unwrap();
    let tasks = data.path().join("tasks");
    std::fs::create_dir_all(tasks.join("u.known")).unwrap();
    let called_for = vec![tasks.join("u.known"), tasks.join("u.gone")];
    let has = Arc::new(Has { called_for, ..Has::default() });
    has.silent.store(2, Ordering::SeqCst);
    let runtime = runtime(data.path(), Some(Arc::clone(&has)));
    runtime.sweep().await.unwrap();
    let (all, _) = asked(&has, 3).await;
    assert_eq!(all, vec![tasks.join("u.gone").display().to_string(); 3]);
    runtime.join().await;
}

/// The places that it was asked about, once it was asked so often, and how long that took.
async fn asked(has: &Has, times: usize) -> (Vec<String>, Duration) {
    let began = tokio::time::Instant::now();
    let until = async {
        while has.asked.lock().unwrap().len() < times {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), until).await.unwrap();
    (has.asked.lock().unwrap().clone(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn what_it_does_not_forget_is_removed_when_it_answers_again() {
    let has = Arc::new(Has::default());
    let silent: Arc<dyn sys::Containerd> = Arc::<Has>::clone(&has);
    let (one, two) = (Path::new("/D/tasks/u.one"), Path::new("/D/tasks/u.two"));
    has.silent.store(3, Ordering::SeqCst);
    let left = Left::new();
    left.owe(one, &silent, Path::new("/R"));
    let (all, took) = asked(&has, 4).await;
    assert_eq!(all, ["/D/tasks/u.one"; 4]);
    assert!(took >= Duration::from_secs(1 + 2 + 4 + 8), "{took:?}: less and less often");
    // It is done, and what comes later begins anew.
    left.owe(two, &silent, Path::new("/R"));
    let (all, took) = asked(&has, 5).await;
    assert_eq!(all[4], "/D/tasks/u.two");
    assert!(took < Duration::from_secs(2), "{took:?}");

    // A task that starts at the place once more has removed what was there, and is not removed with it.
    left.owe(one, &silent, Path::new("/R"));
    left.owe(two, &silent, Path::new("/R"));
    left.spare(one).await;
    let (all, _) = asked(&has, 6).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!((all[5].as_str(), has.asked.lock().unwrap().len()), ("/D/tasks/u.two", 6));

    // Whoever ends does not wait for one that is silent.
    has.silent.store(u32::MAX, Ordering::SeqCst);
    left.owe(one, &silent, Path::new("/R"));
    asked(&has, 8).await;
    tokio::time::timeout(Duration::from_secs(1), left.join()).await.unwrap();
}
