//! Tools that load a server or a disk, and series of Prometheus.

use cowslip_compare::inputs::{Where, parse, read, read_where};

use crate::{assert_close, assert_refused, benchmarks, data, names, only, text, value};

#[test]
fn series_of_prometheus_are_metrics_named_by_the_labels_that_differ() {
    let run = only("prometheus.json");
    let expected = [
        "http_requests_total{code=\"200\"}",
        "http_requests_total{code=\"500\"}",
        "process_resident_memory_bytes",
    ];
    assert_eq!(run.metrics.keys().collect::<Vec<_>>(), expected);
    assert_eq!(run.metrics[expected[0]].samples(), [2.0, 4.0]);
    assert_eq!(run.metrics[expected[1]].growth().unwrap().count, 3.0);
    assert_eq!(run.metrics[expected[2]].samples(), [1e8, 2e8], "in the order of time");
    assert_eq!(run.missing.values().sum::<usize>(), 2);
    let text = text("prometheus.json");
    assert_refused(&text.replace("matrix", "vector"), "ask for query_range");
    assert_refused(&text.replace("\"190\"", "190"), "no pair of a time and a text");
    assert_refused(&text.replace("\"190\"", "\"x\""), "x is no value");
    assert_refused(&text.replace("\"values\"", "\"value\""), "without `metric` and `values`");
    let failed = r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#;
    assert_refused(failed, "Prometheus answered: parse error");
    let long = text.replace("\"500\"", &format!("\"{}\"", "5".repeat(300)));
    let run = &parse(&long, "a", None).unwrap()[0];
    assert_eq!(
        (run.metrics.len(), run.missing.values().sum::<usize>()),
        (2, 3),
        "a name that is too long"
    );
}

#[test]
fn points_of_k6_are_samples_and_its_counters_have_rates() {
    let run = only("k6.jsonl");
    assert_eq!(run.metrics["http_req_duration"].samples(), [12.5, 13.5, 16.0]);
    assert_eq!(run.metrics["http_reqs"].growth().unwrap().count, 3.0);
    assert_eq!(run.metrics["http_reqs"].samples(), [2.0, 0.5]);
    assert_eq!(value(&run, "checks"), 0.5);
    let text = text("k6.jsonl");
    assert_refused(&text[..text.len() - 5], "line 11");
    assert_refused(&text.replace("2026-11-30T", "today "), "line 2: a point of k6 without a time");
    let run = only("k6-summary.json");
    assert_eq!(
        (value(&run, "http_req_duration.p(95)"), value(&run, "http_reqs.rate")),
        (21.25, 24.75)
    );
    let newer =
        r#"{"root_group": {}, "metrics": {"a": {"type": "trend", "values": {"avg": 2.5}}}}"#;
    assert_eq!(value(&parse(newer, "a", None).unwrap()[0], "a.avg"), 2.5);
    assert_refused(
        &newer.replace("{\"a\": {\"type\"", "[{\"type\"").replace("}}}}", "}}]}"),
        "no object",
    );
}

#[test]
fn requests_of_vegeta_are_samples_in_the_order_of_their_starts() {
    let run = only("vegeta.jsonl");
    assert_eq!(run.metrics["latency_seconds"].samples().len(), 10);
    assert_eq!(run.metrics["latency_seconds"].samples()[0], 0.01366731);
    assert_eq!((value(&run, "bytes_in"), value(&run, "success")), (335.0, 0.0));
    let text = text("vegeta.jsonl");
    let reverse: Vec<&str> = text.lines().rev().collect();
    assert_eq!(parse(&reverse.join("\n"), "a", None).unwrap()[0].metrics, run.metrics);
    assert_refused(&text[..text.len() - 5], "line 10");
    assert_refused(&text.replacen("\"latency\":", "\"latency\":\"a\", \"b\":", 1), "line 1");
    let run = only("vegeta.json");
    assert_close(value(&run, "latency_seconds.99th"), 0.01366731);
    assert_eq!((value(&run, "requests"), value(&run, "status_codes.404")), (10.0, 10.0));
    assert_eq!((value(&run, "success"), value(&run, "wait_seconds")), (0.0, 0.002984281));
    assert!(run.metrics.contains_key("attack_seconds"));
    let slower = self::text("vegeta.json").replace(":13667310", ":23667310");
    let runs = [run, parse(&slower, "a", None).unwrap().remove(0)];
    let compared = cowslip_compare::compare(&runs, &runs, &Default::default()).unwrap();
    assert_eq!(compared.primary, None, "the length of an attack is chosen");
    let broken = self::text("vegeta.json").replace("{\"total\":56746873", "1, \"x\": {\"t\":1");
    assert_refused(&broken, "no object");
}

#[test]
fn jobs_of_fio_are_benchmarks_and_those_of_one_name_are_runs() {
    let all = benchmarks("fio.json");
    assert_eq!((names(&all), all[0].runs.len()), (vec!["seq"], 2));
    let run = &all[0].runs[0];
    assert_eq!(value(run, "read.iops"), 14235.294118);
    assert_eq!(value(run, "read.bw_bytes"), 58307764.0);
    assert_eq!(value(run, "read.clat_ns.mean"), 61830.140496);
    assert_eq!(
        (value(run, "read.clat_ns.p50"), value(run, "read.clat_ns.p99.9")),
        (57600.0, 261120.0)
    );
    assert!(run.metrics.contains_key("write.iops") && !run.metrics.contains_key("trim.iops"));
    assert_eq!(run.facts["fio"], "fio-3.33");
    let text = text("fio.json");
    let failed = parse(&text.replacen("\"error\": 0", "\"error\": 28", 1), "a", None).unwrap();
    assert_eq!((failed.len(), failed[0].failed_runs), (1, 1));
    assert_refused(&text.replace("\"error\": 0", "\"error\": 28"), "no job without an error");
    assert_refused(&text.replace("\"jobname\"", "\"name\""), "without `jobname`");
    assert_refused(&text[..text.len() - 9], "is none");
}

#[test]
fn reports_of_wrk_are_runs() {
    let runs = read(&data("wrk.txt")).unwrap();
    assert_eq!(runs.len(), 2);
    assert_close(value(&runs[0], "latency_seconds.mean"), 0.00428);
    assert_close(value(&runs[0], "latency_seconds.p99"), 0.01596);
    assert_close(value(&runs[0], "transfer_bytes_per_second"), 530.86 * 1024.0);
    assert_eq!(value(&runs[0], "failed_responses"), 2092.0);
    assert_eq!(value(&runs[1], "requests_per_second"), 929.31);
    let text = text("wrk.txt");
    let errors =
        text.replace("  1022", "  Socket errors: connect 0, read 3, write 0, timeout 12\n  1022");
    let run = &parse(&errors, "a", None).unwrap()[1];
    assert_eq!(
        (value(run, "socket_errors.read"), value(run, "socket_errors.timeout")),
        (3.0, 12.0)
    );
    assert_refused(&text[..text.len() - 60], "its end is missing");
    assert_refused(&text.replace("4.28ms", "4.28mus"), "4.28mus, no number");
}

#[test]
fn endpoints_of_locust_are_metrics_of_their_own() {
    let [stats, history] =
        ["stats", "stats_history"].map(|file| only(&format!("locust/out_{file}.csv")));
    assert_close(value(&stats, "Average Response Time{Type=GET,Name=/list}"), 13.055916749981407);
    assert_eq!(value(&stats, "Request Count{Type=,Name=Aggregated}"), 424.0);
    assert_eq!(value(&stats, "Failure Count{Type=GET,Name=/find}"), 15.0);
    assert!(stats.left_out.is_empty(), "{:?}", stats.left_out);

    let list =
        |metric: &str| history.metrics[&format!("{metric}{{Type=GET,Name=/list}}")].samples();
    let rows = text("locust/out_stats_history.csv");
    let rows: Vec<&str> = rows.lines().filter(|row| row.contains("GET,/list,")).collect();
    assert_eq!(list("Requests/s").len(), rows.len());
    // The first of these seconds has no request in its window, and so no percentile.
    assert_eq!((list("Requests/s")[0], list("95%").len()), (0.0, rows.len() - 1));
    assert!(!history.metrics.keys().any(|name| name.starts_with("Total")));

    // Lists of errors are refused alone, and left out beside the results of the same run.
    for list in ["failures", "exceptions"] {
        let text = text(&format!("locust/out_{list}.csv"));
        assert_refused(&text, "take its `_stats.csv`");
    }
    let runs = read(&data("locust")).unwrap();
    assert_eq!((runs.len(), &runs[0].metrics), (1, &stats.metrics));
    assert_eq!(runs[0].left_out.len(), 3, "{:?}", runs[0].left_out);
    let wanted = Where { column: "Name".to_owned(), value: "/list".to_owned() };
    let run = &read_where(&data("locust/out_stats.csv"), &[wanted]).unwrap()[0];
    assert!(run.metrics.keys().all(|name| name.contains("/list")), "{:?}", run.metrics.keys());
}
