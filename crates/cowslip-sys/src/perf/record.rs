//! Parses records from their bytes. Any bytes give an answer; none cause a panic.

use perf_event_open_sys::bindings as raw;

/// The optional parts of an event's samples.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Layout {
    /// A call stack.
    pub has_stack: bool,
    /// The fields of a tracepoint.
    pub has_fields: bool,
    /// Registers and a part of the stack.
    pub has_copy: bool,
}

/// The time of a record, its process and thread, and the reporting event.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stamp {
    /// Nanoseconds of the monotonic clock.
    pub time_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The event's number ([`Event::id`](super::Event::id)).
    pub id: u64,
}

/// A record with its stamp.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stamped<'a> {
    /// The time, the thread and the event.
    pub stamp: Stamp,
    /// The record itself.
    pub record: Record<'a>,
}

/// A report of the kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Record<'a> {
    /// An event happened.
    Sample(Sample<'a>),
    /// A mapping appeared, grew or got another protection.
    Map(MapRecord<'a>),
    /// A thread was named.
    Name {
        /// By executing another program.
        is_exec: bool,
        /// Its name.
        name: &'a [u8],
    },
    /// The thread of the stamp created another one, or a process.
    Fork {
        /// The new one's process.
        pid: u32,
        /// The new one's thread.
        tid: u32,
    },
    /// A thread ended.
    Exit {
        /// Its process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// There was no room for this many records.
    Lost(u64),
    /// The event occurred too often and is not reported for a while.
    Throttled,
    /// Another kind, with this number.
    Other(u32),
}

/// An occurrence of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample<'a> {
    /// The instruction.
    pub ip: u64,
    /// The address that it concerns; 0 for a tracepoint.
    pub address: u64,
    /// True if the instruction was the program's own, not the kernel's.
    pub in_user_mode: bool,
    stack: &'a [u8],
    /// A tracepoint's fields, to be read by its format.
    pub fields: &'a [u8],
    /// The program's registers and stack, if it was asked for and the thread has them.
    pub copy: Option<StackCopy<'a>>,
}

/// The numbers of the registers of a [`StackCopy`], as `linux/perf_regs` has them for x86: BP, SP and IP.
pub(super) const REGISTERS: u64 = 0b111 << 6;

/// A thread's registers, and the inner end of its stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackCopy<'a> {
    /// The frame pointer.
    pub bp: u64,
    /// The stack pointer: the address of the first byte.
    pub sp: u64,
    /// The next instruction.
    pub ip: u64,
    /// The bytes from the stack pointer on.
    pub bytes: &'a [u8],
}

impl Sample<'_> {
    /// The program's call stack, the innermost frame first.
    pub fn stack(&self) -> impl Iterator<Item = u64> {
        let (words, _) = self.stack.as_chunks::<8>();
        // Numbers in the last page are not addresses but marks such as PERF_CONTEXT_USER.
        const FIRST_MARK: u64 = -4095i64 as u64;
        words.iter().map(|word| u64::from_ne_bytes(*word)).filter(|&frame| frame < FIRST_MARK)
    }
}

/// A mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRecord<'a> {
    /// Its first address.
    pub address: u64,
    /// Its bytes: those of the whole mapping, where the kernel joined a new one to its neighbours.
    pub length_bytes: u64,
    /// The offset in the file at which it begins.
    pub offset_bytes: u64,
    /// The file's number; 0: none.
    pub inode: u64,
    /// `PROT_` bits.
    pub protection: u32,
    /// `MAP_` bits.
    pub flags: u32,
    /// The file's path, `//anon`, or a name in brackets.
    pub name: &'a [u8],
}

impl<'a> Stamped<'a> {
    /// Parses the bytes of a whole record; `layout` returns the optional parts of an event's samples. `None` if the
    /// bytes end too early, or the event is unknown.
    pub fn parse(bytes: &'a [u8], layout: impl Fn(u64) -> Option<Layout>) -> Option<Self> {
        let mut body = Cursor(bytes);
        let (kind, misc) = (body.u32()?, body.u16()?);
        let _size = body.u16()?;
        if kind == raw::PERF_RECORD_SAMPLE {
            return sample(body, misc, layout);
        }
        let stamp = body.trailer()?;
        let record = match kind {
            raw::PERF_RECORD_MMAP2 => Record::Map(body.map()?),
            raw::PERF_RECORD_COMM => {
                let _ids = body.u64()?;
                let is_exec = u32::from(misc) & raw::PERF_RECORD_MISC_COMM_EXEC != 0;
                Record::Name { is_exec, name: body.name() }
            }
            raw::PERF_RECORD_FORK => {
                let (pid, _parent) = (body.u32()?, body.u32()?);
                Record::Fork { pid, tid: body.u32()? }
            }
            raw::PERF_RECORD_EXIT => {
                let (pid, _parent) = (body.u32()?, body.u32()?);
                Record::Exit { pid, tid: body.u32()? }
            }
            raw::PERF_RECORD_LOST => {
                let _id = body.u64()?;
                Record::Lost(body.u64()?)
            }
            raw::PERF_RECORD_LOST_SAMPLES => Record::Lost(body.u64()?),
            raw::PERF_RECORD_THROTTLE => Record::Throttled,
            other => Record::Other(other),
        };
        Some(Self { stamp, record })
    }
}

fn sample<'a>(
    mut body: Cursor<'a>,
    misc: u16,
    layout: impl Fn(u64) -> Option<Layout>,
) -> Option<Stamped<'a>> {
    let (id, ip) = (body.u64()?, body.u64()?);
    let (pid, tid) = (body.u32()?, body.u32()?);
    let (time_ns, address) = (body.u64()?, body.u64()?);
    let layout = layout(id)?;
    let mut stack: &[u8] = &[];
    if layout.has_stack {
        let frames = usize::try_from(body.u64()?).ok()?;
        stack = body.take(frames.checked_mul(8)?)?;
    }
    let mut fields: &[u8] = &[];
    if layout.has_fields {
        let length = body.u32()?;
        fields = body.take(usize::try_from(length).ok()?)?;
    }
    let copy = if layout.has_copy { body.copy()? } else { None };
    let mode = u32::from(misc) & raw::PERF_RECORD_MISC_CPUMODE_MASK;
    let in_user_mode = mode == raw::PERF_RECORD_MISC_USER;
    let record = Record::Sample(Sample { ip, address, in_user_mode, stack, fields, copy });
    Some(Stamped { stamp: Stamp { time_ns, pid, tid, id }, record })
}

/// The unread rest of a record.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Takes the stamp off the end: all records but samples have one (`sample_id_all`).
    fn trailer(&mut self) -> Option<Stamp> {
        const BYTES: usize = 24;
        let (rest, trailer) = self.0.split_at_checked(self.0.len().checked_sub(BYTES)?)?;
        self.0 = rest;
        let mut trailer = Cursor(trailer);
        let (pid, tid) = (trailer.u32()?, trailer.u32()?);
        Some(Stamp { time_ns: trailer.u64()?, pid, tid, id: trailer.u64()? })
    }

    fn map(&mut self) -> Option<MapRecord<'a>> {
        let _ids = self.u64()?;
        let (address, length_bytes, offset_bytes) = (self.u64()?, self.u64()?, self.u64()?);
        let _device = self.u64()?;
        let (inode, _generation) = (self.u64()?, self.u64()?);
        let (protection, flags) = (self.u32()?, self.u32()?);
        let name = self.name();
        Some(MapRecord { address, length_bytes, offset_bytes, inode, protection, flags, name })
    }

    /// Registers and a part of the stack: the inner `None` for a thread of the kernel, or a 32-bit program.
    fn copy(&mut self) -> Option<Option<StackCopy<'a>>> {
        let abi = self.u64()?;
        let registers = match abi {
            0 => None,
            _ => Some([self.u64()?, self.u64()?, self.u64()?]),
        };
        let room = usize::try_from(self.u64()?).ok()?;
        let bytes = self.take(room)?;
        let copied = if room > 0 { usize::try_from(self.u64()?).ok()? } else { 0 };
        let bytes = bytes.get(..copied)?;
        let is_whole = abi == u64::from(raw::PERF_SAMPLE_REGS_ABI_64);
        let copy = |[bp, sp, ip]: [u64; 3]| StackCopy { bp, sp, ip, bytes };
        Some(registers.filter(|_| is_whole).map(copy))
    }

    /// The rest up to the first zero.
    fn name(&self) -> &'a [u8] {
        self.0.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Layout = Layout { has_stack: true, has_fields: true, has_copy: true };

    fn record(kind: u32, misc: u32, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend((misc as u16).to_ne_bytes());
        bytes.extend((8 + body.len() as u16).to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn trailer() -> Vec<u8> {
        words(&[u64::from(8u32) << 32 | 7, 1000, 42])
    }

    #[test]
    fn a_sample_has_what_its_layout_says() {
        let mut body = words(&[42, 0x401000, 8 << 32 | 7, 1000, 0x7f00]);
        body.extend(words(&[3, -512i64 as u64, 0x401000, 0x402000]));
        body.extend(5u32.to_ne_bytes());
        body.extend(*b"field");
        body.extend(words(&[2, 6, 0x7ff0, 0x401000, 16, 1, 2, 8]));
        let bytes = record(raw::PERF_RECORD_SAMPLE, raw::PERF_RECORD_MISC_USER, &[&body]);
        let parsed = Stamped::parse(&bytes, |id| (id == 42).then_some(ALL)).unwrap();
        assert_eq!(parsed.stamp, Stamp { time_ns: 1000, pid: 7, tid: 8, id: 42 });
        let Record::Sample(sample) = parsed.record else { panic!("{parsed:?}") };
        assert_eq!((sample.ip, sample.address, sample.in_user_mode), (0x401000, 0x7f00, true));
        assert_eq!(sample.stack().collect::<Vec<_>>(), [0x401000, 0x402000]);
        assert_eq!(sample.fields, b"field");
        let copy = StackCopy { bp: 6, sp: 0x7ff0, ip: 0x401000, bytes: &words(&[1]) };
        assert_eq!(sample.copy, Some(copy));
        assert_eq!(Stamped::parse(&bytes, |_| None), None);

        // A thread of the kernel has neither.
        let layout = Layout { has_copy: true, ..Layout::default() };
        let body = words(&[42, 0x401000, 8 << 32 | 7, 1000, 0, 0, 0]);
        let bytes = record(raw::PERF_RECORD_SAMPLE, 0, &[&body]);
        let parsed = Stamped::parse(&bytes, |_| Some(layout)).unwrap();
        assert!(matches!(parsed.record, Record::Sample(Sample { copy: None, .. })));
    }

    #[test]
    fn the_other_records_end_with_their_stamp() {
        let maps = words(&[8 << 32 | 7, 0x1000, 0x2000, 0x3000, 0, 17, 0, 2 << 32 | 3]);
        let bytes = record(raw::PERF_RECORD_MMAP2, 0, &[&maps, b"/lib/a\0\0", &trailer()]);
        let parsed = Stamped::parse(&bytes, |_| None).unwrap();
        let Record::Map(map) = parsed.record else { panic!("{parsed:?}") };
        assert_eq!((map.address, map.length_bytes, map.offset_bytes), (0x1000, 0x2000, 0x3000));
        assert_eq!((map.inode, map.protection, map.flags, map.name), (17, 3, 2, &b"/lib/a"[..]));
        assert_eq!(parsed.stamp, Stamp { time_ns: 1000, pid: 7, tid: 8, id: 42 });

        let of = |kind, misc, body: &[u8]| {
            let bytes = record(kind, misc, &[body, &trailer()]);
            format!("{:?}", Stamped::parse(&bytes, |_| None).unwrap().record)
        };
        let fork = words(&[7 << 32 | 9, 7 << 32 | 10, 0]);
        assert_eq!(of(raw::PERF_RECORD_FORK, 0, &fork), "Fork { pid: 9, tid: 10 }");
        assert_eq!(of(raw::PERF_RECORD_EXIT, 0, &fork), "Exit { pid: 9, tid: 10 }");
        assert_eq!(of(raw::PERF_RECORD_LOST, 0, &words(&[42, 5])), "Lost(5)");
        assert_eq!(of(raw::PERF_RECORD_LOST_SAMPLES, 0, &words(&[5])), "Lost(5)");
        assert_eq!(of(raw::PERF_RECORD_THROTTLE, 0, &words(&[0, 0, 0])), "Throttled");
        assert_eq!(of(4711, 0, &[]), "Other(4711)");
        let name = [&words(&[0])[..], b"sh\0\0\0\0\0\0"].concat();
        let exec = of(raw::PERF_RECORD_COMM, raw::PERF_RECORD_MISC_COMM_EXEC, &name);
        assert_eq!(exec, format!("Name {{ is_exec: true, name: {:?} }}", b"sh"));
    }

    /// Random bytes of every kind and length, and truncated records: each gives an answer.
    #[test]
    fn no_bytes_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for round in 0..200_000u32 {
            let length = (random() % 160) as usize;
            let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            for (place, byte) in bytes.iter_mut().zip((round % 24).to_ne_bytes()) {
                *place = byte;
            }
            if random() % 2 == 0 {
                // With small counts, lengths nearly fit.
                bytes
                    .iter_mut()
                    .skip(48)
                    .for_each(|byte| *byte &= if round % 3 == 0 { 1 } else { 15 });
            }
            if let Some(Stamped { record: Record::Sample(sample), .. }) =
                Stamped::parse(&bytes, |_| Some(ALL))
            {
                let copied = sample.copy.map_or(0, |copy| copy.bytes.len());
                assert!(sample.stack().count() * 8 + sample.fields.len() + copied <= length);
            }
        }
    }
}
