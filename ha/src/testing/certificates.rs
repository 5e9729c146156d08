//! Certificates of a test's own authority for servers on the loopback interface, and the matching client
//! trust roots.
//!
//! The cryptography provider is always passed explicitly: nothing here depends on the process's default.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// An authority that no host trusts.
pub struct TestAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl TestAuthority {
    /// An authority with a new key.
    pub fn new() -> TestAuthority {
        let mut parameters = CertificateParams::new([]).expect("no name is no wrong name");
        // Two authorities with the same name would differ only by their signatures.
        let name = format!("an authority of tests, {:016x}", rand::random::<u64>());
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key can be generated");
        TestAuthority {
            issuer: CertifiedIssuer::self_signed(parameters, key).expect("its own certificate"),
        }
    }

    /// Its certificate as PEM, for `SSL_CERT_FILE`.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Writes its certificate into a file.
    pub fn write_to(&self, file: &Path) -> std::io::Result<()> {
        std::fs::write(file, self.pem())
    }

    /// The trust roots of a client that trusts only this authority.
    pub fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots
            .add(self.issuer.as_ref().der().clone())
            .expect("the certificate is whole");
        Arc::new(roots)
    }

    /// A TLS acceptor with a certificate for `name`: a host name or an IP address.
    pub fn acceptor(&self, name: &str) -> TlsAcceptor {
        let key = KeyPair::generate().expect("a key can be generated");
        let parameters = CertificateParams::new([name.to_owned()]).expect("a host or an address");
        let certificate = parameters
            .signed_by(&key, &self.issuer)
            .expect("a certificate can be signed");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has the usual versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("the key is the certificate's");
        TlsAcceptor::from(Arc::new(config))
    }
}

impl Default for TestAuthority {
    fn default() -> TestAuthority {
        TestAuthority::new()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
