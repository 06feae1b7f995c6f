//! Images from disk: built with umoci, imported with the CLI, run with what their configuration says.

use crate::support::{Daemon, on_both_providers};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

const SERVER: &str = include_str!("../fixtures/image-server.sh");

on_both_providers!(
    an_imported_image_runs_with_its_own_entrypoint_env_and_user,
    nobody_asks_their_way_out_of_the_user_namespace,
);

fn an_imported_image_runs_with_its_own_entrypoint_env_and_user(provider: &str) {
    let daemon = Daemon::start();
    let layout = build_image(&daemon.scratch("image"));
    let layout = layout.to_str().expect("our own name");

    let missing = daemon.try_register(&json!({"name": "early", "provider": provider, "image": "who:1"}));
    assert_eq!((missing.status, missing.code()), (422, json!("image_not_found")), "{missing}");
    assert_eq!(daemon.get("/api/v1/mcp/servers").json(), json!([]), "a refused registration leaves nothing");

    let imported = daemon.cli(&["image", "import", &format!("{layout}:v1"), "--name", "who:1"]);
    assert!(imported.status.success(), "{imported:?}");
    let listed = daemon.cli(&["image", "ls"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("who"), "{listed:?}");

    let status = daemon.register(&json!({"name": "who", "provider": provider, "image": "who:1"}));
    assert_eq!(status["image"], "who:1");
    assert_eq!(
        daemon.text("who", "who", json!({})),
        "uid=1234 gid=5678 pwd=/work greeting=from the image override=from the image args=one two"
    );

    // The definition wins over the image, key by key; as everywhere, a command replaces CMD and not ENTRYPOINT.
    daemon.register(&json!({
        "name": "who-else", "provider": provider, "image": "who:1", "user": "4321:8765", "workdir": "/",
        "cmd": ["three"], "environment": {"OVERRIDE": "by hand"},
    }));
    assert_eq!(
        daemon.text("who-else", "who", json!({})),
        "uid=4321 gid=8765 pwd=/ greeting=from the image override=by hand args=three"
    );
    let shown = daemon.status("who-else");
    assert!(!shown.to_string().contains("by hand"), "values of the environment are never shown: {shown:#}");
    assert!(shown["environment"].to_string().contains("OVERRIDE"), "{shown:#}");
}

/// Whether it is the image that asks, or the definition.
fn nobody_asks_their_way_out_of_the_user_namespace(provider: &str) {
    let daemon = Daemon::start();
    let layout = build_image(&daemon.scratch("image"));
    let image = format!("{}:v1", layout.display());
    for (number, user) in ["0:1048576", "1048576:0"].into_iter().enumerate() {
        let name = format!("out-{number}");
        run("umoci", &["config", "--image", &image, "--config.user", user]);
        let imported = daemon.cli(&["image", "import", &image, "--name", &format!("{name}:1")]);
        assert!(imported.status.success(), "{imported:?}");
        let status = daemon.try_register(&json!({
            "name": name, "provider": provider, "image": format!("{name}:1"), "restart_policy": "never",
        }));
        let status = status.json();
        let told = status["last_error"].as_str().unwrap_or_default();
        assert!(told.contains(user) && told.contains("`user`"), "{user}: {status:#}\n{}", daemon.log_tail());
    }
    for user in ["1048576:1048576", "1048576", "0:1048576"] {
        let asked = json!({"name": "asked", "provider": provider, "image": "out-0:1", "user": user});
        let reply = daemon.try_register(&asked);
        assert_eq!((reply.status, &reply.json()["error"]["data"]["field"]), (400, &json!("user")), "{user}: {reply}");
    }
    daemon.register(&json!({"name": "asked", "provider": provider, "image": "out-0:1", "user": "1048575:1048575"}));
    let told = daemon.text("asked", "who", json!({}));
    assert!(told.starts_with("uid=1048575 gid=1048575 "), "{told}");
}

/// An OCI layout with the tag `v1`: busybox, one script, and a configuration of its own.
fn build_image(directory: &Path) -> PathBuf {
    let layout = directory.join("layout");
    let image = format!("{}:v1", layout.display());
    let script = directory.join("server");
    std::fs::write(&script, SERVER).expect("a file");
    run("chmod", &["755", script.to_str().expect("our own name")]);
    run("umoci", &["init", "--layout", layout.to_str().expect("our own name")]);
    run("umoci", &["new", "--image", &image]);
    run("umoci", &["insert", "--image", &image, &static_busybox(), "/bin/busybox"]);
    run("umoci", &["insert", "--image", &image, script.to_str().expect("our own name"), "/bin/server"]);
    let config = ["--config.entrypoint=/bin/server", "--config.cmd=one", "--config.cmd=two", "--config.user=1234:5678"];
    let config = [config.as_slice(), &["--config.workingdir=/work"]].concat();
    let env =
        ["--config.env=GREETING=from the image", "--config.env=OVERRIDE=from the image", "--config.env=PATH=/bin"];
    run("umoci", &[["config", "--image", &image].as_slice(), &config, &env].concat());
    layout
}

fn static_busybox() -> String {
    let found = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    found.expect("busybox-static: scripts/setup --tests installs it").to_string()
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}
