#![allow(unsafe_code)]
//! Seals that detect readers, holes, and held descriptors.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use cowslip_sys::memfile::{self, MemfdKind, Seals};
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::reserved_fd::{FileIdentity, ForkGate, ReservedFd, is_held, next_held, same_file};
use cowslip_sys::units::{ByteCount, PageCount, VirtRange, page_size_bytes, round_up};
use cowslip_sys::{AsFd, AsRawFd, Errno, process, socket, tmpfs};
use support::{Mapped, skip};

#[test]
fn a_shared_mapping_anywhere_refuses_the_write_seal() {
    let mapped = Mapped::new(1, Sharing::Shared);
    let seal = || memfile::seal(mapped.file.as_fd(), Seals::WRITE);
    assert_eq!(seal(), Err(Errno::BUSY));
    // SAFETY: the page is the test's own, here and below.
    unsafe { memory::protect(mapped.range, Prot::NONE) }.unwrap();
    assert_eq!(seal(), Err(Errno::BUSY), "it could be made writable again");

    // SAFETY: the child waits to be killed.
    let child = unsafe { process::fork() }.unwrap();
    if child == 0 {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: as above.
    unsafe { memory::map_anonymous(mapped.range, Prot::NONE) }.unwrap();
    assert_eq!(seal(), Err(Errno::BUSY), "the child maps it");
    // SAFETY: kill(2) of that child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    process::wait_for(child).unwrap();
    assert_eq!(seal(), Ok(()), "nobody does");
}

#[test]
fn a_mapping_kept_from_children_is_the_parents_alone() {
    let mapped = Mapped::new(1, Sharing::Shared);
    // SAFETY: the page is the test's own.
    unsafe { memory::advise(mapped.range, Advice::DontFork) }.unwrap();
    // SAFETY: the child makes system calls and ends.
    let child = unsafe { process::fork() }.unwrap();
    if child == 0 {
        // Only the parent maps it.
        let busy = memfile::seal(mapped.file.as_fd(), Seals::WRITE) == Err(Errno::BUSY);
        process::exit_now(i32::from(!busy));
    }
    assert_eq!(process::wait_for(child), Ok(0));
    // SAFETY: as above.
    unsafe { memory::map_anonymous(mapped.range, Prot::NONE) }.unwrap();
    let both = Seals::WRITE | Seals::SEAL;
    assert_eq!(memfile::seal(mapped.file.as_fd(), both), Ok(()));
    assert_eq!(memfile::seal(mapped.file.as_fd(), both), Err(Errno::PERM), "only once");
}

#[test]
fn a_private_mapping_is_no_reader() {
    let mapped = Mapped::new(1, Sharing::Private);
    assert_eq!(memfile::seal(mapped.file.as_fd(), Seals::WRITE), Ok(()));
}

#[test]
fn holes_read_zeroes_and_data_is_found() {
    let page = page_size_bytes() as u64;
    let mapped = Mapped::new(8, Sharing::Shared);
    let file = mapped.file.as_fd();
    assert_eq!(memfile::next_data(file, 0, 8 * page), Ok(Some((0, 8 * page))));
    assert_eq!(memfile::allocated_bytes(file), Ok(8 * page));
    memfile::punch_hole(file, 2 * page, 3 * page).unwrap();
    assert_eq!(memfile::allocated_bytes(file), Ok(5 * page));
    assert_eq!(memfile::next_data(file, 0, 8 * page), Ok(Some((0, 2 * page))));
    assert_eq!(memfile::next_data(file, 2 * page, 8 * page), Ok(Some((5 * page, 8 * page))));
    assert_eq!(memfile::next_data(file, 2 * page, 5 * page), Ok(None));
    assert_eq!([mapped.read(1), mapped.read(2), mapped.read(5)], [2, 0, 6]);
    memfile::write_zeroes(file, 5 * page, page).unwrap();
    assert_eq!([mapped.read(4), mapped.read(5), mapped.read(6)], [0, 0, 7]);
}

#[test]
fn memory_that_cannot_be_read_is_an_error_and_no_signal() {
    let mapped = Mapped::new(2, Sharing::Private);
    // SAFETY: the page is the test's own.
    unsafe { memory::protect(mapped.page(1), Prot::NONE) }.unwrap();
    // SAFETY: no thread writes to it.
    let written = unsafe { memfile::write_range_at(mapped.file.as_fd(), mapped.page(1), 0) };
    assert_eq!(written, Err(Errno::FAULT));
}

#[test]
fn a_tmpfs_of_our_own_leaves_no_mount() {
    let _alone = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let before = mounts();
    match tmpfs::huge_file(4 << 20) {
        Ok(file) => {
            assert_eq!(mounts(), before);
            assert_eq!(memfile::allocated_bytes(file.as_fd()), Ok(0));
        }
        Err(errno) => skip("root", &format!("a tmpfs cannot be mounted: {errno}")),
    }
}

#[test]
fn our_tmpfs_is_mounted_once_and_again_if_the_program_closes_it() {
    let _alone = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let made = || {
        let file = tmpfs::huge_file(4 << 20)?;
        let [device, inode] = FileIdentity::from_fd(file.as_fd())?.to_numbers();
        Ok::<_, Errno>((file, device, inode))
    };
    let (_one, device, inode) = match made() {
        Ok(made) => made,
        Err(errno) => return skip("root", &format!("a tmpfs cannot be mounted: {errno}")),
    };
    let (_two, same, other) = made().unwrap();
    assert!(device == same && inode != other, "two files of one mount");

    let is_mount = |fd: &i32| {
        let stat = rustix::fs::fstat(&*borrowed(*fd)).ok();
        stat.is_some_and(|stat| {
            stat.st_dev == device && stat.st_mode & libc::S_IFMT == libc::S_IFDIR
        })
    };
    let mut held = std::iter::successors(next_held(0, i32::MAX), |fd| next_held(fd + 1, i32::MAX));
    let mount = held.find(is_mount).expect("the mount is held");
    let strange = memfile::memfd("test", MemfdKind::Shmem, 4096).unwrap();
    rustix::io::dup2(strange.as_fd(), &mut borrowed(mount)).unwrap();
    let (_three, fresh, _) = made().unwrap();
    assert_ne!(fresh, device, "mounted anew");
    assert_eq!(made().unwrap().1, fresh);
}

/// The table of held descriptors belongs to the process: only one test at a time may fill it.
static TABLE: Mutex<()> = Mutex::new(());

#[test]
fn held_descriptors_are_high_known_and_closed_once() {
    let _alone = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let file = memfile::memfd("test", MemfdKind::Shmem, 4096).unwrap();
    let low = file.as_raw_fd();
    let identity = FileIdentity::from_fd(file.as_fd()).unwrap();
    let held = ReservedFd::hold(file);
    let high = held.as_raw_fd();
    assert!(high > 100 && high > low, "{high}");
    assert!(is_held(high) && !is_held(low) && !is_held(-1));
    assert_eq!(next_held(high, high), Some(high));
    assert_eq!(next_held(high + 1, high), None);
    assert!(same_file(held.as_fd(), identity));

    let other = ReservedFd::hold(memfile::memfd("other", MemfdKind::Shmem, 4096).unwrap());
    assert!(!same_file(other.as_fd(), identity));
    // Acts like a program that closes and opens descriptors that it does not own.
    rustix::io::dup2(other.as_fd(), &mut borrowed(high)).unwrap();
    assert!(!same_file(held.as_fd(), identity), "replaced");

    held.close_early();
    assert!(!is_held(high));
    held.close_early();
    drop(held);
    assert!(is_held(other.as_raw_fd()), "closing twice closes nobody else's");
}

/// An owned handle that does not close.
fn borrowed(fd: i32) -> std::mem::ManuallyDrop<cowslip_sys::OwnedFd> {
    // SAFETY: the descriptor is open, and this handle never closes it.
    std::mem::ManuallyDrop::new(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) })
}

#[test]
fn a_number_that_was_given_up_stays_taken_and_one_that_was_left_stays_open() {
    let _alone = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let [file, other] =
        ["file", "other"].map(|name| memfile::memfd(name, MemfdKind::Shmem, 4096).unwrap());
    let (held, other) = (ReservedFd::hold(file), ReservedFd::hold(other));
    let (number, wanted) = (held.as_raw_fd(), FileIdentity::from_fd(other.as_fd()).unwrap());
    held.give_up_for(&other);
    assert_eq!(held.as_raw_fd(), number);
    assert!(same_file(held.as_fd(), wanted) && is_held(number));
    held.leave_open();
    assert_eq!(
        FileIdentity::from_fd(held.as_fd()),
        Err(Errno::BADF),
        "no descriptor of this value"
    );
    assert_eq!(FileIdentity::from_fd(borrowed(number).as_fd()), Ok(wanted), "open for others");
    assert!(is_held(number), "and no program closes it");
    held.give_up_for(&other);
    drop(held);
    assert_eq!(FileIdentity::from_fd(borrowed(number).as_fd()), Ok(wanted));
}

#[test]
#[allow(unsafe_code)]
fn a_child_keeps_what_it_inherits_or_claims_and_closes_nothing_that_it_shares() {
    let _alone = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let open = || memfile::memfd("test", MemfdKind::Shmem, 4096);
    let inherited = ReservedFd::hold(open().unwrap());
    let [private, claimed] = [(); 2].map(|()| ReservedFd::open(open).unwrap());
    let all = [&inherited, &private, &claimed].map(AsRawFd::as_raw_fd);
    let are_open = || all.map(|fd| FileIdentity::from_fd(borrowed(fd).as_fd()).is_ok());
    for shares_descriptors in [false, true] {
        let gate = ForkGate::close();
        // SAFETY: the child makes system calls only, and ends.
        let pid = match unsafe { process::fork() }.unwrap() {
            0 => {
                claimed.claim();
                gate.begin_child(shares_descriptors);
                let kept = [true, shares_descriptors, true];
                let is_right = are_open() == kept
                    && all.map(is_held) == kept
                    && FileIdentity::from_fd(private.as_fd()).is_ok() == shares_descriptors;
                [&inherited, &private, &claimed].into_iter().for_each(ReservedFd::close_early);
                let is_right = is_right && are_open() == [shares_descriptors; 3];
                // The gate is open, though the other process is in the middle of a fork.
                process::exit_now(i32::from(!is_right || ReservedFd::open(open).is_err()))
            }
            pid => pid,
        };
        drop(gate);
        assert_eq!(process::wait_for(pid), Ok(0), "shares descriptors: {shares_descriptors}");
    }
    assert_eq!(are_open(), [true; 3]);
}

#[test]
#[allow(unsafe_code)]
fn a_child_is_running_until_it_has_ended() {
    assert!(!process::is_running_child(1) && !process::is_running_child(i32::MAX));
    // SAFETY: the child makes system calls only, and ends.
    let pid = match unsafe { process::fork() }.unwrap() {
        0 => loop {
            let _ = cowslip_sys::waiting::nap(std::time::Duration::from_secs(1));
        },
        pid => pid,
    };
    assert!(process::is_running_child(pid));
    process::end(pid, true).unwrap();
    while process::is_running_child(pid) {
        std::thread::yield_now();
    }
    // It can still be reaped.
    assert_eq!(process::wait_for(pid), Ok(9));
    assert!(!process::is_running_child(pid));
}

#[test]
fn more_held_descriptors_than_places_still_work() {
    let _alone = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let hold = |_| ReservedFd::hold(process::eventfd().unwrap());
    let many: Vec<ReservedFd> = (0..600).map(hold).collect();
    for held in &many {
        process::notify(held.as_fd());
        let mut ready = [false];
        process::wait_readable(&[held.as_fd()], &mut ready, None).unwrap();
        assert!(ready[0]);
    }
}

#[test]
fn units_agree_with_the_kernel() {
    let page = page_size_bytes();
    assert!(page.is_power_of_two() && page >= 4096);
    assert_eq!(PageCount::holding(ByteCount(page as u64 + 1)), PageCount(2));
    assert_eq!(PageCount(2).bytes(), ByteCount(2 * page as u64));
    assert_eq!(round_up(page + 1, page), Some(2 * page));
    for align in [page, 2 << 20, 1 << 30] {
        let range = memory::reserve(3 * page, align).unwrap();
        assert_eq!((range.start % align, range.len), (0, 3 * page));
        // SAFETY: reserved by this test.
        unsafe { memory::unmap(range) }.unwrap();
    }
    assert_eq!(memory::reserve(usize::MAX, page), Err(Errno::NOMEM));
    let a = VirtRange::new(page, 4 * page);
    assert!(a.covers(VirtRange::between(2 * page, 5 * page)) && !a.contains(5 * page));
}

#[test]
fn a_file_goes_over_a_socket_for_reading_only() {
    let file = memfile::memfd("cowslip-test", MemfdKind::Shmem, 4096).unwrap();
    let bytes = [9u8; 64];
    let bytes = VirtRange::new(bytes.as_ptr() as usize, bytes.len());
    // SAFETY: the bytes live longer than the call.
    unsafe { memfile::write_range_at(file.as_fd(), bytes, 0) }.unwrap();
    let read_only = memfile::reopen_read_only(file.as_fd()).unwrap();
    assert_eq!(memfile::len_bytes(read_only.as_fd()), Ok(4096));
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(memfile::len_bytes(ours.as_fd()), Err(Errno::INVAL), "no regular file");
    assert_eq!(socket::send(ours.as_fd(), b"word", &[read_only.as_fd()]), Ok(4));
    let mut word = [0; 8];
    let (len, mut files) = socket::receive(theirs.as_fd(), &mut word).unwrap();
    assert_eq!((&word[..len], files.len()), (&b"word"[..], 1));
    let received = files.pop().unwrap();
    let identity = FileIdentity::from_fd(file.as_fd()).unwrap();
    assert!(same_file(received.as_fd(), identity));
    let mut byte = [0];
    assert_eq!(memfile::read_at(received.as_fd(), &mut byte, 7), Ok(1));
    assert_eq!(byte, [9]);
    assert!(memfile::punch_hole(received.as_fd(), 0, 4096).is_err());
    let too_many = [file.as_fd(); socket::MOST_DESCRIPTORS + 1];
    assert_eq!(socket::send(ours.as_fd(), b"word", &too_many), Err(Errno::INVAL));
    // Not by closing it: a child that another test forks meanwhile would keep it open.
    theirs.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(socket::send(ours.as_fd(), b"word", &[]), Err(Errno::PIPE), "and no signal");
}

#[test]
fn a_place_that_is_taken_is_not_reserved() {
    let page = page_size_bytes();
    let place = memory::reserve(page, page).unwrap();
    assert_eq!(memory::reserve_at(place), Err(Errno::EXIST));
    // SAFETY: reserved above, for this test.
    unsafe { memory::unmap(place) }.unwrap();
    // Another thread may have taken it meanwhile.
    if memory::reserve_at(place) == Ok(()) {
        // SAFETY: as above.
        unsafe { memory::unmap(place) }.unwrap();
    }
}

/// By `/proc/PID/fd`, or where it is handed over for reading.
#[test]
fn memory_files_can_be_opened_by_nobody_else() {
    let mode = |file: &cowslip_sys::OwnedFd| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode(&memfile::memfd("private", MemfdKind::Shmem, 0).unwrap()), 0o600);
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    match tmpfs::huge_file(4096) {
        Ok(file) => assert_eq!((mode(&file), mounts()), (0o600, before), "it is in no table"),
        Err(errno) => skip("a tmpfs of its own", &errno.to_string()),
    }
}
