//! Certificates: a CA of the test's own and what it signs, good and bad, as files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::folder;

/// The names of a server on this machine.
const HERE: [&str; 2] = ["127.0.0.1", "localhost"];

/// Bytes that make one line of PEM.
const PEM_LINE: usize = 48;

/// A certificate authority, and a folder with its certificate and those it signed.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Kept while anybody may read a file in it.
    folder: Arc<TempDir>,
}

/// A certificate with its key, as PEM files that last as long as this.
#[derive(Clone, Debug)]
pub struct CertIdentity {
    folder: Arc<TempDir>,
    name: String,
}

/// The certificate of a server, and whether it demands one of its clients that the same authority has signed.
#[derive(Clone, Debug)]
pub(crate) struct ServerTls {
    pub(crate) identity: CertIdentity,
    pub(crate) demands_certificates: bool,
}

impl Authority {
    /// A new authority, trusted only by programs that are configured to trust it.
    pub fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let folder = folder::temporary("certs")?;
        let mut params = CertificateParams::new(Vec::new())?;
        // Two authorities of one name would be taken for one whose signature is wrong.
        let name = format!("authority {} of a test", COUNT.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        write(&folder.path().join("ca.pem"), "CERTIFICATE", issuer.der())?;
        Ok(Self { issuer, folder: Arc::new(folder) })
    }

    /// The authority's certificate, for clients that must trust it.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// For a server on this machine.
    pub fn server(&self) -> Result<CertIdentity> {
        self.sign("server", &HERE, false)
    }

    /// For a client; the name is the certificate's common name.
    pub fn client(&self, name: &str) -> Result<CertIdentity> {
        self.sign(name, &[], false)
    }

    /// For a server on this machine or a client, and long expired.
    pub fn expired(&self) -> Result<CertIdentity> {
        self.sign("expired", &HERE, true)
    }

    /// For a server with that name only, which therefore fits none on this machine.
    pub fn server_named(&self, name: &str) -> Result<CertIdentity> {
        self.sign(name, &[name], false)
    }

    /// Server and client at once, because members of a cluster are both to each other.
    fn sign(&self, name: &str, hosts: &[&str], expired: bool) -> Result<CertIdentity> {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if expired {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let identity = CertIdentity { folder: self.folder.clone(), name: name.to_owned() };
        write(&identity.certificate(), "CERTIFICATE", certificate.der())?;
        write(&identity.key(), "PRIVATE KEY", &key.serialize_der())?;
        Ok(identity)
    }
}

impl CertIdentity {
    /// The certificate.
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join(format!("{}.pem", self.name))
    }

    /// Its private key.
    pub fn key(&self) -> PathBuf {
        self.folder.path().join(format!("{}-key.pem", self.name))
    }

    /// The certificate of the authority that signed it.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }
}

/// Writes a file in PEM; rcgen could do it, with a second version of the crate for base64.
fn write(path: &Path, label: &str, der: &[u8]) -> Result<()> {
    let lines: Vec<_> = der.chunks(PEM_LINE).map(|bytes| BASE64_STANDARD.encode(bytes)).collect();
    let text = format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"));
    std::fs::write(path, text).map_err(Error::io(path.display()))
}
