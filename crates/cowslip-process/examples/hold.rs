//! Holds a process again and again, at moments that a seed determines, until it has ended: `hold PID TIMES SEED`.
//!
//! Prints the number of holds and the longest pause in microseconds after each, and failures with their numbers.

use std::time::Duration;

use cowslip_process::look;
use cowslip_sys::error::ErrorKind;

/// Numbers that look random (<https://prng.di.unimi.it/splitmix64.c>).
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn main() {
    let words: Vec<u64> = std::env::args().skip(1).map_while(|word| word.parse().ok()).collect();
    let [pid, times, mut seed] = words[..] else {
        eprintln!("hold PID TIMES SEED");
        std::process::exit(2);
    };
    let mut nap = |most_us: u64| {
        // Half of them follow at once.
        let us = next(&mut seed) % (2 * most_us);
        std::thread::sleep(Duration::from_micros(us.saturating_sub(most_us)));
    };
    let (mut held, mut longest) = (0, Duration::ZERO);
    for number in 0..times {
        match look(pid as i32).and_then(|plan| plan.hold()) {
            Ok(holder) => {
                held += 1;
                longest = longest.max(holder.pause());
                println!("held {held} longest {}", longest.as_micros());
                nap(2_000);
            }
            // Otherwise it executes a program.
            Err(error) if error.kind() == ErrorKind::Vanished => {
                if std::fs::read_link(format!("/proc/{pid}/exe")).is_err() {
                    break;
                }
            }
            // Its libraries may not be there yet.
            Err(error) if error.kind() == ErrorKind::Unsupported && held == 0 && number < 20 => {}
            Err(error) => {
                println!("failed {number} {error}");
                if error.kind() == ErrorKind::Unsupported {
                    break;
                }
            }
        }
        nap(8_000);
    }
}
