//! `cowslip trace report` on shared memory in which a program touches known pages.

mod support;

use std::process::Command;

use serde_json::{Value, json};
use support::{COWSLIP, Folder, compile, run};

#[test]
fn the_faults_of_shared_memory_are_of_the_known_kinds() {
    let folder = Folder::new("trace-shared");
    let Some(program) = compile(&folder, "shared") else { return };
    let trace = folder.0.join("trace");
    for detail in ["faults", "access"] {
        let mut command = Command::new(COWSLIP);
        command.args(["trace", "--detail", detail, "-o"]).arg(&trace).arg("--").arg(&program);
        let ran = run(&mut command);
        if ran.status.code() == Some(125) {
            let expected = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
            assert!(!expected.split(',').any(|name| name == "trace"), "{}", ran.stderr);
            println!("SKIPPED: cowslip trace: {}", ran.stderr);
            return;
        }
        assert!(ran.status.success(), "{}", ran.stderr);
        let ran =
            run(Command::new(COWSLIP).args(["trace", "report"]).arg(&trace).args(["--json", "-"]));
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["lost"], 0, "{}", report["header"]["unseen"]);
        let mappings = report["mappings"].as_array().unwrap();
        let of = |kind: &str, name: &str| -> Vec<&Value> {
            let is_of_it = |mapping: &&Value| {
                let place = &mapping["identity"]["place"];
                place["kind"] == kind && place["name"].as_str().unwrap_or("").starts_with(name)
            };
            mappings.iter().filter(is_of_it).collect()
        };
        for (kind, name) in [
            ("shared", ""),
            ("memory_file", "/memfd:known"),
            ("memory_file", "/SYSV"),
            ("memory_file", "/dev/shm/cowslip-known"),
        ] {
            let found = of(kind, name);
            let [mapping] = found[..] else { panic!("{kind} {name}: {found:#?}") };
            let expected = json!({"first_touch": 2048, "shared_mapped": 2048});
            assert_eq!(mapping["by_kind"], expected, "{kind} {name}, --detail {detail}");
        }
        let again = of("memory_file", "/memfd:again");
        let faults = |kind: &str| -> u64 {
            again.iter().filter_map(|mapping| mapping["by_kind"][kind].as_u64()).sum()
        };
        assert_eq!((faults("first_touch"), faults("shared_mapped")), (2_000, 0), "{again:#?}");
        let patterns = report["patterns"].as_array().unwrap();
        let names = |word: &str| -> Vec<&str> {
            let of_it = |pattern: &&Value| pattern["sentence"].as_str().unwrap().contains(word);
            patterns.iter().filter(of_it).filter_map(|pattern| pattern["name"].as_str()).collect()
        };
        assert_eq!(names("/memfd:known"), ["staircase"], "{patterns:#?}");
        if report["header"]["sources"].to_string().contains("munmap") {
            assert!(names("/memfd:again").contains(&"churn"), "{patterns:#?}");
        } else {
            println!("SKIPPED: unmaps are not seen here: {}", report["header"]["unseen"]);
        }
    }
}
