//! Pages that the kernel merged with equal ones (KSM): they stay so while nothing uses them, and a process that does gets
//! copies on huge pages.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cowslip_promote::{Effect, HeatSource, Promoter, Reason, Settings, Target};

const KSM: &str = "/sys/kernel/mm/ksm";
const PATIENCE: Duration = Duration::from_secs(60);
const REGIONS: u64 = 8;

/// Takes memory of which both halves are equal, and reads a byte of each page for each line. No two pages of a region are
/// equal: the kernel does not collapse a region that maps one page twice.
const PROGRAM: &str = "
import mmap, sys
memory = mmap.mmap(-1, 10 << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_MERGEABLE)
for at in range(0, len(memory), 4096): memory[at:at + 4] = (at // 4096 % 2560).to_bytes(4, 'little')
print('ready', flush=True)
for line in sys.stdin: print(sum(memory[::4096]), flush=True)
";

/// The kernel's settings of merging, restored with this value.
struct Merging(Vec<(String, String)>);

impl Merging {
    fn begin() -> Self {
        let names = ["run", "sleep_millisecs", "pages_to_scan"];
        let paths = names.map(|name| format!("{KSM}/{name}"));
        let before = paths.map(|path| (fs::read_to_string(&path).unwrap(), path));
        let merging = Self(before.map(|(text, path)| (path, text)).to_vec());
        fs::write(format!("{KSM}/sleep_millisecs"), "5").unwrap();
        fs::write(format!("{KSM}/pages_to_scan"), "5000").unwrap();
        fs::write(format!("{KSM}/run"), "1").unwrap();
        merging
    }
}

impl Drop for Merging {
    fn drop(&mut self) {
        for (path, text) in &self.0 {
            fs::write(path, text).unwrap();
        }
    }
}

struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start() -> Option<Self> {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let (input, output) = (child.stdin.take()?, child.stdout.take()?);
        let mut program = Self { child, input, output: BufReader::new(output) };
        (program.line() == "ready").then_some(program)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Has it read all of its memory.
    fn read(&mut self) {
        self.input.write_all(b"\n").unwrap();
        let wanted: u32 = (0..2560).map(|page| page & 255).sum::<u32>() * 2;
        assert_eq!(self.line(), wanted.to_string(), "its content is as it was");
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Merged and huge bytes of its memory, by the kernel's sums.
    fn sums(&self) -> (u64, u64) {
        let text = fs::read_to_string(format!("/proc/{}/smaps", self.pid())).unwrap();
        let sum = |name: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix(name));
            let kib = lines.map(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap());
            kib.sum::<u64>() << 10
        };
        (sum("KSM:"), sum("AnonHugePages:"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn merged_pages_stay_merged_while_cold_and_become_huge_when_hot() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 || fs::metadata(KSM).is_err() {
        return println!("SKIPPED: merging needs root, and a kernel with CONFIG_KSM");
    }
    let Some(mut program) = Program::start() else {
        return println!("SKIPPED: there is no python3 that can ask for merging");
    };
    let merging = Merging::begin();
    let deadline = Instant::now() + PATIENCE;
    while program.sums().0 < REGIONS << 21 {
        assert!(Instant::now() < deadline, "nothing was merged: {:?}", program.sums());
        thread::yield_now();
    }
    // Keeps huge memory from being merged again meanwhile.
    fs::write(format!("{KSM}/run"), "0").unwrap();

    let settings = Settings {
        stall_percent: 100.0,
        promotion_cpu_percent: 100.0,
        slow_ms: 10_000,
        pressure_percent: 100.0,
        settle_ms: 0,
        ..Settings::default()
    };
    let mut promoter = Promoter::new(settings).unwrap();
    promoter.add(Target::open(program.pid(), 1).unwrap());
    promoter.watch_heat(HeatSource::Mappings);
    let reasons = |promoter: &mut Promoter| {
        let (look, _) = promoter.look(0).unwrap();
        promoter.decide(&look)
    };
    reasons(&mut promoter);
    for _ in 0..3 {
        let decisions = reasons(&mut promoter);
        let merged = decisions.iter().filter(|decision| decision.reason == Reason::Merged).count();
        assert!(merged as u64 >= REGIONS, "{decisions:?}");
    }
    let (merged_before, _) = program.sums();
    assert!(merged_before >= REGIONS << 21, "looks leave them merged");

    let deadline = Instant::now() + PATIENCE;
    let mut promoted = 0;
    while promoted < REGIONS {
        assert!(Instant::now() < deadline, "{promoted} regions, {:?}", program.sums());
        program.read();
        for decision in reasons(&mut promoter) {
            let outcome = promoter.act(&decision);
            promoted += u64::from(outcome.is_some_and(|outcome| outcome.effect == Effect::Done));
        }
    }
    let (merged, huge) = program.sums();
    assert!(huge >= REGIONS << 21, "{huge} bytes huge");
    assert!(merged <= merged_before - (REGIONS << 21), "{merged} of {merged_before} still merged");
    program.read();
    drop(merging);
}
