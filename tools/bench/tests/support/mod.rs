//! The command under test, and what runs it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

#[path = "../../../../crates/cowslip-cli/tests/support/process.rs"]
pub mod process;

pub const BENCH: &str = env!("CARGO_BIN_EXE_cowslip-bench");
