//! What `scripts/` leave on a machine, on a directory instead of one. Builds nothing: a cargo of the test's own stands in.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

#[test]
fn an_installed_configuration_is_for_root_alone() {
    let home = std::env::temp_dir().join(format!("stdiod-install-{}", std::process::id()));
    let (tree, programs, target) = (home.join("tree"), home.join("programs"), home.join("target"));
    for dir in [&programs, &tree.join("target/release"), &target] {
        std::fs::create_dir_all(dir).unwrap();
    }
    for part in ["scripts", "bundles"] {
        let copied =
            Command::new("cp").arg("-r").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(part)).arg(&tree).status();
        assert!(copied.unwrap().success());
    }
    std::fs::write(tree.join("target/release/stdiod"), "#!/bin/sh\n").unwrap();
    std::fs::write(programs.join("cargo"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(programs.join("cargo"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let installed = Command::new(tree.join("scripts/install")).arg("--destdir").arg(&target).env("PATH", path).output();
    let installed = installed.unwrap();
    assert!(installed.status.success(), "{installed:?}");
    let mode = |file: &str| std::fs::metadata(target.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!(format!("{:o}", mode("etc/stdiod/stdiod.toml")), "600", "it may hold the database's password");
    assert_eq!(format!("{:o}", mode("usr/local/bin/stdiod")), "755");
    std::fs::remove_dir_all(home).unwrap();
}
