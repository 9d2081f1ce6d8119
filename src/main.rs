//! Arguments and wiring only.
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next().as_deref().and_then(OsStr::to_str), arguments.next(), arguments.next()) {
        // Before anything else is touched: a shim stays small.
        (Some("shim"), Some(directory), None) => wharfline::sys::shim::run(Path::new(&directory)),
        (_, _, _) => ExitCode::from(2),
    }
}
