#![allow(unsafe_code)]
//! Forks through libc: an installed arena is in every child, with its content at the fork.

mod support;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cowslip::{Arena, Fork, units::ByteCount};
use support::{Watchdog, alone, pattern};

const WORDS: usize = 4 << 20 >> 3;

/// Calls libc's fork, which the library notices only by its handlers; the result of `child` becomes its exit code.
fn libc_fork(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child reads and writes memory and ends.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let code = i32::from(!child());
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        pid => pid,
    }
}

/// Returns true if the child ended with 0.
fn succeeds(pid: i32) -> bool {
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

fn is_pattern(words: &[u64]) -> bool {
    words.iter().enumerate().all(|(i, &word)| word == pattern(i))
}

#[test]
fn a_child_of_libcs_fork_has_the_content_of_that_instant() {
    let _alone = alone();
    let _watchdog = Watchdog::start("forks by libc");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    arena.install_at_fork().unwrap();
    arena.install_at_fork().unwrap();
    let mut words = arena.slice::<u64>(WORDS).unwrap();
    for round in 0..5 {
        words.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
        let (mut ours, theirs) = std::io::pipe().unwrap();
        let child = libc_fork(|| {
            use std::io::Read;
            // Waits until the parent has written to all of it.
            let mut byte = [0];
            ours.read_exact(&mut byte).is_ok() && is_pattern(&words) && {
                let first = words.as_ptr().cast_mut();
                // SAFETY: the child's own memory, and its only thread.
                unsafe { first.write(7) };
                words[0] == 7 && grandchild_has(&words)
            }
        });
        words.fill(round);
        std::io::Write::write_all(&mut &theirs, &[1]).unwrap();
        assert!(succeeds(child), "round {round}");
        assert!(words.iter().all(|&word| word == round), "the child's writes are its own");
    }
    assert!(arena.metrics().freezes > 0, "it was frozen, and not left to the kernel");
}

/// The child's own forks have it, too.
fn grandchild_has(words: &[u64]) -> bool {
    succeeds(libc_fork(|| words[0] == 7 && words[1] == pattern(1)))
}

#[test]
fn threads_fork_at_once_while_others_write_and_arenas_come_and_go() {
    let _alone = alone();
    let _watchdog = Watchdog::start("forks of many threads");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    arena.install_at_fork().unwrap();
    let mut words = arena.slice::<u64>(WORDS).unwrap();
    words.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
    let words = &words;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let forks: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || (0..20).all(|_| succeeds(libc_fork(|| is_pattern(words)))))
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let short = Arena::new(ByteCount::mib(4)).unwrap();
                short.install_at_fork().unwrap();
                short.slice::<u64>(512).unwrap().fill(1);
            }
        });
        let all = forks.into_iter().all(|fork| fork.join().unwrap());
        is_over.store(true, Relaxed);
        assert!(all);
    });
}

#[test]
fn the_librarys_own_fork_does_not_wait_for_itself() {
    let _alone = alone();
    let _watchdog = Watchdog::start("own fork with handlers");
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    arena.install_at_fork().unwrap();
    let mut words = arena.slice::<u64>(512).unwrap();
    words.fill(3);
    // SAFETY: the child only reads, and ends.
    match unsafe { cowslip::fork(&[&arena]) }.unwrap() {
        // SAFETY: ends the child.
        Fork::Child => unsafe { libc::_exit(i32::from(words[511] != 3)) },
        Fork::Parent(pid) => assert!(succeeds(pid)),
    }
    assert!(succeeds(libc_fork(|| words[511] == 3)), "and the handlers work again");
}
