//! Makes a static library from the SystemVerilog of each top. Leaves libraries as they are whose sources did not
//! change.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use crate::generate;
use crate::tops::{Top, tops};

/// Flags of Verilator. Assertions are on: a failed one is a panic (`src/model.rs`).
const FLAGS: &[&str] = &["--cc", "-Wall", "--assert", "-O3", "--x-assign", "fast", "--x-initial", "fast"];
/// Optimisation level of the C++ compiler.
const OPTIMISATION: u32 = 1;
/// Files that, besides a top's sources, determine its library.
const OURS: &[&str] = &[
    include_str!("generate.rs"),
    include_str!("verilate.rs"),
    include_str!("../shim/runtime.h"),
    include_str!("../shim/runtime.cpp"),
];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Verilator isn't there ({0}): apt install verilator, or build without the feature `verilate`")]
    NoVerilator(io::Error),
    #[error("Verilator refuses {top}; correct what it complains of:\n{output}")]
    Refused { top: String, output: String },
    #[error("no file {0}.sv below rtl/: correct the name in crates/rtl/build/tops.rs")]
    NoTop(String),
    #[error("{top} has a port that Rust can't be given: `{line}`; make it packed, an input or an output")]
    Port { top: String, line: String },
    #[error("{top} doesn't compile: {error}; a C++17 compiler is needed (apt install g++)")]
    Compile { top: String, error: cc::Error },
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
}

/// Paths and settings of the build.
struct Places {
    root: PathBuf,
    /// The directory `shim/` of this crate.
    shim: PathBuf,
    /// Verilator's own headers and sources.
    library: PathBuf,
    /// The directory in which libraries are built. All profiles share it, because they make no difference to C++.
    build: PathBuf,
    /// Cargo's directory for the output of this crate's build.
    out: PathBuf,
    version: String,
    trace: bool,
    /// Whether nothing is to run, so that C++ is not compiled.
    only_checks: bool,
}

pub fn run() -> Result<(), Error> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let [trace, only_checks] =
        ["VIADUCT_RTL_TRACE", "VIADUCT_RTL_CHECK"].map(|name| env::var_os(name).is_some());
    let kind = match (trace, only_checks) {
        (_, true) => "rtl/check",
        (true, _) => "rtl/trace",
        _ => "rtl/plain",
    };
    // From target/PROFILE/build/rtl-HASH/out.
    let build = out.ancestors().nth(4).unwrap_or(&out).join(kind);
    let places = Places {
        build,
        root: here.ancestors().nth(2).unwrap_or(&here).to_owned(),
        shim: here.join("shim"),
        library: PathBuf::from(ask_verilator(&["--getenv", "VERILATOR_ROOT"])?).join("include"),
        out,
        version: ask_verilator(&["--version"])?,
        trace,
        only_checks,
    };
    let rtl = places.root.join("rtl");
    for changed in [&rtl, &here.join("build"), &places.shim] {
        println!("cargo::rerun-if-changed={}", changed.display());
    }
    println!("cargo::rerun-if-env-changed=VIADUCT_RTL_TRACE");
    println!("cargo::rerun-if-env-changed=VIADUCT_RTL_CHECK");
    make_directory(&places.build)?;
    let lock = places.build.join("lock");
    let lock_error = |error| Error::File { path: lock.clone(), error };
    let locked = fs::File::create(&lock).and_then(|file| file.lock().map(|()| file)).map_err(lock_error)?;

    println!("cargo::rustc-link-search=native={}", places.out.display());
    let mut built = Vec::new();
    for top in tops() {
        built.push((top, build_top(&places, &rtl, top)?));
    }
    let variants = |of: &'static str| built.iter().filter(move |(top, _)| top.variant_of == Some(of));
    let structs = built.iter().filter(|(top, _)| top.variant_of.is_none());
    let structs: String = structs
        .map(|(top, ports)| {
            let variants: Vec<_> =
                variants(top.name).map(|(top, ports)| (top.name, ports.as_slice())).collect();
            generate::rust(top.name, ports, &variants)
        })
        .collect();
    build_runtime(&places)?;
    drop(locked);
    println!("cargo::rustc-link-lib=stdc++");
    write(&places.out.join("tops.rs"), &structs)
}

/// Verilates and compiles a top, unless it is up to date. Returns its ports.
fn build_top(places: &Places, rtl: &Path, top: &Top) -> Result<Vec<generate::Port>, Error> {
    let Top { name, arguments, .. } = *top;
    let directory = places.build.join(name);
    let stamp = || stamp(places, &sources_of(&directory, name), arguments);
    if !is_current(&directory, &stamp()) {
        empty(&directory)?;
        verilate(places, rtl, &directory, top)?;
        write(&directory.join("shim.cpp"), &generate::shim(name, &ports_of(&directory, name)?))?;
        let runs_once = |file: &str| file.ends_with("Slow.cpp");
        let once = units(&directory, "once", runs_once)?;
        let often = units(&directory, "often", |file| !runs_once(file))?;
        compile(places, &directory, name, &once, &often)?;
        write(&directory.join("stamp"), &stamp())?;
    }
    link(places, &directory, name)?;
    ports_of(&directory, name)
}

fn build_runtime(places: &Places) -> Result<(), Error> {
    let directory = places.build.join("runtime");
    let stamp = stamp(places, &[], &[]);
    if !is_current(&directory, &stamp) {
        empty(&directory)?;
        compile(places, &directory, "runtime", &[], &[places.shim.join("runtime.cpp")])?;
        write(&directory.join("stamp"), &stamp)?;
    }
    link(places, &directory, "runtime")
}

fn verilate(places: &Places, rtl: &Path, directory: &Path, top: &Top) -> Result<(), Error> {
    let Top { name, module, arguments, .. } = top;
    let file = files(rtl, |file| file == format!("{module}.sv"))?.pop();
    let file = file.ok_or_else(|| Error::NoTop((*module).to_owned()))?;
    let mut command = Command::new("verilator");
    command.current_dir(&places.root).args(FLAGS);
    command.args(["--top-module", module, "--prefix", &format!("V{name}")]);
    command.arg("--Mdir").arg(directory);
    if places.trace {
        command.arg("--trace");
    }
    // Relative paths, which messages show.
    let relative = |path: &Path| path.strip_prefix(&places.root).unwrap_or(path).to_owned();
    for library in directories(rtl)? {
        command.arg("-y").arg(relative(&library));
    }
    // The checks that this file switches off are off for the files after it.
    command.arg("rtl/lint.vlt");
    for argument in *arguments {
        let option = argument.starts_with('-');
        command.arg(if option { PathBuf::from(argument) } else { Path::new("rtl").join(argument) });
    }
    let output = command.arg(relative(&file)).output().map_err(Error::NoVerilator)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Refused { top: (*name).to_owned(), output: said })
}

/// Compiles into a library. Does not optimise code in `once`, which runs only when a model is made.
fn compile(
    places: &Places,
    directory: &Path,
    name: &str,
    once: &[PathBuf],
    often: &[PathBuf],
) -> Result<(), Error> {
    if places.only_checks {
        return Ok(());
    }
    let build = |level, sources: &[PathBuf]| {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").opt_level(level).debug(false).warnings(false).cargo_metadata(false);
        build.include(&places.library).include(places.library.join("vltstd"));
        build.include(&places.shim).include(directory);
        build.define("VL_TIME_CONTEXT", None).define("VM_TRACE", if places.trace { "1" } else { "0" });
        build.files(sources).out_dir(directory);
        build
    };
    let library = || {
        let objects = build(0, once).try_compile_intermediates()?;
        build(OPTIMISATION, often).objects(objects).try_compile(&format!("rtl_{name}"))
    };
    library().map_err(|error| Error::Compile { top: name.to_owned(), error })
}

/// Writes files that include the generated ones whose names match. Each includes so many that the compiler doesn't
/// spend its time on headers, and so few that several compilers share the work.
fn units(directory: &Path, prefix: &str, matches: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, Error> {
    const BYTES: usize = 256 << 10;
    let (mut texts, mut room) = (Vec::<String>::new(), 0);
    for source in files(directory, |name| name.ends_with(".cpp") && matches(name))? {
        let bytes = read(&source)?.len();
        if bytes > room {
            texts.push(String::new());
            room = BYTES;
        }
        room = room.saturating_sub(bytes);
        if let Some(text) = texts.last_mut() {
            *text += &format!("#include \"{}\"\n", source.display());
        }
    }
    let unit = |(number, text): (usize, String)| {
        let path = directory.join(format!("{prefix}{number}.cc"));
        write(&path, &text).map(|()| path)
    };
    texts.into_iter().enumerate().map(unit).collect()
}

/// Tells Cargo to link a library: a copy, which builds of other profiles leave alone.
fn link(places: &Places, directory: &Path, name: &str) -> Result<(), Error> {
    if places.only_checks {
        return Ok(());
    }
    let file = format!("librtl_{name}.a");
    let copied = fs::copy(directory.join(&file), places.out.join(&file));
    copied.map_err(|error| Error::File { path: places.out.join(&file), error })?;
    println!("cargo::rustc-link-lib=static=rtl_{name}");
    Ok(())
}

fn ports_of(directory: &Path, top: &str) -> Result<Vec<generate::Port>, Error> {
    let header = read(&directory.join(format!("V{top}.h")))?;
    generate::ports(&header).map_err(|line| Error::Port { top: top.to_owned(), line })
}

/// Returns the files that Verilator read for a top the last time; empty if there was no last time.
fn sources_of(directory: &Path, top: &str) -> Vec<PathBuf> {
    let rule = fs::read_to_string(directory.join(format!("V{top}__ver.d"))).unwrap_or_default();
    rule.split_once(" : ")
        .map(|(_, read)| read.split_whitespace().map(PathBuf::from).collect())
        .unwrap_or_default()
}

/// Returns a hash of everything of which a library is made.
fn stamp(places: &Places, sources: &[PathBuf], arguments: &[&str]) -> String {
    let mut hasher = DefaultHasher::new();
    (FLAGS, OURS, &places.version, places.trace, arguments).hash(&mut hasher);
    for source in sources.iter().filter(|source| source.extension().is_some()) {
        (source, fs::read(places.root.join(source)).ok()).hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

fn is_current(directory: &Path, stamp: &str) -> bool {
    fs::read_to_string(directory.join("stamp")).is_ok_and(|done| done == stamp)
}

fn ask_verilator(question: &[&str]) -> Result<String, Error> {
    let output = Command::new("verilator").args(question).output().map_err(Error::NoVerilator)?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the files below a directory whose names match, sorted.
fn files(directory: &Path, matches: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for directory in directories(directory)? {
        let entries = entries(&directory)?.into_iter();
        found.extend(
            entries.filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(&matches)),
        );
    }
    Ok(found)
}

/// Returns a directory and all those below it, sorted.
fn directories(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = vec![directory.to_owned()];
    for path in entries(directory)?.into_iter().filter(|path| path.is_dir()) {
        found.extend(directories(&path)?);
    }
    Ok(found)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let list = || fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
    let mut entries = list().map_err(|error| Error::File { path: directory.to_owned(), error })?;
    entries.sort();
    Ok(entries)
}

fn empty(directory: &Path) -> Result<(), Error> {
    let _ = fs::remove_dir_all(directory);
    make_directory(directory)
}

fn make_directory(directory: &Path) -> Result<(), Error> {
    fs::create_dir_all(directory).map_err(|error| Error::File { path: directory.to_owned(), error })
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|error| Error::File { path: path.to_owned(), error })
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|error| Error::File { path: path.to_owned(), error })
}
