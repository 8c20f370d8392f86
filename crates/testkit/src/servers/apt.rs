//! Fetches packages with `apt-get` and unpacks them with `dpkg`, without root and without changing the system: apt gets separate lists,
//! caches and sources in our folder. Where the packages come from and how to get there (mirror, proxy, credentials) is read from
//! the machine's configuration; Debian's keyring proves them genuine.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::ServerPackage;
use crate::command;
use crate::error::{Error, Result};
use crate::folder;

/// The keys of all suites, from the package `debian-archive-keyring`.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const ADVICE: &str = "the servers of the tests are unpacked from Debian's packages, which needs Debian with apt-get, dpkg and \
                      debian-archive-keyring";

/// Fetches and unpacks these servers into the folder. The caller must be its only writer.
pub(super) fn fetch(servers: &Path, wanted: &[&'static ServerPackage]) -> Result<()> {
    if !Path::new(KEYRING).is_file() {
        return Err(Error::new(format!("{KEYRING} is missing: {ADVICE}")));
    }
    let archives = archives()?;
    if archives.is_empty() {
        return Err(Error::new(format!("apt's configuration names no archive of packages: {ADVICE}, and a source of `main`")));
    }
    let mut refusals = String::new();
    let folder = servers.join("apt");
    for archive in &archives {
        prepare(&folder, archive, wanted)?;
        match download(&folder, wanted) {
            Ok(()) => {
                wanted.iter().try_for_each(|server| unpack(&folder, server, servers))?;
                return std::fs::remove_dir_all(&folder).map_err(Error::io(folder.display()));
            }
            Err(error) => refusals.extend(["\n", &error.to_string()]),
        }
    }
    let names: Vec<_> = wanted.iter().map(|server| format!("{} of {}", server.title(), server.suite().unwrap_or_default())).collect();
    Err(Error::new(format!("no archive of apt's configuration gave {}: {ADVICE}, and a network{refusals}", names.join(", "))))
}

/// The archives that the machine itself uses, in its order; those with security fixes only lack the suite that we need.
fn archives() -> Result<Vec<String>> {
    // Without release info, because that would leave out what `apt-get update` has not been called for.
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--no-release-info", "--format", format, "Created-By: Packages"]);
    let mut seen = BTreeSet::new();
    let fields = |line: &str| {
        let mut fields = line.split(' ').map(str::to_owned);
        Some((fields.next()?, fields.next()?, fields.next()?))
    };
    let targets = run(&mut command)?;
    let main = targets.lines().filter_map(fields).filter(|(_, release, component)| component == "main" && !release.contains("security"));
    Ok(main.map(|(archive, ..)| archive).filter(|archive| seen.insert(archive.clone())).collect())
}

/// Empties the folder and writes the configuration of an apt of our own there, with one source.
fn prepare(folder: &Path, archive: &str, wanted: &[&'static ServerPackage]) -> Result<()> {
    folder::empty(folder)?;
    for below in ["sources", "state", "lists/partial", "cache/archives/partial"] {
        let path = folder.join(below);
        std::fs::create_dir_all(&path).map_err(Error::io(path.display()))?;
    }
    let suites: BTreeSet<_> = wanted.iter().filter_map(|server| server.suite()).collect();
    let suites = suites.into_iter().collect::<Vec<_>>().join(" ");
    let source = format!("Types: deb\nURIs: {archive}\nSuites: {suites}\nComponents: main\nTargets: Packages\nSigned-By: {KEYRING}\n");
    let path = folder.display();
    let configuration = format!(
        "// The machine's hooks clean the machine's caches; ours are none of theirs.\n\
         #clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n\
         Dir::State \"{path}/state\";\nDir::State::lists \"{path}/lists\";\nDir::State::status \"{path}/status\";\n\
         Dir::Cache \"{path}/cache\";\nDir::Etc::sourcelist \"/dev/null\";\nDir::Etc::sourceparts \"{path}/sources\";\n\
         Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
         // As root, apt would go on as a user who may not write here.\nAPT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\nAcquire::Retries \"3\";\nAcquire::http::Timeout \"20\";\nAcquire::https::Timeout \"20\";\n"
    );
    for (name, text) in [("status", ""), ("sources/servers.sources", &source), ("apt.conf", &configuration)] {
        std::fs::write(folder.join(name), text).map_err(Error::io(folder.join(name).display()))?;
    }
    Ok(())
}

/// Downloads the packages of each server into a separate folder.
fn download(folder: &Path, wanted: &[&'static ServerPackage]) -> Result<()> {
    let configuration = folder.join("apt.conf");
    let apt = |packages: &Path| {
        let mut command = Command::new("apt-get");
        command.arg("--config-file").arg(&configuration).arg("--quiet").current_dir(packages);
        command
    };
    // Otherwise an unreachable list is only a warning, and the packages are missing without a reason.
    run(apt(folder).args(["update", "--error-on=any"]))?;
    for server in wanted {
        // Of two suites that have it, the server's own.
        let wanted = |package: &str| match server.version {
            version if package == server.package && !version.is_empty() => format!("{package}={version}*"),
            _ => format!("{package}/{}", server.suite().unwrap_or_default()),
        };
        let packages = server.folder(&folder.join("packages"));
        std::fs::create_dir_all(&packages).map_err(Error::io(packages.display()))?;
        run(apt(&packages).arg("download").args(server.packages().map(wanted)))?;
    }
    Ok(())
}

/// Unpacks next to the destination and moves the whole folder there.
fn unpack(folder: &Path, server: &ServerPackage, servers: &Path) -> Result<()> {
    // There may be two versions of one package.
    let (packages, unpacked) = (server.folder(&folder.join("packages")), server.folder(folder));
    for package in std::fs::read_dir(&packages).map_err(Error::io(packages.display()))? {
        let package = package.map_err(Error::io(packages.display()))?.path();
        run(Command::new("dpkg").arg("--extract").arg(package).arg(&unpacked))?;
    }
    server.adopt(&unpacked, servers)
}

fn run(command: &mut Command) -> Result<String> {
    command::run(command, ADVICE)
}
