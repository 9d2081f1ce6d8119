//! `backup`: the whole store in a file.
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::cli::args::Backup;
use crate::cli::failure::Failure;
use crate::cli::session::Session;

pub(crate) async fn run(session: &mut Session<'_>, args: &Backup) -> Result<(), Failure> {
    let path = Path::new(&args.output);
    let trouble = |error: &std::io::Error| {
        Failure::failed(format!("{} cannot be written", path.display())).because(error.to_string())
    };
    if path.exists() {
        return Err(Failure::usage(format!("{} exists already; a backup replaces no file", path.display())));
    }
    // Under its own name only once it is whole.
    let beside =
        path.with_file_name(format!(".{}.part", path.file_name().unwrap_or_default().to_string_lossy()));
    let mut options = std::fs::OpenOptions::new();
    // One that was left there may be somebody else's, or a link.
    let _left = std::fs::remove_file(&beside);
    let file = options.write(true).create_new(true).mode(0o600).open(&beside);
    let mut file = file.map_err(|error| trouble(&error))?;
    let taken = session.wire.lines("/bootstrap/v1/backup", |line| file.write_all(line)).await;
    let whole = taken.and_then(|last| {
        let end: serde_json::Value = serde_json::from_slice(&last).unwrap_or_default();
        let Some(keys) = end["end"]["keys"].as_u64() else {
            return Err(Failure::failed("the server broke off; there is no backup"));
        };
        file.sync_all().and_then(|()| std::fs::rename(&beside, path)).map_err(|error| trouble(&error))?;
        Ok(keys)
    });
    match whole {
        Ok(keys) => {
            session.say(format_args!("{}: {keys} keys", path.display()))?;
            session.note(
                "Keep the server's pki directory with it: without its sealing key no Secret in it can be read.",
            );
            Ok(())
        }
        Err(failure) => {
            let _gone = std::fs::remove_file(&beside);
            Err(failure)
        }
    }
}
