//! [`RealUnits`], and the making of a unit: systemd's manager is spoken to over the system bus, each time over a new
//! connection. So a bus or a manager that was started anew is found, and nothing is held while nothing happens.
use crate::sys::containers::Lack;
use crate::sys::units::{UnitSpec, Units};
use async_trait::async_trait;
use futures::StreamExt as _;
use std::path::Path;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use zbus::message::Type;
use zbus::{Connection, MatchRule, Message, MessageStream, OwnedObjectPath, Variant};

/// This is there where systemd is PID 1, and nowhere else.
const BOOTED: &str = "/run/systemd/system";
/// Its manager's name on the bus.
const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// What it says of a name that is taken.
const EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
/// How long it may take to make a unit.
const MAKE: Duration = Duration::from_secs(20);
/// How long an earlier unit of that name may take to go before it is asked again.
const GO: Duration = Duration::from_secs(2);
/// How long it may take to answer at all.
const ANSWER: Duration = Duration::from_secs(5);
/// Units that are made at once: each has a connection, of which a user has 256 on a bus, and systemd makes them one by one.
static TURNS: Semaphore = Semaphore::const_new(16);

/// The systemd of this machine.
#[derive(Debug)]
pub struct RealUnits(());

impl RealUnits {
    /// It, if it is PID 1.
    pub fn booted() -> Option<Self> {
        Path::new(BOOTED).is_dir().then_some(Self(()))
    }
}

#[async_trait]
impl Units for RealUnits {
    async fn check(&self) -> Result<(), Lack> {
        let asked = async {
            let manager = connect().await?;
            manager.call("Subscribe", &()).await
        };
        let said = match timeout(ANSWER, asked).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it took too long".to_owned(),
        };
        Err(Lack::Manager { said })
    }
}

/// Has systemd put a process into a new unit, which has it when this returns; or says in a sentence why not. An earlier unit
/// of this name is ended first: nobody calls this while a task is in it.
pub(crate) async fn enclose(unit: &UnitSpec, pid: i32) -> Result<(), String> {
    let UnitSpec { name, .. } = unit;
    // It is never closed.
    let _turn = TURNS.acquire().await;
    let why = match timeout(MAKE, make(unit, pid)).await {
        Ok(Ok(result)) if result == "done" => return Ok(()),
        Ok(Ok(result)) => format!("its job came to \"{result}\""),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it took too long".to_owned(),
    };
    Err(format!("systemd did not make the unit {name}: {why}"))
}

async fn make(unit: &UnitSpec, pid: i32) -> zbus::Result<String> {
    let manager = connect().await?;
    manager.call("Subscribe", &()).await?;
    // Before it is asked: the answer may come late, and the news of it early.
    let mut jobs = manager.hear("JobRemoved", (2, &unit.name)).await?;
    let mut removed = manager.hear("UnitRemoved", (0, &unit.name)).await?;
    let aux: Vec<(String, Vec<(String, Variant<'_>)>)> = Vec::new();
    let body = (unit.name.as_str(), "fail", properties(unit, pid), aux);
    let job = loop {
        match manager.call("StartTransientUnit", &body).await {
            Ok(answer) => break answer.body().deserialize::<OwnedObjectPath>()?,
            Err(error) if says(&error, EXISTS) => manager.retire(&unit.name, &mut removed).await,
            Err(error) => return Err(error),
        }
    };
    while let Some(news) = jobs.next().await {
        let news = news?;
        let (_, of, _, result): (u32, OwnedObjectPath, String, String) = news.body().deserialize()?;
        if of == job {
            return Ok(result);
        }
    }
    Err(zbus::Error::Failure("it closed the connection".to_owned()))
}

/// What systemd is told of a unit.
fn properties(unit: &UnitSpec, pid: i32) -> Vec<(&'static str, Variant<'_>)> {
    let text = |text: &'static str| Variant::from(text);
    let mut all = vec![
        ("Description", Variant::from(unit.description.as_str())),
        ("Slice", Variant::from(unit.slice.as_str())),
        ("PIDs", Variant::from(vec![pid.unsigned_abs()])),
        // What is beneath its cgroup is ours.
        ("Delegate", Variant::from(true)),
        // How a task ended is on record; a unit that failed would stay and be looked at.
        ("CollectMode", text("inactive-or-failed")),
        ("KillMode", text("control-group")),
        ("TimeoutStopUSec", Variant::from(unit.stop_after_ms.saturating_mul(1000))),
        // Its count says whom the kernel killed.
        ("MemoryAccounting", Variant::from(true)),
    ];
    if let Some(bytes) = unit.limits.memory_bytes {
        all.push(("MemoryMax", Variant::from(bytes)));
    }
    if let Some(millis) = unit.limits.cpu_millis {
        all.push(("CPUQuotaPerSecUSec", Variant::from(millis.saturating_mul(1000))));
    }
    if let Some(pids) = unit.limits.pids {
        // The shim is one.
        all.push(("TasksMax", Variant::from(u64::from(pids) + 1)));
    }
    all
}

/// Whether it is the error of this name.
fn says(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(of, _, _) if of.as_str() == name)
}

/// systemd's manager.
struct Manager(Connection);

async fn connect() -> zbus::Result<Manager> {
    Ok(Manager(zbus::connection::Builder::system().method_timeout(MAKE).build().await?))
}

impl Manager {
    async fn call<B>(&self, method: &str, body: &B) -> zbus::Result<Message>
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        self.0.call_method(Some(NAME), PATH, Some(MANAGER), method, body).await
    }

    /// News of this name of which one argument is that.
    async fn hear(&self, member: &str, (at, argument): (u8, &str)) -> zbus::Result<MessageStream> {
        // Anybody may send signals: only those of systemd count.
        let rule = MatchRule::builder().msg_type(Type::Signal).sender(NAME).interface(MANAGER).member(member);
        MessageStream::for_match_rule(rule.arg(at, argument).build()?, &self.0, None).await
    }

    /// Ends what is left of an earlier unit, and waits for a while until it is gone. Each step may find it gone.
    async fn retire(&self, name: &str, removed: &mut MessageStream) {
        let until = Instant::now() + GO;
        let _gone = self.call("KillUnit", &(name, "all", 9_i32)).await;
        let _gone = self.call("StopUnit", &(name, "replace")).await;
        let _gone = self.call("ResetFailedUnit", &(name,)).await;
        let _asked_again = timeout_at(until, removed.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::cgroup::Limits;

    fn unit(limits: Limits) -> UnitSpec {
        UnitSpec {
            name: "wharfline-n-u-main.scope".to_owned(),
            slice: "wharfline.slice".to_owned(),
            description: "a task".to_owned(),
            limits,
            stop_after_ms: 15_000,
        }
    }

    #[test]
    fn what_systemd_is_told() {
        let of = |limits| -> Vec<(&'static str, String)> {
            let unit = unit(limits);
            properties(&unit, 7).into_iter().map(|(name, value)| (name, format!("{value:?}"))).collect()
        };
        let usual = of(Limits::default());
        let names: Vec<&str> = usual.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            [
                "Description",
                "Slice",
                "PIDs",
                "Delegate",
                "CollectMode",
                "KillMode",
                "TimeoutStopUSec",
                "MemoryAccounting"
            ]
        );
        assert!(usual[6].1.contains("15000000"), "{usual:?}");
        let limited = Limits { memory_bytes: Some(1 << 20), cpu_millis: Some(1500), pids: Some(32) };
        for (had, wanted) in of(limited)[usual.len()..].iter().zip([
            ("MemoryMax", "1048576"),
            ("CPUQuotaPerSecUSec", "1500000"),
            ("TasksMax", "33"),
        ]) {
            assert!(had.0 == wanted.0 && had.1.contains(wanted.1), "{had:?} {wanted:?}");
        }
    }
}
