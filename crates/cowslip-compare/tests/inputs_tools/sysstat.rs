//! Text of sar and iostat, in several languages.

use cowslip_compare::inputs::{Run, parse, read};
use cowslip_compare::{Options, Verdict, compare};

use crate::{assert_refused, data, only, text, value};

fn samples(run: &Run, metric: &str) -> Vec<f64> {
    run.metrics
        .get(metric)
        .unwrap_or_else(|| panic!("{metric}: {:?}", run.metrics.keys()))
        .samples()
        .to_vec()
}

/// `sar -A` in the order of the reports, and as `sar -f` writes them: table after table, with marks between the rows.
#[test]
fn tables_of_sar_are_metrics_by_column_and_item_without_averages() {
    let run = only("sar-devices.txt");
    assert_eq!(samples(&run, "cpu.all.%usr"), [44.50, 65.50]);
    assert_eq!(samples(&run, "cpu.0.%sys"), [100.0, 48.0]);
    assert_eq!(samples(&run, "dev.vda.wkB/s"), [12.0, 122.77]);
    assert_eq!(samples(&run, "iface.eth0.%ifutil"), [0.0, 0.0]);
    assert_eq!(samples(&run, "kbmemfree"), [12159364.0, 11975012.0]);
    assert_eq!((value(&run, "runq-sz"), value(&run, "pswpin/s")), (3.0, 0.0));
    assert_eq!(run.facts["cpu.count"], "2");

    let run = only("sar-restart.txt");
    assert_eq!(samples(&run, "proc/s"), [21.0, 21.0, 5.0, 2865.0]);
    assert_eq!(samples(&run, "dev.vda.wkB/s"), [80.0, 580.0, 98536.0, 99344.0]);
    assert_eq!(run.metrics.len(), 10, "{:?}", run.metrics.keys());
}

#[test]
fn clocks_and_decimal_commas_of_languages_are_read() {
    for (file, user, writes) in [
        ("sar-de_DE.txt", 50.25, 0.0),
        ("sar-en_IN.txt", 50.25, 9780.0),
        ("sar-ja_JP.txt", 50.25, 0.0),
    ] {
        let run = only(file);
        assert_eq!(samples(&run, "cpu.all.%user"), [user], "{file}");
        assert_eq!(samples(&run, "dev.vda.wkB/s"), [writes], "{file}");
        assert_eq!(run.metrics.len(), 14, "{file}: {:?}", run.metrics.keys());
    }
    // Items in capitals are no time zones.
    let indian = text("sar-en_IN.txt");
    for other in [indian.replace(" UTC ", " "), indian.replace(" AM UTC ", " pm ")] {
        let run = &parse(&other, "a", None).unwrap()[0];
        assert_eq!(run.metrics, only("sar-en_IN.txt").metrics, "{other}");
    }
    let run = only("iostat-de_DE.txt");
    assert_eq!(run.metrics["cpu.all.%user"].samples().len(), 1, "the second of two reports");
}

#[test]
fn columns_of_one_name_and_lists_of_devices_are_told_apart() {
    let first = text("sar-devices.txt").lines().next().unwrap().to_owned();
    let nfs = "\n1:00:00 call/s retrans/s\n1:00:01 3.00 4.00\n";
    let tcp = "\n1:00:00 atmptf/s estres/s retrans/s\n1:00:01 1.00 2.00 5.00\n";
    let usb = "\n1:00:00 BUS idvendor idprod maxpower manufact product\n1:00:01 1 1d6b 2 0 Linux Device\n";
    let fan = "\n1:00:00 FAN rpm drpm DEVICE\n1:00:01 1 900.00 300.00 it8718-isa\n";
    let run = &parse(&(first.clone() + nfs + tcp + usb + fan), "a", None).unwrap()[0];
    assert_eq!((value(run, "nfs.retrans/s"), value(run, "retrans/s")), (4.0, 5.0));
    assert_eq!(value(run, "fan.1.rpm"), 900.0);
    assert!(run.left_out[0].starts_with("table `BUS`"), "{:?}", run.left_out);
    assert_eq!(run.metrics.len(), 7, "{:?}", run.metrics.keys());

    // -z leaves a device out while it is idle; its rates are zero then, and no wait is known.
    let idle = "\n1:00:01 DEV tps await\n\n1:00:02 DEV tps await\n1:00:03 vda 4.00 1.50\n";
    let run =
        &parse(&(first + "\n1:00:00 DEV tps await\n1:00:01 vda 2.00 0.50\n" + idle), "a", None)
            .unwrap()[0];
    assert_eq!(samples(run, "dev.vda.tps"), [2.0, 0.0, 4.0]);
    assert_eq!(samples(run, "dev.vda.await"), [0.5, 1.5]);
}

#[test]
fn reports_of_iostat_are_samples_without_the_first() {
    let run = only("iostat.txt");
    assert_eq!(samples(&run, "cpu.all.%user"), [72.86, 53.50, 54.87]);
    assert_eq!(samples(&run, "dev.vda.w/s"), [291.0, 30.0, 14.0]);
    assert_eq!(samples(&run, "dev.vda.w_await"), [1.65, 0.10, 0.14]);
    assert_eq!(run.metrics.len(), 6 + 22, "{:?}", run.metrics.keys());
    // -y wrote no first report.
    assert_eq!(samples(&only("iostat-y.txt"), "cpu.all.%user"), [62.5, 63.0]);
    assert_eq!(samples(&only("iostat.json"), "disk.vda.tps").len(), 1);

    let whole = text("iostat.txt");
    let row = whole.lines().find(|line| line.contains("  291.00 ")).unwrap();
    let run = &parse(&whole.replace(row, ""), "a", None).unwrap()[0];
    assert_eq!(samples(run, "dev.vda.w/s"), [0.0, 30.0, 14.0]);
    assert_eq!(samples(run, "dev.vda.w_await"), [0.10, 0.14]);

    let first: Vec<&str> = whole.lines().take(7).collect();
    assert_refused(&first.join("\n"), "give it an interval");
    assert_refused(&whole.replace("72.86", "72.9%"), "run the tool without -h and --human");
    assert_refused(&whole.replace("  0.00    0.48   0.80", ""), "of 23 columns");
}

/// Six and six runs of `sar -uBw 1 3`, beside a program that maps and touches memory on the bad side.
#[test]
fn a_planted_difference_between_collections_of_sar_is_found_first() {
    let [good, bad] = ["sar/good", "sar/bad"].map(|side| read(&data(side)).unwrap());
    assert_eq!((good.len(), bad.len()), (6, 6));
    let comparison = compare(&good, &bad, &Options::default()).unwrap();
    assert_eq!(comparison.rows[0].metric, "fault/s");
    assert_eq!(comparison.rows[0].verdict, Verdict::Differs, "{:?}", comparison.rows[0]);
    // The least that 6 + 6 runs give.
    assert_eq!(comparison.rows[0].adjusted_p, 1.0 / 462.0);
}
