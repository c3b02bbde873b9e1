//! Reports of perf, procps and sysstat.

use cowslip_compare::inputs::{parse, read};

use crate::{assert_close, assert_refused, data, only, text, value};

#[test]
fn separated_fields_of_perf_stat_are_read_like_its_json() {
    let runs = read(&data("perf-appended.txt")).unwrap();
    assert_eq!(runs.len(), 2);
    assert_eq!((value(&runs[0], "page-faults"), value(&runs[0], "task-clock_msec")), (501.0, 5.28));
    assert_eq!(value(&runs[1], "context-switches"), 0.0);
    assert!(!runs[0].metrics.contains_key("cycles"), "not supported there");

    let run = only("perf-interval.txt");
    assert_eq!(run.metrics["page-faults"].samples().len(), 2, "two were not counted");
    assert_eq!(run.metrics["page-faults"].samples()[0], 57.0 / 0.200136502);
    let commas = text("perf-interval.txt").replace('.', ",");
    assert_eq!(parse(&commas, "a", None).unwrap()[0].metrics, run.metrics);

    let run = only("perf-repeated.txt");
    assert_eq!((value(&run, "page-faults"), value(&run, "task-clock_msec")), (48.0, 0.40));
    let run = only("perf-processors.txt");
    assert_eq!(
        (value(&run, "page-faults.cpu0"), value(&run, "page-faults.cpu1")),
        (7684.0, 1253.0)
    );

    let comma =
        "7,,cpu/event=0x3c,umask=0x0/,5276805,100.00,,\n12,Joules,power/energy-pkg/,1,100.00,,\n";
    let run = &parse(comma, "a", None).unwrap()[0];
    assert_eq!(value(run, "cpu/event=0x3c,umask=0x0/"), 7.0);
    assert_eq!(value(run, "power/energy-pkg/_Joules"), 12.0);
    assert_refused(&(text("perf-appended.txt") + "3,4\n"), "line 13: it is no count");
}

#[test]
fn columns_of_vmstat_are_metrics_without_the_means_since_the_start() {
    let run = only("vmstat.txt");
    assert_eq!(run.metrics["us"].samples(), [90.0, 96.0, 87.0]);
    assert_eq!((value(&run, "swpd"), run.metrics.len()), (0.0, 17));
    let run = only("vmstat-times.txt");
    assert_eq!(run.metrics["cs"].samples(), [690.0, 345.0]);
    assert!(!run.metrics.contains_key("UTC"));
    let text = text("vmstat.txt");
    let first: Vec<&str> = text.lines().take(3).collect();
    assert_refused(&first.join("\n"), "give it an interval");
    assert_refused(&text[..text.len() - 9], "line 6 of vmstat has");
    let again: Vec<&str> = text.lines().chain(text.lines().take(2)).collect();
    assert_eq!(parse(&again.join("\n"), "a", None).unwrap()[0].metrics["us"].samples().len(), 3);
}

#[test]
fn processors_of_mpstat_are_metrics_without_averages() {
    let run = only("mpstat.txt");
    assert_eq!(run.metrics["cpu.all.%usr"].samples(), [90.40, 96.06, 86.43]);
    assert_eq!(run.metrics["cpu.1.%idle"].samples(), [0.0, 0.0, 1.0]);
    let facts = ["kernel", "host", "machine", "cpu.count"].map(|fact| run.facts[fact].as_str());
    assert_eq!(facts, ["6.18.44-fc-v669", "vm", "x86_64", "2"]);
    let text = text("mpstat.txt");
    for other in [
        text.replace("13:42:", "01:42:")
            .replace("     CPU", " PM  CPU")
            .replace("     all", " PM  all")
            .replace("       0   ", " PM    0   ")
            .replace("       1   ", " PM    1   "),
        text.replace('.', ",").replace("6,18,44", "6.18.44"),
        text.replace("Average:", "Durchschn.:"),
    ] {
        assert_eq!(parse(&other, "a", None).unwrap()[0].metrics, run.metrics, "{other}");
    }
    let cut = text.lines().take(5).collect::<Vec<_>>().join("\n");
    assert_refused(&cut[..cut.len() - 30], "line 5 has");
    assert_refused(text.lines().next().unwrap(), "without rows of sar, mpstat, pidstat or iostat");
}

#[test]
fn commands_of_pidstat_are_added_up_and_missing_rates_are_zero() {
    let run = only("pidstat.txt");
    assert_eq!(run.metrics["cargo.%CPU"].samples(), [8.91, 1.0, 0.0]);
    assert_eq!(run.metrics["rustc.RSS"].samples()[0], 383232.0 + 224880.0 + 115792.0);
    assert!(!run.metrics.keys().any(|name| name.contains("PID") || name.ends_with(".CPU")));
    assert_eq!(run.facts["cpu.count"], "2");
    let run = only("pidstat-h.txt");
    assert_eq!(run.metrics["cargo.%system"].samples(), [2.0, 0.0, 0.0]);
    assert_close(run.metrics["rustc.%usr"].samples()[0], 71.0);
    let text = text("pidstat.txt").replace("cargo", "my command -l");
    let run = &parse(&text, "a", None).unwrap()[0];
    assert_eq!(run.metrics["my command -l.%CPU"].samples().len(), 3);
    assert_refused(
        &text.replace("22186    443.00 ", "22186 "),
        "my in the column %MEM is no number",
    );
    assert_refused(&text.replace("  0.27  my command -l", ""), "line 12 has 6 of 8 columns");
    let mut many = text.lines().next().unwrap().to_owned() + "\n";
    for second in 0..5000 {
        let time = format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
        many += &format!("\n{time} UID PID %CPU Command\n{time} 0 1 0.5 a{second}\n");
    }
    assert_refused(&many, "restrict it with -C");
}
