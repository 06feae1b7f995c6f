//! Every rule of the configuration, and the words it complains with.

use super::*;
use crate::model::definition::{IdleMode, IdleStart};

const FILE: &str = "/etc/stdiod/stdiod.toml";

fn around(variables: &[(&str, &str)]) -> Surroundings {
    let variables = variables.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    Surroundings { variables, root: true, secret_key_credential: None }
}

fn parse(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::parse(Some((Path::new(FILE), text)), &around(variables))
}

fn complaint(text: &str, variables: &[(&str, &str)]) -> String {
    parse(text, variables).expect_err("must be refused").to_string()
}

fn tcp(address: &str) -> Listen {
    Listen::Tcp(address.parse().unwrap())
}

#[test]
fn nothing_said_gives_the_documented_defaults() {
    let config = Config::parse(None, &around(&[])).unwrap();
    assert_eq!(config.listen, [tcp("127.0.0.1:8480")]);
    assert_eq!(config.data_dir, Path::new("/var/lib/stdiod"));
    assert_eq!(config.admin_token_file(), Path::new("/var/lib/stdiod/admin.token"));
    assert_eq!(config.control_socket(), Path::new("/var/lib/stdiod/control.sock"));
    assert_eq!((config.auth, &config.socket_group), (Auth::Tokens, &None));
    assert_eq!(config.database_url, None);
    assert_eq!(config.log, "info");
    assert_eq!(config.default_provider, "gvisor");
    assert_eq!(config.default_network, None);
    assert!(!config.allow_isolation_none && !config.allow_host_network && config.hosting_enabled);
    assert!(config.insecure_registries.is_empty());
    assert_eq!(config.providers.keys().collect::<Vec<_>>(), ["crun", "gvisor"]);
    assert_eq!(config.providers["gvisor"].kind, RuntimeKind::Gvisor);
    assert_eq!(parse("", &[]).unwrap(), config, "an empty file says nothing");
}

#[test]
fn the_shipped_file_is_valid_and_changes_nothing() {
    let shipped = include_str!("../../bundles/stdiod.toml");
    assert_eq!(parse(shipped, &[]).unwrap(), Config::parse(None, &around(&[])).unwrap());
}

#[test]
fn every_example_in_the_shipped_file_is_a_setting() {
    let shipped = include_str!("../../bundles/stdiod.toml");
    let is_setting =
        |line: &str| line.starts_with("[") || line.split_once(" = ").is_some_and(|(key, _)| is_plain_name(key));
    let examples = shipped.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| is_setting(line));
    let examples: Vec<&str> = examples.collect();
    assert!(examples.len() > 10, "the examples were found: {examples:?}");
    parse(&examples.join("\n"), &[]).unwrap();
}

#[test]
fn a_full_file_is_read() {
    let config = parse(
        r#"
        listen = ["127.0.0.1:9000", "unix:/run/stdiod.sock", "[::1]:9000"]
        data_dir = "/srv/stdiod"
        auth = "off"
        database_url = "postgresql://u:p@db/kb"
        log = "warn,stdiod::store=debug"
        default_provider = "youki"
        default_network = "tools"
        allow_isolation_none = true
        allow_host_network = true
        insecure_registries = ["127.0.0.1:5000"]
        [providers.youki]
        binary = "/usr/local/bin/youki"
        args = ["--systemd-cgroup"]
        [providers.gvisor]
        args = ["--platform=kvm"]
        [providers.nightly]
        binary = "/opt/gvisor/runsc"
        "#,
        &[],
    )
    .unwrap();
    assert_eq!(config.listen, [tcp("127.0.0.1:9000"), Listen::Unix("/run/stdiod.sock".into()), tcp("[::1]:9000")]);
    assert_eq!(config.auth, Auth::Off);
    assert_eq!(config.database_url.as_ref().unwrap().reveal(), "postgresql://u:p@db/kb");
    assert_eq!(config.default_provider, "youki");
    assert_eq!(config.default_network.as_deref(), Some("tools"));
    assert!(config.allow_isolation_none && config.allow_host_network);
    let youki = &config.providers["youki"];
    assert_eq!((youki.kind, youki.args.as_slice()), (RuntimeKind::Native, ["--systemd-cgroup".to_string()].as_slice()));
    let gvisor = &config.providers["gvisor"];
    assert_eq!((gvisor.kind, gvisor.binary.as_path()), (RuntimeKind::Gvisor, Path::new("runsc")));
    assert_eq!(config.providers["nightly"].kind, RuntimeKind::Gvisor, "runsc under another name is gVisor");
}

#[test]
fn stdiod_variables_win_over_the_platforms_and_these_over_the_file() {
    let file = "database_url = \"postgresql://file/kb\"\ndefault_provider = \"crun\"\ndefault_network = \"file\"";
    let of = |variables: &[(&str, &str)]| parse(file, variables).unwrap();
    let url = |config: &Config| config.database_url.as_ref().unwrap().reveal().to_string();
    assert_eq!(url(&of(&[])), "postgresql://file/kb");
    let platform = [
        ("DATABASE_URL", "postgresql://platform/kb"),
        ("WORKSPACE_DEFAULT_PROVIDER", "gvisor"),
        ("WORKSPACE_NETWORK_NAME", "platform"),
    ];
    let config = of(&platform);
    assert_eq!(url(&config), "postgresql://platform/kb");
    assert_eq!(config.default_provider, "gvisor");
    assert_eq!(config.default_network.as_deref(), Some("platform"));
    let own = [
        ("STDIOD_DATABASE_URL", "postgresql://own/kb"),
        ("STDIOD_DEFAULT_PROVIDER", "crun"),
        ("STDIOD_DEFAULT_NETWORK", "none"),
    ];
    let config = of(&[platform, own].concat());
    assert_eq!(url(&config), "postgresql://own/kb");
    assert_eq!(config.default_provider, "crun");
    assert_eq!(config.default_network, None);
}

#[test]
fn lists_in_variables_are_cut_at_commas() {
    let config =
        parse("", &[("STDIOD_LISTEN", "127.0.0.1:1, unix:/run/s.sock"), ("STDIOD_INSECURE_REGISTRIES", "a:1,b")])
            .unwrap();
    assert_eq!(config.listen, [tcp("127.0.0.1:1"), Listen::Unix("/run/s.sock".into())]);
    assert_eq!(config.insecure_registries, ["a:1", "b"]);
}

#[test]
fn an_empty_variable_says_nothing() {
    let config = parse("log = \"debug\"", &[("STDIOD_LOG", ""), ("DATABASE_URL", " "), ("STDIOD_LISTEN", "")]).unwrap();
    assert_eq!(config.log, "debug");
    assert_eq!(config.database_url, None);
    assert_eq!(config.listen, [tcp("127.0.0.1:8480")]);
}

#[test]
fn booleans_in_variables_are_true_or_false_and_nothing_else() {
    assert!(parse("", &[("STDIOD_ALLOW_HOST_NETWORK", "true")]).unwrap().allow_host_network);
    assert!(!parse("allow_host_network = true", &[("STDIOD_ALLOW_HOST_NETWORK", "0")]).unwrap().allow_host_network);
    let said = complaint("", &[("STDIOD_ALLOW_HOST_NETWORK", "maybe")]);
    assert!(said.contains("STDIOD_ALLOW_HOST_NETWORK") && said.contains("`true` or `false`"), "{said}");
}

#[test]
fn an_unknown_key_is_refused_with_its_file_and_line_and_a_suggestion() {
    let said = complaint("# comment\nlog = \"info\"\n\nlistn = \"127.0.0.1:1\"\n", &[]);
    assert_eq!(said, "/etc/stdiod/stdiod.toml line 4: `listn` is no setting; did you mean `listen`?");
    let said = complaint("zzz = 1\nabc = 2\n", &[]);
    assert!(said.starts_with("/etc/stdiod/stdiod.toml line 1: `zzz`"), "the first line, not the first name: {said}");
}

#[test]
fn an_unknown_key_of_a_provider_is_refused_with_its_line() {
    let said = complaint("[providers.youki]\nbinary = \"youki\"\nbinry = \"x\"\n", &[]);
    assert_eq!(said, "/etc/stdiod/stdiod.toml line 3: `providers.youki.binry` is no setting; did you mean `binary`?");
}

#[test]
fn an_unknown_variable_is_refused_by_name_but_not_those_of_the_client() {
    let said = complaint("", &[("STDIOD_DATADIR", "/x")]);
    assert_eq!(said, "environment variable STDIOD_DATADIR is no setting; did you mean `STDIOD_DATA_DIR`?");
    assert!(complaint("", &[("STDIOD_PROVIDERS", "x")]).contains("STDIOD_PROVIDERS"));
    parse("", &[("STDIOD_TOKEN", "t"), ("STDIOD_URL", "u"), ("STDIOD_CONFIG", "c"), ("PATH", "/bin")]).unwrap();
}

#[test]
fn broken_toml_is_refused_with_its_line() {
    let said = complaint("log = \"info\"\nauth = tokens\n", &[]);
    assert!(said.starts_with("/etc/stdiod/stdiod.toml line 2: not valid TOML"), "{said}");
    let said = complaint("log = \"info\"\nlog = \"debug\"\n", &[]);
    assert!(said.contains("line 2") && said.contains("duplicate"), "{said}");
}

#[test]
fn a_value_of_the_wrong_type_is_refused_with_its_line() {
    for (text, wanted) in [
        ("\nlisten = 8480", "a list of strings"),
        ("\nlisten = [8480]", "a string in quotes"),
        ("\nlog = true", "a string in quotes"),
        ("\nallow_host_network = \"true\"", "without quotes"),
        ("\nproviders = 1", "[providers.youki]"),
        ("\nproviders.x = 1", "a table with `binary`"),
        ("\nproviders.x.args = 1", "a list of strings"),
    ] {
        let said = complaint(text, &[]);
        assert!(said.contains("line 2") && said.contains(wanted), "{text}: {said}");
    }
}

#[test]
fn auth_off_is_refused_when_any_listener_can_be_reached_from_outside() {
    for open in ["0.0.0.0:8480", "[::]:8480", "192.168.1.5:80"] {
        let text = format!("auth = \"off\"\nlisten = [\"127.0.0.1:1\", \"{open}\"]\ninsecure_http = true");
        let said = complaint(&text, &[]);
        assert!(said.contains("line 1") && said.contains(open) && said.contains("`tokens`"), "{said}");
    }
    let said = complaint("auth = \"off\"\ninsecure_http = true", &[("STDIOD_LISTEN", "0.0.0.0:1")]);
    assert!(said.contains("0.0.0.0:1"), "whoever sets the listener: {said}");
}

#[test]
fn a_listener_for_metrics_is_for_this_machine_alone_and_has_its_own_address() {
    assert_eq!(parse("", &[]).unwrap().metrics_listen, None);
    assert_eq!(parse("metrics_listen = \"127.0.0.1:9\"", &[]).unwrap().metrics_listen, Some(tcp("127.0.0.1:9")));
    let said = complaint("metrics_listen = \"0.0.0.0:9\"", &[]);
    assert!(said.contains("other machines reach"), "{said}");
    let said = complaint("metrics_listen = \"127.0.0.1:8480\"", &[]);
    assert!(said.contains("so is a listener of `listen`"), "{said}");
}

#[test]
fn auth_off_is_fine_on_loopback_and_unix_listeners() {
    let listen = "127.0.0.1:1,127.3.2.1:1,[::1]:1,unix:/run/s";
    let config = parse("", &[("STDIOD_AUTH", "off"), ("STDIOD_LISTEN", listen)]).unwrap();
    assert_eq!(config.auth, Auth::Off);
    assert!(complaint("auth = \"none\"", &[]).contains("write `tokens` or `off`"));
}

#[test]
fn an_address_that_cannot_be_listened_on_is_refused_with_what_to_write() {
    for (item, remedy) in [
        (":8480", "0.0.0.0:8480"),
        ("8480", "IP:PORT"),
        ("example.org:80", "IP:PORT"),
        ("127.0.0.1:99999", "IP:PORT"),
        ("unix:run/s", "absolute path"),
        ("unix:", "absolute path"),
    ] {
        let said = complaint("", &[("STDIOD_LISTEN", item)]);
        assert!(said.contains(item) && said.contains(remedy), "{said}");
    }
    assert!(complaint("listen = []", &[]).contains("at least one"));
    assert!(complaint("", &[("STDIOD_LISTEN", &format!("unix:/{}", "x".repeat(107)))]).contains("107 bytes"));
    assert!(complaint("listen = [\"127.0.0.1:1\", \"localhost:1\"]", &[]).contains("twice"));
    assert_eq!(parse("listen = \"localhost:1\"", &[]).unwrap().listen, [tcp("127.0.0.1:1")]);
}

const PEMS: &str = "tls_cert = \"/c.pem\"\ntls_key = \"/k.pem\"\n";

fn tls(address: &str) -> Listen {
    Listen::Tls(address.parse().unwrap())
}

#[test]
fn with_a_certificate_every_tcp_listener_speaks_tls_unless_it_is_written_otherwise() {
    let listen = "listen = [\"0.0.0.0:1\", \"http://127.0.0.1:2\", \"https://[::1]:3\", \"unix:/run/s\"]";
    let config = parse(&format!("{PEMS}{listen}"), &[]).unwrap();
    let unix = Listen::Unix("/run/s".into());
    assert_eq!(config.listen, [tls("0.0.0.0:1"), tcp("127.0.0.1:2"), tls("[::1]:3"), unix]);
    let files = config.tls.unwrap();
    assert_eq!((files.cert.as_path(), files.key.as_path()), (Path::new("/c.pem"), Path::new("/k.pem")));
    assert_eq!(files.clients, None);
    assert_eq!(parse(PEMS, &[]).unwrap().listen, [tls("127.0.0.1:8480")]);
    for (text, wanted) in [
        ("tls_cert = \"/c.pem\"", "`tls_key` is missing"),
        ("tls_key = \"/k.pem\"", "`tls_cert` is missing"),
        ("tls_cert = \"c.pem\"\ntls_key = \"/k.pem\"", "absolute path"),
        ("listen = [\"https://127.0.0.1:1\"]", "set `tls_cert`"),
        (&format!("{PEMS}listen = [\"127.0.0.1:1\", \"http://127.0.0.1:1\"]"), "twice"),
    ] {
        let said = complaint(text, &[]);
        assert!(said.contains(wanted), "{text}: {said}");
    }
}

#[test]
fn clear_text_beyond_this_machine_must_be_asked_for() {
    for open in ["0.0.0.0:8480", "[::]:8480", "192.168.1.5:80"] {
        let listen = format!("listen = [\"{open}\"]");
        let said = complaint(&listen, &[]);
        assert!(said.contains(open) && said.contains("insecure_http") && said.contains("tls_cert"), "{said}");
        assert_eq!(parse(&listen, &[("STDIOD_INSECURE_HTTP", "true")]).unwrap().listen, [tcp(open)]);
        assert_eq!(parse(&format!("{PEMS}{listen}"), &[]).unwrap().listen, [tls(open)]);
        assert!(complaint(&format!("{PEMS}listen = [\"http://{open}\"]"), &[]).contains("clear text"));
    }
}

#[test]
fn client_certificates_have_an_authority_and_rules() {
    let text = format!(
        "{PEMS}tls_client_ca = \"/ca.pem\"\ntls_client_auth = \"required\"\n[[tls_client_rules]]\ncn = \"ops\"\n\
         scopes = [\"admin:read\"]\n[[tls_client_rules]]\ncn = \"agent\"\nscopes = \"mcp:call\"\nservers = [\"a\"]"
    );
    let clients = parse(&text, &[]).unwrap().tls.and_then(|tls| tls.clients).unwrap();
    assert!(clients.required && clients.rules.len() == 2 && clients.rules[1].servers == ["a"], "{clients:?}");
    for (text, wanted) in [
        ("tls_client_auth = \"optional\"", "tls_client_ca"),
        ("[[tls_client_rules]]\ncn = \"x\"", "tls_client_ca"),
        ("tls_client_ca = \"/ca\"\ntls_client_auth = \"yes\"", "`optional` or `required`"),
        ("tls_client_ca = \"/ca\"\n[[tls_client_rules]]\nscopes = [\"mcp:call\"]", "cn"),
        ("tls_client_ca = \"/ca\"\n[[tls_client_rules]]\ncn = \"x\"", "scopes"),
        ("tls_client_ca = \"/ca\"\n[[tls_client_rules]]\ncn = \"x\"\nscopes = [\"all\"]", "admin:read"),
        ("tls_client_ca = \"/ca\"\n[[tls_client_rules]]\ncn = \"x\"\nrole = \"y\"", "role"),
    ] {
        let said = complaint(&format!("{PEMS}{text}"), &[]);
        assert!(said.contains(wanted), "{text}: {said}");
    }
    assert!(complaint("tls_client_ca = \"/ca\"", &[]).contains("`tls_cert` is missing"));
}

#[test]
fn the_audit_log_and_rates_have_bounds() {
    let config = parse("audit_calls = true\naudit_max_bytes = \"1M\"\naudit_on_error = \"continue\"", &[]).unwrap();
    assert_eq!(config.audit, Audit { calls: true, max_bytes: 1 << 20, on_error: OnAuditError::Continue });
    assert_eq!(parse("audit_max_bytes = 65536", &[]).unwrap().audit.max_bytes, 65536);
    let config = parse("[rate_limit]\nper_second = 10\nburst = 20", &[]).unwrap();
    assert_eq!(config.rate_limit, Some(RateLimit { per_second: 10, burst: 20 }));
    for (text, wanted) in [
        ("audit_max_bytes = 1", "audit_max_bytes"),
        ("audit_on_error = \"maybe\"", "`refuse` or `continue`"),
        ("[rate_limit]\nburst = 1", "rate_limit.per_second"),
        ("[rate_limit]\nper_second = 0", "rate_limit.per_second"),
        ("[rate_limit]\nper_second = 1\nburst = -1", "rate_limit.burst"),
        ("[rate_limit]\nper_minute = 1", "per_minute"),
    ] {
        let said = complaint(text, &[]);
        assert!(said.contains(wanted), "{text}: {said}");
    }
}

#[test]
fn the_data_directory_of_a_plain_user_is_in_their_home() {
    let user = |variables: &[(&str, &str)]| {
        Config::parse(None, &Surroundings { root: false, ..around(variables) }).map(|config| config.data_dir)
    };
    assert_eq!(user(&[("HOME", "/home/u")]).unwrap(), Path::new("/home/u/.local/share/stdiod"));
    assert_eq!(user(&[("HOME", "/home/u"), ("XDG_DATA_HOME", "/d")]).unwrap(), Path::new("/d/stdiod"));
    assert_eq!(
        user(&[("HOME", "/home/u"), ("XDG_DATA_HOME", "rel")]).unwrap(),
        Path::new("/home/u/.local/share/stdiod")
    );
    assert!(user(&[]).unwrap_err().to_string().contains("STDIOD_DATA_DIR"));
    assert_eq!(user(&[("STDIOD_DATA_DIR", "/e")]).unwrap(), Path::new("/e"));
    assert!(complaint("data_dir = \"data\"", &[]).contains("absolute path"));
}

#[test]
fn a_password_is_neither_in_debug_output_nor_in_a_complaint() {
    let config = parse("", &[("DATABASE_URL", "postgresql://u:hunter2@db/kb")]).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    for wrong in ["mysql://u:hunter2@db/kb", "postgresql://u:hunter2@db:port/kb", "hunter2"] {
        let error = parse("", &[("DATABASE_URL", wrong)]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        assert!(error.to_string().contains("DATABASE_URL"), "{error}");
    }
}

#[test]
fn a_syntax_error_beside_a_password_does_not_quote_it() {
    let said = complaint("database_url = \"postgresql://u:hunter2@db/kb\" junk\n", &[]);
    assert!(said.contains("line 1") && !said.contains("hunter2"), "{said}");
}

#[test]
fn the_default_provider_must_be_known() {
    let said = complaint("default_provider = \"gvisr\"", &[]);
    assert!(said.contains("line 1") && said.contains("did you mean `gvisor`"), "{said}");
    let said = complaint("", &[("WORKSPACE_DEFAULT_PROVIDER", "firecracker")]);
    assert!(said.contains("WORKSPACE_DEFAULT_PROVIDER") && said.contains("crun, gvisor"), "{said}");
}

#[test]
fn directories_of_the_host_are_shown_by_their_plain_names() {
    assert_eq!(parse("", &[]).unwrap().host_paths, Vec::<PathBuf>::new());
    let config = parse("host_paths = [\"/opt\", \"/srv/tools/\"]", &[]).unwrap();
    assert_eq!(config.host_paths, [PathBuf::from("/opt"), PathBuf::from("/srv/tools")]);
    for wrong in ["opt", "/", "/proc/1", "/tmp", "/etc", "/opt/../root"] {
        assert!(complaint("", &[("STDIOD_HOST_PATHS", wrong)]).contains(wrong), "{wrong}");
    }
}

#[test]
fn a_reserve_is_an_amount_of_bytes() {
    assert_eq!(parse("", &[]).unwrap().disk_reserve_bytes, None);
    assert_eq!(parse("disk_reserve = \"64M\"", &[]).unwrap().disk_reserve_bytes, Some(64 << 20));
    assert_eq!(parse("", &[("STDIOD_DISK_RESERVE", "0")]).unwrap().disk_reserve_bytes, Some(0));
    assert!(complaint("disk_reserve = \"much\"", &[]).contains("1G"));
}

#[test]
fn the_host_network_as_default_needs_permission() {
    assert!(complaint("default_network = \"host\"", &[]).contains("allow_host_network = true"));
    let config = parse("default_network = \"host\"\nallow_host_network = true", &[]).unwrap();
    assert_eq!(config.default_network.as_deref(), Some("host"));
    assert!(complaint("default_network = \"a b\"", &[]).contains("write `none`"));
}

#[test]
fn a_log_filter_with_an_unknown_level_is_refused() {
    for good in ["off", "INFO", "info,stdiod::store=trace", "stdiod=debug"] {
        assert_eq!(parse("", &[("STDIOD_LOG", good)]).unwrap().log, good);
    }
    for bad in ["inof", "stdiod=loud", "info,"] {
        assert!(complaint("", &[("STDIOD_LOG", bad)]).contains("no level"), "{bad}");
    }
}

#[test]
fn a_provider_needs_a_binary_and_a_known_kind() {
    assert!(complaint("[providers.youki]\nargs = []", &[]).contains("providers.youki.binary"));
    assert!(complaint("[providers.youki]\nbinary = \"bin/youki\"", &[]).contains("absolute path"));
    let said = complaint("[providers.youki]\nbinary = \"youki\"\nkind = \"vm\"", &[]);
    assert!(said.contains("line 3") && said.contains("`native`"), "{said}");
    assert!(complaint("[providers.\"a/b\"]\nbinary = \"x\"", &[]).contains("is no name"));
    let config = parse("[providers.x]\nbinary = \"x\"\nkind = \"gvisor\"", &[]).unwrap();
    assert_eq!(config.providers["x"].kind, RuntimeKind::Gvisor);
}

#[test]
fn registries_are_hosts() {
    for wrong in ["http://reg:5000", "reg/path", "a b"] {
        assert!(complaint("", &[("STDIOD_INSECURE_REGISTRIES", wrong)]).contains("HOST:PORT"), "{wrong}");
    }
}

#[test]
fn images_that_may_be_run_are_places_and_digests_and_keys_are_files() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let text =
        format!("allowed_images = [\"r.example:5000\", \"r.example/team\", \"{digest}\"]\nimage_keys = [\"/k.pub\"]");
    let config = parse(&text, &[]).unwrap();
    assert_eq!((config.allowed_images.len(), config.image_keys.len()), (3, 1));
    assert!(config.registries().unwrap_err().contains("image_keys /k.pub"));
    for (wrong, word) in [
        ("allowed_images = []", "leave it out"),
        ("allowed_images = [\"team\"]", "HOST[:PORT]"),
        ("allowed_images = [\"https://r.example\"]", "HOST[:PORT]"),
        ("image_keys = []", "leave it out"),
        ("image_keys = [\"cosign.pub\"]", "absolute paths"),
    ] {
        assert!(complaint(wrong, &[]).contains(word), "{wrong}");
    }
}

#[test]
fn a_memory_budget_is_an_amount_of_some_size() {
    assert_eq!(parse("memory_budget = \"1G\"", &[]).unwrap().memory_budget, Some(1 << 30));
    assert_eq!(parse("", &[]).unwrap().memory_budget, None);
    for wrong in
        ["memory_budget = \"100M\"", "memory_budget = \"65G\"", "memory_budget = \"much\"", "memory_budget = 7"]
    {
        assert!(complaint(wrong, &[]).contains("`512M` to `64G`"), "{wrong}");
    }
}

#[test]
fn only_an_explicit_false_disables_hosting() {
    let hosts = |value: &str| parse("", &[("ENABLE_AGENT_WORKSPACES", value)]).unwrap().hosting_enabled;
    assert!(!hosts("false") && !hosts("False"));
    assert!(hosts("true") && hosts("") && hosts("0") && hosts("no"));
}

#[test]
fn a_named_file_must_exist() {
    let error = Config::load(Some(Path::new("/nonexistent/stdiod.toml"))).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/stdiod.toml"), "{error}");
}

#[test]
fn a_network_leads_to_the_private_ranges_that_the_operator_names() {
    let config =
        parse("[networks.bridge]\nallow_private = [\"10.20.0.0/16\", \"fd12::/48\", \"192.168.1.7\"]\n", &[]).unwrap();
    let shown: Vec<String> = config.allow_private["bridge"].iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.20.0.0/16", "fd12::/48", "192.168.1.7/32"]);
    for (text, words) in [
        (
            "[networks.bridge]\nallow_private = [\"10.0.0.1/8\"]",
            "line 2: `networks.bridge.allow_private` holds `10.0.0.1/8`",
        ),
        ("[networks.bridge]\nallow_private = [\"169.254.0.0/16\"]", "never opened"),
        ("[networks.bridge]\nallow_private = [\"::1\"]", "never opened"),
        ("[networks.bridge]\nallow = []", "`networks.bridge.allow` is no setting"),
        ("[networks.host]\nallow_private = []", "no network with a fence"),
        ("networks = 3", "`[networks.bridge]`"),
        ("[networks]\nbridge = 3", "`allow_private`"),
    ] {
        let told = complaint(text, &[]);
        assert!(told.contains(words), "{text}: {told}");
    }
}

#[test]
fn a_group_of_the_unix_sockets_is_a_name_and_the_control_socket_is_not_for_configuring() {
    assert_eq!(parse("socket_group = \"ops\"", &[]).unwrap().socket_group.as_deref(), Some("ops"));
    assert_eq!(parse("", &[("STDIOD_SOCKET_GROUP", "100")]).unwrap().socket_group.as_deref(), Some("100"));
    let said = complaint("socket_group = \"a:b\"", &[]);
    assert!(said.contains("`socket_group` is `a:b`; write the name"), "{said}");
    let said = complaint("data_dir = \"/d\"\nlisten = [\"unix:/d/control.sock\"]", &[]);
    assert!(said.contains("line 2: `listen` holds `unix:/d/control.sock`, the daemon's own socket"), "{said}");
}

#[test]
fn the_key_is_in_the_file_that_is_named_or_a_credential_or_the_data_directory() {
    let credential = PathBuf::from("/run/credentials/stdiod.service/secret.key");
    let given = Surroundings { secret_key_credential: Some(credential.clone()), ..around(&[]) };
    assert_eq!(Config::parse(None, &given).unwrap().secret_key, KeyPlace::Credential(credential));
    let ours = parse("data_dir = \"/srv/stdiod\"", &[]).unwrap().secret_key;
    assert_eq!(ours, KeyPlace::File("/srv/stdiod/secret.key".into()));
    let named = parse("secret_key_file = \"/etc/stdiod/key\"", &[]).unwrap().secret_key;
    assert_eq!(named, KeyPlace::File("/etc/stdiod/key".into()));
    assert!(complaint("secret_key_file = \"key\"", &[]).contains("absolute path"));
}

#[test]
fn an_authorization_server_is_judged_key_by_key() {
    let head = "public_url = \"https://Mcp.example:443/\"\n[oauth]\nissuer = \"https://as.example\"\n";
    let server = parse(head, &[]).unwrap().auth_server.expect("configured");
    assert_eq!((server.oauth.issuer.as_str(), server.jwks_uri), ("https://as.example", None));
    assert!(server.oauth.resource.is_all_of("https://mcp.example"), "as clients write it");
    let rule = "[[oauth.rules]]\nclaim = \"scp\"\nvalue = \"x.call\"\nscopes = [\"mcp:call\"]\nprojects = [\"shop\"]\n";
    let rules = parse(&format!("{head}{rule}"), &[]).unwrap().auth_server.unwrap().oauth.rules;
    assert_eq!((rules[0].value.as_str(), rules[0].projects.len()), ("x.call", 1));
    let local = "public_url = \"http://127.0.0.1:1\"\n[oauth]\nissuer = \"http://localhost:2/realms/a\"\n";
    assert!(parse(local, &[]).is_ok());
    for (text, part) in [
        ("[oauth]\nissuer = \"https://as\"".to_string(), "`public_url`, which is missing"),
        ("public_url = \"https://a\"\n[oauth]\naudience = \"x\"".to_string(), "`oauth.issuer` is missing"),
        ("public_url = \"mcp.example\"".to_string(), "`public_url` is `mcp.example`"),
        ("public_url = \"https://a/?x\"".to_string(), "`public_url`"),
        (head.replace("https://as.example", "http://as.example"), "clear text"),
        (head.replace("https://as.example", "as.example"), "no address"),
        (format!("{head}jwks_uri = \"http://as.example/k\""), "`oauth.jwks_uri`"),
        (format!("{head}audience = \"\""), "`oauth.audience`"),
        (format!("{head}secret = \"x\""), "`oauth.secret` is no setting"),
        (format!("{head}{}", rule.replace("mcp:call", "mcp:cal")), "`oauth.rules.scopes` holds `mcp:cal`"),
        (format!("{head}{}", rule.replace("scopes = [\"mcp:call\"]\n", "")), "`oauth.rules.scopes` is missing"),
        (format!("{head}{}", rule.replace("claim = \"scp\"\n", "")), "`oauth.rules.claim` is missing"),
        (format!("{head}{}", rule.replace("x.call", "x y")), "`oauth.rules.value`"),
        (format!("{head}{}", rule.replace("shop", "s h")), "`oauth.rules.projects`"),
    ] {
        let told = complaint(&text, &[]);
        assert!(told.contains(part), "{text}: {told}");
    }
}

#[test]
fn ceilings_are_those_of_a_plain_server_unless_something_else_is_said() {
    let config = parse("", &[]).unwrap();
    assert_eq!(config.ceilings, Ceilings::default());
    let text = "[ceilings]\ncpu = 1.5\nmemory = \"2G\"\npids = 64\nhost_addresses = [\"10.0.0.1\"]\n\
        host_ports = [\"80\", \"8000-8999\"]\nnetworks = []";
    let ceilings = parse(text, &[]).unwrap().ceilings;
    assert_eq!((ceilings.cpu_milli, ceilings.memory_bytes, ceilings.pids), (1500, 2 << 30, 64));
    assert_eq!(ceilings.disk_bytes, Ceilings::default().disk_bytes);
    assert_eq!(ceilings.host_ports, [80..=80, 8000..=8999]);
    assert!(ceilings.networks.is_empty() && ceilings.host_addresses.len() == 1);
    for (line, part) in [
        ("cpu = \"x\"", "`ceilings.cpu` is `x`"),
        ("memory = -1", "`ceilings.memory`"),
        ("pids = 0.5", "`ceilings.pids`"),
        ("host_ports = [\"9-8\"]", "`ceilings.host_ports` holds `9-8`"),
        ("host_ports = [\"0\"]", "`ceilings.host_ports`"),
        ("host_addresses = [\"localhost\"]", "`ceilings.host_addresses`"),
        ("networks = [\"a b\"]", "`ceilings.networks`"),
        ("ports = []", "`ceilings.ports` is no setting"),
    ] {
        let told = complaint(&format!("[ceilings]\n{line}"), &[]);
        assert!(told.contains(part), "{line}: {told}");
    }
}

#[test]
fn connections_of_one_address_are_a_number() {
    assert_eq!(parse("", &[]).unwrap().peer_connections_max, None);
    assert_eq!(parse("peer_connections_max = 64", &[]).unwrap().peer_connections_max, Some(64));
    assert_eq!(parse("", &[("STDIOD_PEER_CONNECTIONS_MAX", "8")]).unwrap().peer_connections_max, Some(8));
    for wrong in ["0", "-1", "\"many\"", "1000000"] {
        assert!(complaint(&format!("peer_connections_max = {wrong}"), &[]).contains("`peer_connections_max` is"));
    }
}

#[test]
fn what_becomes_of_idle_servers_is_said_for_all_of_them_at_once() {
    assert!(parse("", &[]).unwrap().idle.is_unsaid());
    let idle = parse("[idle]\nafter_ms = 5000\nmode = \"stop\"\nstart = \"on_demand\"\n", &[]).unwrap().idle;
    let wanted = Idle { after_ms: Some(5_000), mode: Some(IdleMode::Stop), start: Some(IdleStart::OnDemand) };
    assert_eq!(idle, wanted);
    for (line, words) in [
        ("after_ms = 99", "`idle.after_ms` is `99`"),
        ("mode = \"sleep\"", "`idle.mode` is `sleep`"),
        ("start = \"later\"", "`idle.start` is `later`"),
        ("on = true", "`idle.on` is no setting"),
    ] {
        let told = complaint(&format!("[idle]\n{line}"), &[]);
        assert!(told.contains(words), "{told}");
    }
}
