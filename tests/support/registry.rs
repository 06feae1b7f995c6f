//! A real registry on loopback: Debian's `docker-registry` with TLS from a CA of its own and a password, images by umoci
//! and skopeo, and a proxy that counts what passes and can be made slow. Ends with the value that stands for it.

use super::short_temporary_directory;
use base64::Engine;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SERVER: &str = include_str!("../fixtures/image-server.sh");
const USER: &str = "tester";
pub const PASSWORD: &str = "open-sesame";
/// bcrypt of the password, at the lowest cost.
const HTPASSWD: &str = "tester:$2b$04$hmYwiZ9M9.8mHvQEATL0neyhp2tywkEOoEa6LbXRB7sitRdyB/QnW\n";

pub struct Registry {
    pub home: PathBuf,
    pub port: u16,
    process: Child,
}

impl Registry {
    pub fn start() -> Registry {
        let home = short_temporary_directory();
        make_certificates(&home);
        let at = |name: &str| home.join(name).display().to_string();
        std::fs::write(home.join("htpasswd"), HTPASSWD).expect("a file");
        let config = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: \"127.0.0.1:0\", tls: {{certificate: {}, key: {}}}}}\n\
             auth: {{htpasswd: {{realm: test, path: {}}}}}\n",
            at("storage"),
            at("server.pem"),
            at("server.key"),
            at("htpasswd")
        );
        std::fs::write(home.join("config.yml"), config).expect("a file");
        let mut process = Command::new("docker-registry")
            .args(["serve", &at("config.yml")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry: scripts/setup --tests installs it");
        let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, rest) = line.split_once("listening on 127.0.0.1:")?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        });
        // It must not stop at a full pipe; the thread ends with the process.
        std::thread::spawn(move || lines.for_each(drop));
        Registry { home, port: port.expect("docker-registry listens"), process }
    }

    /// What makes stdiod trust it and log in to it, also through proxies.
    pub fn variables(&self, ports: &[u16]) -> Vec<(String, String)> {
        let hosts: Vec<String> =
            [&[self.port], ports].concat().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        self.variables_for(&hosts)
    }

    /// As `variables`, under these names. The certificate is for 127.0.0.1, ::1 and `registry.test`.
    pub fn variables_for(&self, hosts: &[String]) -> Vec<(String, String)> {
        let entry = |host: &String| format!(r#""{host}":{{"username":"{USER}","password":"{PASSWORD}"}}"#);
        let entries: Vec<String> = hosts.iter().map(entry).collect();
        let file = self.home.join("auth.json");
        std::fs::write(&file, format!(r#"{{"auths":{{{}}}}}"#, entries.join(","))).expect("a file");
        let ca = self.home.join("ca.pem");
        let pairs = [("SSL_CERT_FILE", ca), ("REGISTRY_AUTH_FILE", file)];
        pairs.map(|(name, path)| (name.to_string(), path.display().to_string())).to_vec()
    }

    pub fn name(&self, repository: &str) -> String {
        format!("127.0.0.1:{}/{repository}", self.port)
    }

    /// Pushes `tag` of a layout.
    pub fn push(&self, layout: &Path, tag: &str, repository: &str) {
        let (from, to) = (format!("oci:{}:{tag}", layout.display()), format!("docker://{}", self.name(repository)));
        let login = format!("{USER}:{PASSWORD}");
        run("skopeo", &["copy", "--insecure-policy", "--dest-tls-verify=false", "--dest-creds", &login, &from, &to]);
    }

    /// Puts a signature beside an image, as cosign does it: what `document` says, and what `key` makes of it.
    pub fn sign(&self, repository: &str, digest: &str, document: &str, key: &Path) {
        let file = self.home.join("document");
        std::fs::write(&file, document).expect("a file");
        let signed = Command::new("openssl").args(["dgst", "-sha256", "-sign"]).args([key, &file]).output();
        let signed = signed.expect("openssl");
        assert!(signed.status.success(), "{signed:?}");
        let signature = base64::engine::general_purpose::STANDARD.encode(signed.stdout);
        let described = |media_type: &str, text: &str| {
            let digest = self.upload(repository, text);
            serde_json::json!({"mediaType": media_type, "digest": digest, "size": text.len()})
        };
        let mut layer = described("application/vnd.dev.cosign.simplesigning.v1+json", document);
        layer["annotations"] = serde_json::json!({"dev.cosignproject.cosign/signature": signature});
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let config = described("application/vnd.oci.image.config.v1+json", "{}");
        let manifest =
            serde_json::json!({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": [layer]});
        let to = format!("/v2/{repository}/manifests/{}.sig", digest.replace(':', "-"));
        self.curl(&["-X", "PUT", "-H", &format!("Content-Type: {media_type}"), "-d", &manifest.to_string()], &to);
    }

    /// A blob of these bytes; its digest.
    fn upload(&self, repository: &str, text: &str) -> String {
        use sha2::Digest;
        let hex: String = sha2::Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        let begun = self.curl(&["-X", "POST", "-D", "-", "-d", ""], &format!("/v2/{repository}/blobs/uploads/"));
        let place = begun.lines().find_map(|line| line.strip_prefix("Location: ")).expect("a place for it").trim();
        let (_, place) = place.split_once("/v2/").expect("here");
        let headers = ["-H", "Content-Type: application/octet-stream"];
        self.curl(&[&["-X", "PUT", "-d", text], &headers[..]].concat(), &format!("/v2/{place}&digest=sha256:{hex}"));
        format!("sha256:{hex}")
    }

    fn curl(&self, arguments: &[&str], path: &str) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--http1.1", "--noproxy", "*", "-u"])
            .arg(format!("{USER}:{PASSWORD}"))
            .arg("--cacert");
        let output =
            curl.arg(self.home.join("ca.pem")).args(arguments).arg(format!("https://127.0.0.1:{}{path}", self.port));
        let output = output.output().expect("curl");
        assert!(output.status.success(), "{arguments:?} {path}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The file that holds a blob.
    pub fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").expect("a digest");
        self.home.join("storage/docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex).join("data")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

fn make_certificates(home: &Path) {
    let at = |name: &str| home.join(name).display().to_string();
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let authority = ["req", "-x509", "-days", "2", "-subj", "/CN=stdiod test authority"];
    run("openssl", &[&authority[..], &key, &["-keyout", &at("ca.key"), "-out", &at("ca.pem")]].concat());
    let server = ["req", "-subj", "/CN=127.0.0.1"];
    run("openssl", &[&server[..], &key, &["-keyout", &at("server.key"), "-out", &at("server.csr")]].concat());
    std::fs::write(
        home.join("ext"),
        "subjectAltName=IP:127.0.0.1,IP:::1,DNS:registry.test\nbasicConstraints=CA:FALSE\n",
    )
    .expect("a file");
    let sign = ["x509", "-req", "-days", "2", "-CAcreateserial"].map(String::from).to_vec();
    let files = ["-in", &at("server.csr"), "-CA", &at("ca.pem"), "-CAkey", &at("ca.key"), "-extfile", &at("ext")];
    let sign: Vec<&str> = sign.iter().map(String::as_str).chain(files).collect();
    run("openssl", &[&sign[..], &["-out", &at("server.pem")]].concat());
}

/// Passes bytes on to a port, at most so many a second of what comes back, and counts those.
pub struct Proxy {
    pub port: u16,
    passed: Arc<AtomicU64>,
    bytes_per_second: Arc<AtomicU64>,
}

impl Proxy {
    pub fn to(port: u16) -> Proxy {
        Proxy::from("127.0.0.1:0", port)
    }

    /// Listens at `address`.
    pub fn from(address: &str, port: u16) -> Proxy {
        let listener = TcpListener::bind(address).expect("a port");
        let proxy = Proxy {
            port: listener.local_addr().expect("bound").port(),
            passed: Arc::default(),
            bytes_per_second: Arc::new(AtomicU64::new(u64::MAX)),
        };
        let (passed, rate) = (Arc::clone(&proxy.passed), Arc::clone(&proxy.bytes_per_second));
        // Ends with the test's process; it holds nothing but sockets.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let (near2, far2) = (near.try_clone().expect("a socket"), far.try_clone().expect("a socket"));
                let (passed, rate) = (Arc::clone(&passed), Arc::clone(&rate));
                std::thread::spawn(move || pass(near, far, &AtomicU64::new(0), &AtomicU64::new(u64::MAX)));
                std::thread::spawn(move || pass(far2, near2, &passed, &rate));
            }
        });
        proxy
    }

    pub fn slow_down(&self, bytes_per_second: u64) {
        self.bytes_per_second.store(bytes_per_second, Ordering::Relaxed);
    }

    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
}

/// A proxy as companies have them: whatever host it is asked for by CONNECT, with the login `u:p`, it leads to the port.
pub struct ConnectProxy {
    pub port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl ConnectProxy {
    pub fn to(port: u16) -> ConnectProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = ConnectProxy { port: listener.local_addr().expect("bound").port(), asked: Arc::default() };
        let asked = Arc::clone(&proxy.asked);
        // Ends with the test's process, as its connections do.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let lines = BufReader::with_capacity(1, near.try_clone().expect("a socket")).lines();
                let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                let allowed = head.iter().any(|line| line == "Proxy-Authorization: Basic dTpw");
                asked.lock().expect("not poisoned").push(head.first().cloned().unwrap_or_default());
                let mut writer = &near;
                if !allowed {
                    let _ =
                        writer.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n");
                    continue;
                }
                let _ = writer.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n");
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let (near2, far2) = (near.try_clone().expect("a socket"), far.try_clone().expect("a socket"));
                let whole = || (AtomicU64::new(0), AtomicU64::new(u64::MAX));
                std::thread::spawn(move || pass(near, far, &whole().0, &whole().1));
                std::thread::spawn(move || pass(far2, near2, &whole().0, &whole().1));
            }
        });
        proxy
    }

    /// The first lines of all requests so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, passed: &AtomicU64, rate: &AtomicU64) {
    let mut buf = [0; 16 * 1024];
    while let Ok(n) = from.read(&mut buf) {
        if n == 0 || to.write_all(&buf[..n]).is_err() {
            break;
        }
        passed.fetch_add(n as u64, Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs_f64(n as f64 / rate.load(Ordering::Relaxed) as f64));
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

/// An OCI layout: busybox, a server and a large file under `v1`; under `v2` one more file. What is random does not get
/// smaller by compression.
pub fn build_images(home: &Path, large: usize) -> PathBuf {
    let layout = home.join("layout");
    let at = |name: &str| home.join(name).display().to_string();
    let (one, two) = (format!("{}:v1", layout.display()), format!("{}:v2", layout.display()));
    std::fs::write(home.join("server"), SERVER).expect("a file");
    let mut random = vec![0; large];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").expect("random"), &mut random).expect("bytes");
    std::fs::write(home.join("large"), random).expect("a file");
    run("chmod", &["755", &at("server")]);
    run("umoci", &["init", "--layout", &at("layout")]);
    run("umoci", &["new", "--image", &one]);
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    let busybox = busybox.expect("busybox-static: scripts/setup --tests installs it");
    for (file, home) in [(busybox, "/bin/busybox"), (&at("server"), "/bin/server"), (&at("large"), "/large")] {
        run("umoci", &["insert", "--image", &one, file, home]);
    }
    let config = ["--config.entrypoint=/bin/server", "--config.env=PATH=/bin", "--config.user=1234:5678"];
    run("umoci", &[&["config", "--image", &one][..], &config].concat());
    run("umoci", &["tag", "--image", &one, "v2"]);
    run("umoci", &["insert", "--image", &two, &at("server"), "/bin/another"]);
    layout
}

/// An image with a Python of this host and nothing else, and with the tag `v1`.
pub fn build_python_image(home: &Path) -> PathBuf {
    let (layout, libraries) = (home.join("layout"), home.join("libraries"));
    let image = format!("{}:v1", layout.display());
    let python = std::fs::canonicalize("/usr/bin/python3").expect("python3");
    let modules = Path::new("/usr/lib").join(python.file_name().expect("a name"));
    let native = modules.join("lib-dynload");
    let native = std::fs::read_dir(native).expect("its modules").flatten().map(|entry| entry.path());
    let needed: Vec<PathBuf> = native.filter(|path| path.to_string_lossy().contains("_ctypes.")).collect();
    let output = Command::new("ldd").arg(&python).args(needed).output().expect("ldd");
    std::fs::create_dir_all(&libraries).expect("a directory");
    let (mut loader, mut dir) = (None, None);
    for word in String::from_utf8_lossy(&output.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
        let path = Path::new(word.trim_end_matches(':'));
        if word.contains("/ld-linux") {
            loader = Some(path.to_owned());
        } else if word.contains(".so") && !path.starts_with(&modules) {
            dir = path.parent().map(Path::to_owned);
            let name = path.file_name().expect("a name");
            std::fs::copy(path, libraries.join(name)).expect("a library");
        }
    }
    let (loader, dir) = (loader.expect("a loader"), dir.expect("libraries"));
    let real = std::fs::canonicalize(&loader).expect("a loader");
    run("umoci", &["init", "--layout", layout.to_str().expect("our own name")]);
    run("umoci", &["new", "--image", &image]);
    for (from, to) in
        [(python.as_path(), Path::new("/usr/bin/python3")), (&modules, &modules), (&libraries, &dir), (&real, &loader)]
    {
        let [from, to] = [from, to].map(|path| path.to_str().expect("a plain name"));
        run("umoci", &["insert", "--image", &image, from, to]);
    }
    run("umoci", &["config", "--image", &image, "--config.env=PATH=/usr/bin"]);
    layout
}

pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}
