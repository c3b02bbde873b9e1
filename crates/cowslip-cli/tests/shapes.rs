//! Tables of many shapes, each of a program that is 30 % slower, and of one that is not: the first is found, the second is
//! not. A shape that cannot be read is refused with a reason. No shape is silently wrong.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{COWSLIP, Folder, Ran, run};

const ROWS: usize = 20;
const SLOWER: f64 = 1.3;

/// Values around 100 with a spread of 2 %, by a fixed sequence of random numbers.
struct Noise(u64);

impl Noise {
    fn value(&mut self, mean: f64) -> f64 {
        let mut sum = 0.0;
        for _ in 0..4 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            sum += (self.0 >> 33) as f64 / (1u64 << 31) as f64 - 0.5;
        }
        mean * (1.0 + 0.03 * sum)
    }
}

/// The values of one file; each shape writes them in its way.
fn values(seed: u64, factor: f64) -> Vec<f64> {
    let mut noise = Noise(seed);
    (0..ROWS).map(|_| noise.value(1234.5 * factor)).collect()
}

fn compare(options: &[&str], good: &Path, bad: &Path) -> Ran {
    run(Command::new(COWSLIP).arg("compare").args(options).arg(good).arg("--").arg(bad))
}

struct Shapes {
    folder: Folder,
    count: usize,
    wrong: Vec<String>,
}

impl Shapes {
    fn new(name: &str) -> Self {
        Self { folder: Folder::new(name), count: 0, wrong: Vec::new() }
    }

    fn file(&self, side: &str, content: &[u8]) -> PathBuf {
        let path = self.folder.0.join(format!("{}-{side}.txt", self.count));
        fs::write(&path, content).unwrap();
        path
    }

    /// A shape that is read: slower runs are found, equal ones are not.
    fn read(&mut self, name: &str, write: impl Fn(&[f64]) -> Vec<u8>) {
        self.count += 1;
        let sides = [("good", 1, 1.0), ("same", 7, 1.0), ("bad", 3, SLOWER)];
        let [good, same, bad] =
            sides.map(|(side, seed, factor)| self.file(side, &write(&values(seed, factor))));
        for (other, wanted) in [(&same, 0), (&bad, 1)] {
            let ran = compare(&[], &good, other);
            if ran.status.code() != Some(wanted) {
                self.wrong.push(format!(
                    "{name}: exit code {:?} in place of {wanted}\n{}{}",
                    ran.status.code(),
                    ran.stdout,
                    ran.stderr
                ));
            }
        }
    }

    /// A shape that is refused with these words.
    fn refused(&mut self, name: &str, words: &str, write: impl Fn(&[f64]) -> Vec<u8>) {
        self.count += 1;
        let [good, bad] = [("good", 1, 1.0), ("bad", 3, SLOWER)]
            .map(|(side, seed, factor)| self.file(side, &write(&values(seed, factor))));
        let ran = compare(&[], &good, &bad);
        if ran.status.code() != Some(6) || !ran.stderr.contains(words) {
            self.wrong.push(format!(
                "{name}: exit code {:?}, without `{words}`\n{}{}",
                ran.status.code(),
                ran.stdout,
                ran.stderr
            ));
        }
    }

    fn finish(self, least: usize) {
        assert!(
            self.wrong.is_empty(),
            "{} wrong of {}:\n{}",
            self.wrong.len(),
            self.count,
            self.wrong.join("\n")
        );
        assert!(self.count >= least, "{} shapes", self.count);
    }
}

/// Rows of cells, with a head, separated by `by`.
fn table(head: &[&str], by: &str, row: impl Fn(usize) -> Vec<String>) -> String {
    let rows = (0..ROWS).map(|index| row(index).join(by) + "\n");
    [head.join(by) + "\n"].into_iter().chain(rows).collect()
}

fn grouped(value: f64, group: &str, mark: &str) -> String {
    let (whole, fraction) = (value as u64, (value.fract() * 100.0) as u64);
    format!("{}{group}{:03}{mark}{fraction:02}", whole / 1000, whole % 1000)
}

type Written = fn(f64) -> String;

/// Ways to write a number, and the separator that goes with it.
const NUMBERS: [(&str, &str, Written); 13] = [
    ("plain", ",", |value| format!("{value:.2}")),
    ("whole", ",", |value| format!("{value:.0}")),
    ("exponent", ",", |value| format!("{value:.4e}")),
    ("quoted", ",", |value| format!("\"{value:.2}\"")),
    ("unit", ",", |value| format!("{value:.2} ms")),
    ("unit without a blank", "\t", |value| format!("{value:.2}us")),
    ("percent", ",", |value| format!("{:.3}%", value / 100.0)),
    ("thousands", ",", |value| format!("\"{}\"", grouped(value, ",", "."))),
    ("thousands and unit", ";", |value| format!("{} us", grouped(value, ",", "."))),
    ("decimal comma", ";", |value| format!("{:.2}", value / 10.0).replace('.', ",")),
    ("decimal comma, tab", "\t", |value| format!("{:.2}", value / 10.0).replace('.', ",")),
    ("German", ";", |value| grouped(value, ".", ",")),
    ("binary multiple", ",", |value| format!("{value:.1} MiB")),
];

const HEADS: [&str; 12] = [
    "ms",
    "latency",
    "time",
    "elapsed",
    "wall_seconds",
    "Duration (ms)",
    "real",
    "runtime",
    "response time",
    "p99",
    "date",
    "timestamp",
];

#[test]
fn heads_and_numbers_of_any_kind_are_read() {
    let mut shapes = Shapes::new("shapes-numbers");
    for head in HEADS {
        for (kind, by, number) in NUMBERS {
            shapes.read(&format!("{head}, {kind}"), |values| {
                table(&["run", head], by, |row| vec![(row + 1).to_string(), number(values[row])])
                    .into_bytes()
            });
        }
    }
    shapes.finish(150);
}

#[test]
fn rows_of_any_form_are_read() {
    let mut shapes = Shapes::new("shapes-rows");
    let plain = |values: &[f64], by: &str| {
        table(&["run", "latency"], by, |row| vec![row.to_string(), format!("{:.2}", values[row])])
    };
    for (name, by) in
        [("comma", ","), ("semicolon", ";"), ("tab", "\t"), ("bar", "|"), ("blanks", "   ")]
    {
        shapes.read(name, |values| plain(values, by).into_bytes());
    }
    shapes.read("byte order mark", |values| format!("\u{feff}{}", plain(values, ",")).into_bytes());
    shapes.read("CR LF", |values| plain(values, ",").replace('\n', "\r\n").into_bytes());
    shapes.read("blank lines", |values| plain(values, ",").replace('\n', "\n\n").into_bytes());
    shapes.read("comments", |values| {
        let text =
            plain(values, ",").replace("\n5,", "\n# a \"remark, it is\n# restarted, again\n5,");
        format!("# made by hand, \"here\n# of two, words\n{text}").into_bytes()
    });
    for (name, bytes) in [
        ("UTF-16, little", u16::to_le_bytes as fn(u16) -> [u8; 2]),
        ("UTF-16, big", u16::to_be_bytes),
    ] {
        shapes.read(name, |values| {
            let text = format!("\u{feff}{}", plain(values, ","));
            text.encode_utf16().flat_map(bytes).collect()
        });
    }
    shapes.read("Excel", |values| format!("sep=;\r\n{}", plain(values, ";")).into_bytes());
    shapes.read("no head", |values| {
        plain(values, ",").split_once('\n').unwrap().1.as_bytes().to_vec()
    });
    shapes.read("one column, no head", |values| {
        values.iter().map(|value| format!("{value}\n")).collect::<String>().into_bytes()
    });
    shapes.read("head in a comment", |values| format!("# {}", plain(values, ";")).into_bytes());
    shapes.read("head in a comment, blanks", |values| {
        format!("#{}", plain(values, " ")).into_bytes()
    });
    shapes.read("repeated head", |values| {
        plain(values, ",").replace("\n9,", "\nrun,latency\n9,").into_bytes()
    });
    shapes.read("index of pandas", |values| {
        table(&["", "latency"], ",", |row| vec![row.to_string(), format!("{:.2}", values[row])])
            .into_bytes()
    });
    for missing in ["N/A", "-", "null", "", "NaN", "nan", "None", "inf", "<not counted>"] {
        shapes.read(&format!("missing: {missing}"), |values| {
            let cell =
                |row| if row == 4 { missing.to_owned() } else { format!("{:.2}", values[row]) };
            table(&["run", "latency"], ",", |row| vec![row.to_string(), cell(row)]).into_bytes()
        });
    }
    for (name, time) in [
        ("seconds", (|row| (1_700_000_000 + 5 * row).to_string()) as fn(usize) -> String),
        ("milliseconds, some equal", |row| (1_700_000_000_000 + row / 2 * 7).to_string()),
        ("a day", |row| format!("2026-11-30 10:00:{row:02}")),
        ("a day in UTC", |row| format!("2026-11-30T10:00:{row:02}Z")),
        ("a time", |row| format!("10:00:{row:02}")),
        ("American", |row| format!("11/{:02}/2026", row + 1)),
    ] {
        for head in ["timestamp", "date", "Time"] {
            if head == "Time" && name.starts_with("milliseconds") {
                continue;
            }
            shapes.read(&format!("{head}: {name}"), |values| {
                table(&[head, "latency"], ",", |row| vec![time(row), format!("{:.2}", values[row])])
                    .into_bytes()
            });
        }
    }
    shapes.read("offset in seconds", |values| {
        table(&["elapsed", "latency"], ",", |row| {
            vec![format!("{:.1}", row as f64 * 0.5), format!("{:.2}", values[row])]
        })
        .into_bytes()
    });
    shapes.read("texts", |values| {
        table(&["id", "host", "latency"], ",", |row| {
            vec![format!("{:x}", row * 7919), "web-1".to_owned(), format!("{:.2}", values[row])]
        })
        .into_bytes()
    });
    shapes.read("minutes of GNU time", |values| {
        table(&["run", "elapsed"], ",", |row| {
            vec![row.to_string(), format!("0:{:05.2}", values[row] / 50.0)]
        })
        .into_bytes()
    });
    shapes.read("minutes of a shell", |values| {
        table(&["run", "real"], ",", |row| {
            vec![row.to_string(), format!("1m{:.3}s", values[row] / 50.0 - 20.0)]
        })
        .into_bytes()
    });
    shapes.read("sorted", |values| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        table(&["latency"], ",", |row| vec![format!("{:.2}", sorted[row])]).into_bytes()
    });
    shapes.read("sorted and whole", |values| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        table(&["rss_kb"], ",", |row| vec![format!("{:.0}", sorted[row] * 100.0)]).into_bytes()
    });
    shapes.read("sadf -d", |values| {
        let rows = values
            .iter()
            .enumerate()
            .map(|(row, value)| format!("web-1;5;2026-11-30 10:00:{row:02} UTC;{value:.2};3.00\n"));
        let head = "# hostname;interval;timestamp;fault/s;majflt/s\n".to_owned();
        let restart = "web-1;-1;2026-11-30 09:59:59 UTC;LINUX-RESTART (2 CPU)\n".to_owned();
        [restart, head].into_iter().chain(rows).collect::<String>().into_bytes()
    });
    shapes.finish(50);
}

#[test]
fn cases_are_not_one_sample() {
    let mut shapes = Shapes::new("shapes-cases");
    // One of three cases is slower.
    let case = |row: usize| ["load", "parse", "save"][row % 3];
    let of_case = |values: &[f64], row: usize| match row % 3 {
        0 => format!("{:.1}", Noise(row as u64 + values[0].to_bits()).value(9000.0)),
        1 => format!("{:.1}", values[row]),
        _ => format!("{:.1}", Noise(row as u64 + values[1].to_bits()).value(5000.0)),
    };
    shapes.read("case,ms", |values| {
        table(&["case", "ms"], ",", |row| vec![case(row).to_owned(), of_case(values, row)])
            .into_bytes()
    });
    shapes.read("threads in turn", |values| {
        let rows = (0..18).map(|row| format!("{},{}\n", [1, 2, 8][row % 3], of_case(values, row)));
        ["threads,ms\n".to_owned()].into_iter().chain(rows).collect::<String>().into_bytes()
    });
    shapes.read("metric,value", |values| {
        let rows = values.iter().enumerate().map(|(row, value)| {
            format!(
                "cpu,{:.2}\nlatency,{value:.2}\n",
                Noise(row as u64 + value.to_bits()).value(30.0)
            )
        });
        ["metric,value\n".to_owned()].into_iter().chain(rows).collect::<String>().into_bytes()
    });
    shapes.read("JMeter", |values| {
        table(
            &["timeStamp", "elapsed", "label", "responseCode", "success", "bytes", "Latency"],
            ",",
            |row| {
                let elapsed = format!("{:.0}", values[row]);
                let (stamp, label) =
                    (1_700_000_000_000 + row * 31, ["home", "cart"][row % 2].to_owned());
                vec![
                    stamp.to_string(),
                    elapsed,
                    label,
                    "200".into(),
                    "true".into(),
                    "512".into(),
                    "7".into(),
                ]
            },
        )
        .into_bytes()
    });
    // A row a side is too little to test.
    shapes.refused("redis-benchmark --csv", "with too few values: rps{test=GET}", |values| {
        format!("\"test\",\"rps\"\n\"SET\",\"{:.2}\"\n\"GET\",\"90000.00\"\n", values[0])
            .into_bytes()
    });
    shapes.refused(
        "a word in a column",
        "column `latency`, line 7: `slow` is no number",
        |values| {
            let cell =
                |row| if row == 5 { "slow".to_owned() } else { format!("{:.2}", values[row]) };
            table(&["run", "latency"], ",", |row| vec![row.to_string(), cell(row)]).into_bytes()
        },
    );
    shapes.refused("two meanings", "may have a decimal comma", |values| {
        table(&["run", "latency"], ";", |row| {
            vec![row.to_string(), format!("1,{:03.0}", values[row] / 10.0)]
        })
        .into_bytes()
    });
    shapes.refused("another status on one side", "only in bad runs: ms{status=error}", |values| {
        let is_bad = values[0] > 1500.0;
        table(&["status", "ms"], ",", |row| {
            let status = if is_bad && row % 2 == 0 { "error" } else { "ok" };
            vec![status.to_owned(), format!("{:.2}", values[row])]
        })
        .into_bytes()
    });
    shapes.finish(8);
}

#[test]
fn rows_of_one_kind_are_chosen_by_where() {
    let folder = Folder::new("shapes-where");
    let write = |name: &str, seed: u64, factor: f64| {
        let values = values(seed, factor);
        let path = folder.0.join(name);
        let text = table(&["status", "ms"], ",", |row| {
            let status = if factor > 1.0 && row % 2 == 0 { "error" } else { "ok" };
            vec![status.to_owned(), format!("{:.2}", values[row])]
        });
        fs::write(&path, text).unwrap();
        path
    };
    let (good, bad) = (write("good", 1, 1.0), write("bad", 3, SLOWER));
    let ran = compare(&["--where", "status=ok"], &good, &bad);
    assert_eq!(ran.status.code(), Some(1), "{}{}", ran.stdout, ran.stderr);
    let ran = compare(&["--where", "state=ok"], &good, &bad);
    assert!(ran.stderr.contains("no column called `state`, but status, ms"), "{}", ran.stderr);
    let ran = compare(&["--where", "status=gone"], &good, &bad);
    assert!(ran.stderr.contains("no row with `gone` in `status`"), "{}", ran.stderr);
    assert_eq!(ran.status.code(), Some(2));
}

#[test]
fn devices_and_wide_tables_come_to_an_end() {
    let mut shapes = Shapes::new("shapes-wide");
    let ran = compare(&[], Path::new("/dev/zero"), Path::new("/dev/zero"));
    assert_eq!(ran.status.code(), Some(6), "{}", ran.stderr);
    shapes.read("20,000 columns", |values| {
        let head: Vec<String> = (0..20_000).map(|column| format!("c{column}")).collect();
        let heads: Vec<&str> = head.iter().map(String::as_str).collect();
        table(&heads, ",", |row| vec![format!("{:.2}", values[row]); heads.len()]).into_bytes()
    });
    shapes.finish(1);
}
