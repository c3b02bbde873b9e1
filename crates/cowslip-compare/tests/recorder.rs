//! The recorder beside programs with faults and processes that the kernel counts as well.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cowslip_compare::inputs::{Run, parse};
use cowslip_compare::recorder::{Recorder, Watch, facts};

/// Longer than any test: only the first and the last sample are taken.
const NEVER: Duration = Duration::from_secs(3_600);

fn finish(recorder: Recorder<Vec<u8>>) -> String {
    let totals = BTreeMap::from([("wall_seconds".to_owned(), 1.0)]);
    String::from_utf8(recorder.stop().unwrap().finish(totals).unwrap()).unwrap()
}

fn run(text: &str) -> Run {
    parse(text, "a", None).unwrap().remove(0)
}

/// The growth of the counter from the first to the last sample.
fn growth(text: &str, metric: &str) -> f64 {
    let samples: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names = samples.iter().find_map(|line| line["metrics"].as_array()).unwrap();
    let column = names.iter().position(|name| name["name"] == metric).unwrap();
    let mut values = samples.iter().filter_map(|line| line["sample"]["values"][column].as_f64());
    let first = values.next().unwrap();
    values.next_back().unwrap() - first
}

/// The minor faults of a process, and those of the children that it waited for.
fn faults(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = text[text.rfind(')').unwrap() + 2..].split(' ').collect();
    fields[7].parse::<f64>().unwrap() + fields[8].parse::<f64>().unwrap()
}

struct Shell(Child);

impl Shell {
    fn start() -> Self {
        let piped = || Stdio::piped();
        Self(Command::new("sh").stdin(piped()).stdout(piped()).spawn().unwrap())
    }

    /// Has it run a line that ends with an output of one line.
    fn tell(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn faults_of_a_process_and_its_children_are_the_kernels() {
    let mut shell = Shell::start();
    shell.tell("echo ready");
    let pid = shell.0.id();
    let before = faults(pid);
    let recorder = Recorder::start(Vec::new(), &facts(), Watch::Process(pid), NEVER).unwrap();
    // Children that are waited for: their faults are the shell's.
    shell.tell("for i in 1 2 3 4 5 6 7 8; do cat /dev/null; done; echo done");
    let after = faults(pid);
    let text = finish(recorder);
    assert!(after - before > 400.0, "{before} to {after}");
    let counted = growth(&text, "process.minor_faults");
    assert!((after - before - 20.0..=after - before).contains(&counted), "{counted}");
    let run = run(&text);
    assert!(run.facts.contains_key("thp.enabled") && run.facts.contains_key("kernel"));
    assert_eq!(run.metrics["wall_seconds"].value(), 1.0);
    assert_eq!(run.metrics["process.count"].samples(), [1.0, 1.0]);
    for metric in ["vmstat.pgfault", "interrupts.all", "meminfo.memfree_bytes", "process.rss_bytes"]
    {
        assert!(run.metrics[metric].value() > 0.0, "{metric}");
    }
    assert!(growth(&text, "vmstat.pgfault") >= counted);
    // Eight children, and their switches.
    assert!(growth(&text, "scheduler.forks") >= 8.0);
    assert!(growth(&text, "scheduler.context_switches") >= 8.0);
    let shares = run.metrics.iter().filter(|(name, _)| name.starts_with("cpu."));
    let shares: Vec<f64> = shares.map(|(_, metric)| metric.value()).collect();
    assert!(shares.len() == 8 && shares.iter().all(|share| *share >= 0.0), "{shares:?}");
}

#[test]
fn a_command_has_no_faults_before_it_is_followed_and_keeps_them_when_it_has_ended() {
    let recorder = Recorder::start(Vec::new(), &BTreeMap::new(), Watch::Command, NEVER).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "cat /dev/null; read line"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    recorder.follow(pid);
    drop(child.stdin.take());
    // A zombie still has its counters.
    while !fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let exact = faults(pid);
    let text = finish(recorder);
    child.wait().unwrap();
    assert_eq!(growth(&text, "process.minor_faults"), exact);
    assert!(exact > 50.0);
    let run = run(&text);
    for unknown in ["process.schedstat.run_seconds", "process.count", "process.rss_bytes"] {
        assert!(!run.metrics.contains_key(unknown), "no sample saw it run: {unknown}");
    }
}

#[test]
fn what_a_command_read_wrote_and_waited_for_is_known_without_a_sample_within_it() {
    let recorder = Recorder::start(Vec::new(), &BTreeMap::new(), Watch::Command, NEVER).unwrap();
    // More children than processors, all of them ready to run: some wait.
    let count = std::thread::available_parallelism().unwrap().get() + 1;
    let busy = "dd if=/dev/zero of=/dev/null bs=2 count=100000 2> /dev/null";
    let script =
        format!("n=0; while [ $n -lt {count} ]; do n=$((n + 1)); {busy} & done; wait; exit 0");
    let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    recorder.follow(child.id());
    while !fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let text = finish(recorder);
    child.wait().unwrap();
    let calls = 100_000.0 * count as f64;
    for metric in ["process.read_calls", "process.write_calls"] {
        let counted = growth(&text, metric);
        assert!((calls..calls + 100.0 * count as f64).contains(&counted), "{metric}: {counted}");
    }
    let waited = growth(&text, "process.schedstat.wait_seconds");
    assert!(waited > 0.001, "{waited}");
}

/// Ticks on a processor of a process, and of all processes of the machine.
fn ticks(pid: u32) -> (f64, f64) {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = text[text.rfind(')').unwrap() + 2..].split(' ').collect();
    let own = fields[11..15].iter().map(|field| field.parse::<f64>().unwrap()).sum();
    let all = fs::read_to_string("/proc/stat").unwrap();
    let all = all.lines().next().unwrap().split_ascii_whitespace().skip(1).take(3);
    (own, all.map(|field| field.parse::<f64>().unwrap()).sum())
}

#[test]
fn the_processor_time_of_others_is_the_machines_without_the_commands() {
    let (mut outside, mut inside) = (Shell::start(), Shell::start());
    let pid = inside.0.id();
    let (own_before, all_before) = ticks(pid);
    let watch = Watch::Process(pid);
    let recorder = Recorder::start(Vec::new(), &BTreeMap::new(), watch, NEVER).unwrap();
    let half_a_second = "for i in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=/dev/null bs=2 count=200000 2> /dev/null; done; echo";
    inside.tell(half_a_second);
    outside.tell(half_a_second);
    outside.tell(half_a_second);
    let text = finish(recorder);
    let ((own, all), (other, _)) = (ticks(pid), ticks(outside.0.id()));
    let counted = 100.0 * growth(&text, "others.cpu_share");
    assert!(own - own_before >= 20.0, "{own_before} to {own}");
    assert!(counted >= 0.8 * other, "{counted} of {other}");
    let most = all - all_before - (own - own_before);
    assert!(counted <= most + 5.0, "{counted}, but {most} without its own {own}");
}

#[test]
fn processors_that_a_command_leaves_for_one_are_counted() {
    let all = std::thread::available_parallelism().unwrap().get();
    let taskset = Command::new("taskset").arg("--version").output();
    if taskset.is_err() || all < 2 {
        println!("SKIPPED: needs taskset and two processors");
        return;
    }
    let of = |command: &str| {
        let recorder =
            Recorder::start(Vec::new(), &BTreeMap::new(), Watch::Command, NEVER).unwrap();
        let mut child = Command::new("sh").args(["-c", command]).spawn().unwrap();
        recorder.follow(child.id());
        while !fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        let text = finish(recorder);
        child.wait().unwrap();
        run(&text).metrics["process.forbidden_processors"].value()
    };
    let one = "exec taskset -c $(taskset -cp $$ | sed 's/.*: //; s/[-,].*//') true";
    assert_eq!([of("exec true"), of(one)], [0.0, all as f64 - 1.0]);
}

/// A control group that may run for a fifth of the time once it is limited; removed when it is dropped.
struct Limited {
    directory: std::path::PathBuf,
    limit: [&'static str; 2],
}

impl Limited {
    fn new() -> Option<Self> {
        let top = std::path::Path::new("/sys/fs/cgroup");
        let name = format!("cowslip-recorder-{}", std::process::id());
        let mut first = ["cpu", "cpu,cpuacct"].map(|folder| top.join(folder)).into_iter();
        let (directory, limit) = match first.find(|path| path.join("cpu.cfs_quota_us").exists()) {
            Some(first) => (first.join(name), ["cpu.cfs_quota_us", "20000"]),
            None => (top.join(name), ["cpu.max", "20000 100000"]),
        };
        fs::create_dir(&directory).ok()?;
        let group = Self { directory, limit };
        group.directory.join(limit[0]).exists().then_some(group)
    }

    fn has(&self, pid: u32) -> bool {
        let all = fs::read_to_string(self.directory.join("cgroup.procs")).unwrap();
        all.lines().any(|line| line == pid.to_string())
    }

    fn limit(&self) {
        let [file, text] = self.limit;
        fs::write(self.directory.join(file), text).unwrap();
    }

    /// Seconds, by the kernel.
    fn throttled(&self) -> f64 {
        let text = fs::read_to_string(self.directory.join("cpu.stat")).unwrap();
        let of = |name: &str, unit: f64| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().parse::<f64>().unwrap() / unit)
        };
        of("throttled_usec ", 1e6).or(of("throttled_time ", 1e9)).unwrap()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // The kernel lets go of a process a little after it was waited for.
        while fs::remove_dir(&self.directory)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
        {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_command_that_enters_a_limited_group_is_throttled_as_long_as_the_kernel_says() {
    let Some(group) = Limited::new() else {
        println!("SKIPPED: needs root, and the processor controller of control groups");
        return;
    };
    let run = |command: &str, enters: bool| {
        let (lines, interval) = (Lines::default(), Duration::from_millis(10));
        let recorder =
            Recorder::start(lines.clone(), &BTreeMap::new(), Watch::Command, interval).unwrap();
        let before = group.throttled();
        let mut child = Command::new("sh").args(["-c", command]).spawn().unwrap();
        recorder.follow(child.id());
        if enters {
            while !group.has(child.id()) {
                std::thread::yield_now();
            }
            // The recorder counts from its first look at the group: one sample may have begun before.
            lines.wait_for_more(2);
            group.limit();
        }
        while !fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        let after = group.throttled();
        recorder.stop().unwrap().finish(BTreeMap::new()).unwrap();
        child.wait().unwrap();
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        (growth(&text, "process.throttled_seconds"), after - before)
    };
    let group_at = group.directory.display();
    let busy = "dd if=/dev/zero of=/dev/null bs=2 count=100000 2> /dev/null";
    let until = format!("[ \"$(sed -n 's/^nr_throttled //p' {group_at}/cpu.stat)\" -gt 1 ]");
    let enter = format!("echo $$ > {group_at}/cgroup.procs; until {until}; do {busy}; done");
    let (counted, known) = run(&enter, true);
    assert!(known > 0.01 && (counted - known).abs() < 1e-6, "{counted}, not {known}");
    let (counted, _) = run(busy, false);
    assert_eq!(counted, 0.0);
}

/// Counts its lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn wait_for_more(&self, more: usize) {
        let count = || self.0.lock().unwrap().iter().filter(|byte| **byte == b'\n').count();
        let wanted = count() + more;
        while count() < wanted {
            std::thread::yield_now();
        }
    }
}

#[test]
fn samples_come_at_the_interval_and_descendants_are_found() {
    let mut shell = Shell::start();
    let watch = Watch::Process(shell.0.id());
    let interval = Duration::from_millis(10);
    let lines = Lines::default();
    let recorder = Recorder::start(lines.clone(), &BTreeMap::new(), watch, interval).unwrap();
    lines.wait_for_more(3);
    shell.tell("sh -c 'while :; do :; done' & echo started");
    lines.wait_for_more(3);
    shell.tell("kill $!; wait; echo done");
    lines.wait_for_more(3);
    recorder.stop().unwrap().finish(BTreeMap::new()).unwrap();
    let run = run(&String::from_utf8(lines.0.lock().unwrap().clone()).unwrap());
    let count = &run.metrics["process.count"];
    assert!(count.samples().len() >= 9, "{count:?}");
    assert!(count.samples().contains(&1.0) && count.samples().contains(&2.0), "{count:?}");
    assert!(run.metrics["process.schedstat.run_seconds"].value() > 0.0);
}

#[test]
fn the_machine_alone_can_be_recorded() {
    let recorder = Recorder::start(Vec::new(), &BTreeMap::new(), Watch::Machine, NEVER).unwrap();
    assert!(!finish(recorder).contains("process."));
}
