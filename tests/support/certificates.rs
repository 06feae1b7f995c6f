//! Certificates made by openssl for one test: an authority, and whom it vouches for. Owns a directory that goes with it.

#![allow(dead_code)] // each test binary uses its own part

use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Authority {
    pub dir: PathBuf,
}

impl Authority {
    pub fn new() -> Authority {
        let dir = nix::unistd::mkdtemp("/tmp/pem-XXXXXX").expect("a directory in /tmp");
        let authority = Authority { dir };
        let (key, cert) = (authority.file("ca.key"), authority.cert());
        openssl(
            &[&NEW_KEY[..], &["-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", &key, "-out", &cert]]
                .concat(),
        );
        authority
    }

    pub fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Of the authority itself.
    pub fn cert(&self) -> String {
        self.file("ca.pem")
    }

    /// `NAME.pem` and `NAME.key`, for this machine's loopback; the files are replaced whole.
    pub fn vouch_for(&self, name: &str, cn: &str) -> (String, String) {
        self.vouch(name, cn, "IP:127.0.0.1,DNS:localhost")
    }

    /// For one name and nothing else.
    pub fn vouch_for_host(&self, name: &str, host: &str) -> (String, String) {
        self.vouch(name, host, &format!("DNS:{host}"))
    }

    fn vouch(&self, name: &str, cn: &str, alternatives: &str) -> (String, String) {
        let (cert, key, csr, ext) =
            (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")), self.file("csr"), self.file("ext"));
        let (new_cert, new_key) = (format!("{cert}.new"), format!("{key}.new"));
        std::fs::write(&ext, format!("subjectAltName={alternatives}\n")).expect("our directory");
        openssl(&[&NEW_KEY[..], &["-subj", &format!("/CN={cn}"), "-keyout", &new_key, "-out", &csr]].concat());
        openssl(&[
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            &csr,
            "-CA",
            &self.cert(),
            "-CAkey",
            &self.file("ca.key"),
            "-CAcreateserial",
            "-extfile",
            &ext,
            "-out",
            &new_cert,
        ]);
        std::fs::rename(&new_cert, &cert).expect("our file");
        std::fs::rename(&new_key, &key).expect("our file");
        (cert, key)
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

const NEW_KEY: [&str; 6] = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];

fn openssl(arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).output().expect("openssl is installed");
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The bytes of the first certificate of a file.
pub fn der(file: &str) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject;
    rustls::pki_types::CertificateDer::from_pem_file(Path::new(file)).expect("a certificate").to_vec()
}
