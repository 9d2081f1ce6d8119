//! A machine whose kernel says something else than it would: that it booted since, or for a while not which mounts there are.
use std::collections::HashSet;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use wharfline::node::Machine;
use wharfline::sys::Kernel;
use wharfline::sys::kernel::{
    Access, Checked, Given, KernelError, KernelFacts, MountId, MountRow, PathFacts, Prepared, Present,
    Removed,
};
use wharfline::sys::path::{HostPath, Place, SubPath, TreePath};

/// The machine after its next boot.
pub fn rebooted(machine: Machine) -> Machine {
    with(machine, Says::AnotherBoot)
}

/// The machine, which lists no mounts while there is a file `unlisted` beside the tree; how often it was to stands in there.
pub fn forgetful(machine: Machine) -> Machine {
    with(machine, Says::NoMounts)
}

/// The machine, which gives no files to a group while there is a file `ungiven` beside the tree, and does not come to an end with
/// it while there is one `walking`.
pub fn ungiving(machine: Machine) -> Machine {
    with(machine, Says::NoGroups)
}

fn with(machine: Machine, says: Says) -> Machine {
    Machine { kernel: Arc::new(Wrapped(Arc::clone(&machine.kernel), says)), ..machine }
}

#[derive(Debug, PartialEq)]
enum Says {
    AnotherBoot,
    NoMounts,
    NoGroups,
}

#[derive(Debug)]
struct Wrapped(Arc<dyn Kernel>, Says);

#[async_trait]
impl Kernel for Wrapped {
    async fn facts(&self) -> Result<KernelFacts, KernelError> {
        let facts = self.0.facts().await?;
        let boot_id = if self.1 == Says::AnotherBoot { "another-boot".into() } else { facts.boot_id };
        Ok(KernelFacts { boot_id, ..facts })
    }
    async fn prepare_tree(&self) -> Result<Prepared, KernelError> {
        self.0.prepare_tree().await
    }
    async fn undo_tree(&self) -> Result<(), KernelError> {
        self.0.undo_tree().await
    }
    fn absolute(&self, place: &Place) -> PathBuf {
        self.0.absolute(place)
    }
    async fn make_dir(&self, path: &TreePath) -> Result<(), KernelError> {
        self.0.make_dir(path).await
    }
    async fn remove(&self, path: &TreePath) -> Result<Removed, KernelError> {
        self.0.remove(path).await
    }
    async fn list(&self, path: &TreePath) -> Result<Vec<String>, KernelError> {
        self.0.list(path).await
    }
    async fn mount_facts(&self, place: &Place) -> Result<PathFacts, KernelError> {
        self.0.mount_facts(place).await
    }
    async fn mount_table(&self) -> Result<Vec<MountRow>, KernelError> {
        self.0.mount_table().await
    }
    async fn check_mount(&self, place: &Place) -> Result<Checked, KernelError> {
        self.0.check_mount(place).await
    }
    async fn mounts_among(&self, ids: &HashSet<MountId>) -> Result<Option<HashSet<MountId>>, KernelError> {
        let path = self.0.absolute(&Place::Tree(TreePath::root())).with_file_name("unlisted");
        if self.1 == Says::NoMounts
            && let Ok(mut file) = std::fs::OpenOptions::new().append(true).open(&path)
        {
            file.write_all(b".").unwrap();
            return Err(KernelError::Overloaded { path });
        }
        self.0.mounts_among(ids).await
    }
    async fn mounts_since(&self, id: MountId) -> Result<Option<Vec<MountRow>>, KernelError> {
        self.0.mounts_since(id).await
    }
    async fn mount_changes(&self) -> Result<BoxStream<'static, ()>, KernelError> {
        self.0.mount_changes().await
    }
    async fn unmount(&self, place: &Place, expected: MountId) -> Result<(), KernelError> {
        self.0.unmount(place, expected).await
    }
    async fn clone_mount(&self, path: &TreePath, verified: &Present) -> Result<OwnedFd, KernelError> {
        self.0.clone_mount(path, verified).await
    }
    async fn clone_directory(
        &self,
        path: &TreePath,
        verified: &Present,
        within: &SubPath,
    ) -> Result<OwnedFd, KernelError> {
        self.0.clone_directory(path, verified, within).await
    }
    async fn give_to_group(
        &self,
        path: &TreePath,
        verified: &Present,
        group: u32,
    ) -> Result<Given, KernelError> {
        let ungiven = self.0.absolute(&Place::Tree(TreePath::root())).with_file_name("ungiven");
        let mut again = tokio::time::interval(std::time::Duration::from_millis(20));
        while self.1 == Says::NoGroups && ungiven.with_file_name("walking").exists() {
            again.tick().await;
        }
        if self.1 == Says::NoGroups && ungiven.exists() {
            let (action, source) =
                ("give a group the files of", std::io::ErrorKind::ReadOnlyFilesystem.into());
            return Err(KernelError::Refused { action, path: ungiven, source });
        }
        self.0.give_to_group(path, verified, group).await
    }
    async fn publish_at_host(
        &self,
        from: &TreePath,
        verified: &Present,
        at: &HostPath,
        access: Access,
    ) -> Result<(), KernelError> {
        self.0.publish_at_host(from, verified, at, access).await
    }
    async fn unpublish_at_host(
        &self,
        at: &HostPath,
        verified: &Present,
        made: usize,
    ) -> Result<(), KernelError> {
        self.0.unpublish_at_host(at, verified, made).await
    }
}
