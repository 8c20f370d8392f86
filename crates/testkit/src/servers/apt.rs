//! Fetches packages with `apt-get` and unpacks them with `dpkg`, without root and without changing the system: apt gets separate lists,
//! caches and sources in our folder. Where the packages come from and how to get there (mirror, proxy, credentials) is read from
//! the machine's configuration; Debian's keyring proves them genuine.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ServerPackage;
use crate::command;
use crate::error::{Error, Result};
use crate::folder;

/// The keys of all suites, from the package `debian-archive-keyring`.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The advice for a machine without Debian's tools.
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
    for archive in &archives {
        let from = Apt::prepare(&servers.join("apt"), archive, wanted)?;
        match from.download(wanted) {
            Ok(()) => {
                wanted.iter().try_for_each(|server| from.unpack(server, servers))?;
                return std::fs::remove_dir_all(&from.folder).map_err(Error::io(from.folder.display()));
            }
            Err(error) => {
                let _ = write!(refusals, "\n{error}");
            }
        }
    }
    let names: Vec<_> =
        wanted.iter().map(|server| format!("{} {} of {}", server.package, server.version, server.suite().unwrap_or_default())).collect();
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

/// An apt of our own, with one source.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// Empties the folder and writes apt's configuration there.
    fn prepare(folder: &Path, archive: &str, wanted: &[&'static ServerPackage]) -> Result<Self> {
        folder::empty(folder)?;
        for below in ["sources", "state", "lists/partial", "cache/archives/partial", "packages"] {
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
        Ok(Self { folder: folder.to_owned() })
    }

    fn command(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.arg("--config-file").arg(self.folder.join("apt.conf")).arg("--quiet").current_dir(self.folder.join("packages"));
        command
    }

    fn download(&self, wanted: &[&'static ServerPackage]) -> Result<()> {
        // Otherwise an unreachable list is only a warning, and the packages are missing without a reason.
        run(self.command().args(["update", "--error-on=any"]))?;
        for server in wanted {
            let mut command = self.command();
            // Of two suites that have it, the server's own.
            let wanted = |package: &str| match server.version {
                version if package == server.package && !version.is_empty() => format!("{package}={version}*"),
                _ => format!("{package}/{}", server.suite().unwrap_or_default()),
            };
            run(command.arg("download").args(server.packages().map(wanted)))?;
        }
        Ok(())
    }

    /// Unpacks beside the place where it belongs and moves it there whole.
    fn unpack(&self, server: &ServerPackage, servers: &Path) -> Result<()> {
        let unpacked = self.folder.join(server.package);
        for package in server.packages() {
            run(Command::new("dpkg").arg("--extract").arg(self.package(package)?).arg(&unpacked))?;
        }
        server.adopt(&unpacked, servers)
    }

    /// The file of a package that was fetched.
    fn package(&self, package: &str) -> Result<PathBuf> {
        let packages = self.folder.join("packages");
        let mut files = std::fs::read_dir(&packages).map_err(Error::io(packages.display()))?.filter_map(std::result::Result::ok);
        let start = format!("{package}_");
        let found = files.find(|file| file.file_name().to_string_lossy().starts_with(&start)).map(|file| file.path());
        found.ok_or_else(|| Error::new(format!("apt-get download left no package {package}")))
    }
}

fn run(command: &mut Command) -> Result<String> {
    command::run(command, ADVICE)
}
