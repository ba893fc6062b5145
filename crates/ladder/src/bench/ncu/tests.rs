use super::*;

/// A metric a line, as `ncu --csv --metrics ...` prints it to a terminal that its program prints to as well.
const LONG: &str = r#"==PROF== Connected to process 4321 (/usr/bin/ladder)
==PROF== Profiling "naive_scores" - 0: 0%....50%....100% - 1 pass
launched once: something, "with" a comma
==PROF== Disconnected from process 4321
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4321","ladder","127.0.0.1","naive_scores(Problem, Scores)","1","13","(32, 8, 1)","(16384, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Mbyte","33.55"
"0","4321","ladder","127.0.0.1","naive_scores(Problem, Scores)","1","13","(32, 8, 1)","(16384, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_write.sum","Gbyte","1.07"
"0","4321","ladder","127.0.0.1","naive_scores(Problem, Scores)","1","13","(32, 8, 1)","(16384, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","msecond","1.5"
"1","4321","ladder","127.0.0.1","naive_softmax(Problem, Scores)","1","13","(32, 8, 1)","(16384, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","byte","1,073,741,824"
"1","4321","ladder","127.0.0.1","naive_softmax(Problem, Scores)","1","13","(32, 8, 1)","(16384, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_write.sum","Kbyte","1,000.5"
"2","4321","ladder","127.0.0.1","another<float>(int)","1","13","(32, 8, 1)","(1, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","byte","5"
"2","4321","ladder","127.0.0.1","another<float>(int)","1","13","(32, 8, 1)","(1, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_write.sum","byte","6"
"10","4321","ladder","127.0.0.1","fa1(Problem, Blocks, Running)","1","13","(512, 1, 1)","(64, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","byte","7"
"10","4321","ladder","127.0.0.1","fa1(Problem, Blocks, Running)","1","13","(512, 1, 1)","(64, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_write.sum","byte","0"
"#;

/// A launch a line, as `ncu --csv --page raw` prints it: units stand in a line of their own.
const WIDE: &str = r#""ID","Kernel Name","Block Size","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"
"","","","Kbyte","byte","usecond"
"0","fa1","(512, 1, 1)","2.5","17","1,234.5"
"1","fa2_simt(Problem)","(128, 1, 1)","3","0","7"
"#;

fn launch(kernel: &str, read: u64, written: u64) -> Launch {
    Launch { kernel: kernel.into(), moved: Traffic { read, written } }
}

#[test]
fn both_forms_are_read_in_the_order_of_launches() {
    let wanted = [
        launch("naive_scores", 33_550_000, 1_070_000_000),
        launch("naive_softmax", 1 << 30, 1_000_500),
        launch("another", 5, 6),
        launch("fa1", 7, 0),
    ];
    assert_eq!(launches(LONG).unwrap(), wanted);
    assert_eq!(launches(WIDE).unwrap(), [launch("fa1", 2500, 17), launch("fa2_simt", 3000, 0)]);
}

#[test]
fn a_call_is_the_sum_of_its_kernels_and_other_kernels_are_none() {
    let launches = launches(LONG).unwrap();
    let naive = vec!["naive_scores", "naive_softmax"];
    let found = sums(&launches, &[naive.clone(), vec!["fa1"]]).unwrap();
    let first = Traffic { read: 33_550_000 + (1 << 30), written: 1_070_000_000 + 1_000_500 };
    assert_eq!(found, [first, Traffic { read: 7, written: 0 }]);
    for (calls, why) in [
        (vec![vec!["fa1"], naive.clone()], "launch 1: found naive_scores, wanted fa1"),
        (vec![naive.clone(), vec!["fa1"], vec!["fa1"]], "found no more launches, wanted fa1"),
        (vec![naive.clone(), vec!["fa1", "another"]], "launch 3: found another, wanted fa1"),
        (
            vec![vec!["naive_scores"], vec!["naive_softmax"], vec!["fa1"], vec!["fa2_simt"]],
            "found no more launches, wanted fa2_simt",
        ),
    ] {
        assert_eq!(sums(&launches, &calls), Err(why.into()));
    }
    let twice = [&launches[..], &launches[..]].concat();
    let why = "launch 4: found naive_scores, wanted none: all calls are done";
    assert_eq!(sums(&twice, &[naive, vec!["fa1"]]), Err(why.into()));
}

#[test]
fn what_is_no_csv_of_both_metrics_is_refused() {
    let changed = |from: &str, to: &str| {
        assert!(LONG.contains(from), "{from}");
        LONG.replacen(from, to, 1)
    };
    for (text, why) in [
        (String::new(), "found no line with \"Kernel Name\""),
        ("==PROF== nothing".into(), "found no line with \"Kernel Name\""),
        (changed("\"ID\"", "\"Number\""), "found no column \"ID\""),
        (changed("\"Metric Unit\"", "\"Unit\""), "found no column \"Metric Unit\""),
        (
            changed("\"dram__bytes_write.sum\"", "\"dram__bytes_write.max\""),
            "ID 0: naive_scores: found one of dram__bytes_read.sum",
        ),
        (changed("\"33.55\"", "\"n/a\""), "ID 0: dram__bytes_read.sum: found \"n/a\""),
        (changed("\"33.55\"", "\"33,55\""), "found \"33,55\", wanted a number of bytes"),
        (changed("\"33.55\"", "\"1.234,5\""), "found \"1.234,5\", wanted a number of bytes"),
        (changed("\"33.55\"", "\"-1\""), "found \"-1\", wanted a number of bytes"),
        (changed("\"33.55\"", "\"inf\""), "found \"inf\", wanted a number of bytes"),
        (changed("\"Mbyte\"", "\"%\""), "found the unit \"%\""),
        (changed("\"10\",", "\"ten\","), "found \"ten\" as ID"),
        (WIDE.lines().next().unwrap().into(), "found no launches"),
        (WIDE.replace("dram__bytes_read.sum", "dram__bytes.sum"), "found no column \"dram__bytes_read.sum\""),
    ] {
        let found = launches(&text).unwrap_err();
        assert!(found.contains(why), "{found}, wanted {why}");
    }
}
