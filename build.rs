//! Generates the CSI messages, clients and servers from `proto/csi.proto`, and clients of containerd from
//! `proto/containerd`, without any protoc.
//!
//! The compiled descriptor, not a hand-kept list, decides what `Debug` hides: fields marked `csi_secret`, mount
//! flags (people put passwords there), and the values of volume and publish contexts (plugins put tokens there).
//! Beside the code it writes the descriptor set and the list of alpha elements, which tests compare with the facts.
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, MessageDescriptor};

const PROTO_DIR: &str = "proto";
const PROTO_FILE: &str = "csi.proto";
const PACKAGE: &str = "csi.v1";
/// What is used of containerd's API.
const CONTAINERD: &str = "containerd";

fn main() -> Result<(), Box<dyn Error>> {
    // `compile_fds` knows no paths, so nothing else would tell Cargo when to run again.
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={PROTO_DIR}/{PROTO_FILE}");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);

    let mut compiler = protox::Compiler::new([PROTO_DIR])?;
    compiler.include_imports(true).open_file(PROTO_FILE)?;
    // Only the encoded set keeps the extension options; the typed one below drops them.
    let encoded = compiler.encode_file_descriptor_set();
    let pool = DescriptorPool::decode(encoded.as_slice())?;

    let hiding = messages(&pool).into_iter().filter(hides_anything).collect::<Vec<_>>();
    fs::write(out.join("csi_descriptor.bin"), &encoded)?;
    fs::write(out.join("csi_debug.rs"), debug_impls(&hiding))?;
    write_list(&out.join("csi_alpha.rs"), &alpha_elements(&pool))?;

    tonic_prost_build::configure()
        .btree_map(".") // one order of encoding, so that an equal request has equal bytes
        .skip_debug(hiding.iter().map(|message| format!(".{}", message.full_name())))
        .emit_rerun_if_changed(false)
        .compile_fds(compiler.file_descriptor_set())?;
    containerd()
}

/// The clients of the few services of containerd's that are used.
fn containerd() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO_DIR}/{CONTAINERD}");
    let mut compiler = protox::Compiler::new([PROTO_DIR])?;
    for service in ["containers", "tasks", "version"] {
        compiler.include_imports(true).open_file(format!("{CONTAINERD}/{service}.proto"))?;
    }
    tonic_prost_build::configure()
        .build_server(false)
        .btree_map(".")
        .emit_rerun_if_changed(false)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// Every message of our package, nested ones too, without the entries that stand for maps.
fn messages(pool: &DescriptorPool) -> Vec<MessageDescriptor> {
    pool.all_messages()
        .filter(|message| message.package_name() == PACKAGE && !message.is_map_entry())
        .collect()
}

/// What `Debug` shows of one field.
enum Shown {
    Whole,
    CountOnly,
    KeysOnly,
}

fn shown(field: &FieldDescriptor) -> Shown {
    if marked(&field.options(), field.parent_pool(), "csi_secret") || field.name() == "mount_flags" {
        Shown::CountOnly
    } else if field.is_map() && matches!(field.name(), "volume_context" | "publish_context") {
        Shown::KeysOnly
    } else {
        Shown::Whole
    }
}

fn hides_anything(message: &MessageDescriptor) -> bool {
    message.fields().any(|field| !matches!(shown(&field), Shown::Whole))
}

/// `impl Debug` for each of `hiding`. None of these messages has a oneof; one that had would not compile.
fn debug_impls(hiding: &[MessageDescriptor]) -> String {
    let mut code = String::new();
    for message in hiding {
        let mut body = String::new();
        for field in message.fields() {
            let name = field.name();
            let value = match shown(&field) {
                Shown::Whole => format!("&self.{name}"),
                Shown::CountOnly => format!("&format_args!(\"<{{}} redacted>\", self.{name}.len())"),
                Shown::KeysOnly => format!("&self.{name}.keys().collect::<Vec<_>>()"),
            };
            let _ = writeln!(body, "            .field(\"{name}\", {value})");
        }
        let _ = write!(
            code,
            "impl ::core::fmt::Debug for {path} {{\n    \
                 fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{\n        \
                     f.debug_struct(\"{name}\")\n{body}            .finish()\n    }}\n}}\n",
            path = rust_path(message),
            name = message.name(),
        );
    }
    code
}

/// `csi.v1.VolumeCapability.MountVolume` is `volume_capability::MountVolume` in the generated code.
fn rust_path(message: &MessageDescriptor) -> String {
    match message.parent_message() {
        None => message.name().to_owned(),
        Some(parent) => {
            let outer = rust_path(&parent);
            let (path, last) = outer.rsplit_once("::").unwrap_or(("", &outer));
            let joint = if path.is_empty() { "" } else { "::" };
            format!("{path}{joint}{}::{}", snake_case(last), message.name())
        }
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// Full names of everything that the contract marks as alpha.
fn alpha_elements(pool: &DescriptorPool) -> Vec<String> {
    let mut alpha = Vec::new();
    for message in messages(pool) {
        if marked(&message.options(), pool, "alpha_message") {
            alpha.push(message.full_name().to_owned());
        }
        let fields = message.fields().filter(|field| marked(&field.options(), pool, "alpha_field"));
        alpha.extend(fields.map(|field| field.full_name().to_owned()));
    }
    for kind in pool.all_enums().filter(|kind| kind.package_name() == PACKAGE) {
        let values = kind.values().filter(|value| marked(&value.options(), pool, "alpha_enum_value"));
        alpha.extend(values.map(|value| format!("{}.{}", kind.full_name(), value.name())));
    }
    for service in pool.services().filter(|service| service.package_name() == PACKAGE) {
        if marked(&service.options(), pool, "alpha_service") {
            alpha.push(service.full_name().to_owned());
        }
        let methods = service.methods().filter(|method| marked(&method.options(), pool, "alpha_method"));
        alpha.extend(methods.map(|method| method.full_name().to_owned()));
    }
    alpha.sort();
    alpha
}

/// Whether the boolean option `csi.v1.<name>` is set.
fn marked(options: &DynamicMessage, pool: &DescriptorPool, name: &str) -> bool {
    pool.get_extension_by_name(&format!("{PACKAGE}.{name}"))
        .is_some_and(|extension| options.get_extension(&extension).as_bool() == Some(true))
}

fn write_list(path: &Path, names: &[String]) -> Result<(), Box<dyn Error>> {
    let mut code = String::from("&[\n");
    for name in names {
        writeln!(code, "    {name:?},")?;
    }
    code.push_str("]\n");
    Ok(fs::write(path, code)?)
}
