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
const WIDE: &str = r#""ID","Kernel Name","Block Size","Grid Size","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"
"","","","","Kbyte","byte","usecond"
"0","fa1","(512, 1, 1)","(64, 1, 1)","2.5","17","1,234.5"
"1","fa2_simt(Problem)","(128, 1, 1)","(2048, 1, 1)","3","0","7"
"#;

const SCORES: (&str, u32, [u32; 3]) = ("naive_scores", 16384, [32, 8, 1]);
const SOFTMAX: (&str, u32, [u32; 3]) = ("naive_softmax", 16384, [32, 8, 1]);
const ANOTHER: (&str, u32, [u32; 3]) = ("another", 1, [32, 8, 1]);
const FA1: (&str, u32, [u32; 3]) = ("fa1", 64, [512, 1, 1]);
const FA2: (&str, u32, [u32; 3]) = ("fa2_simt", 2048, [128, 1, 1]);

fn launch((kernel, blocks, block): (&str, u32, [u32; 3])) -> Launch {
    Launch { kernel: kernel.into(), grid: [blocks, 1, 1], block }
}

#[test]
fn both_forms_are_read_in_the_order_of_launches() {
    let wanted = [
        (launch(SCORES), Traffic { read: 33_550_000, written: 1_070_000_000 }),
        (launch(SOFTMAX), Traffic { read: 1 << 30, written: 1_000_500 }),
        (launch(ANOTHER), Traffic { read: 5, written: 6 }),
        (launch(FA1), Traffic { read: 7, written: 0 }),
    ];
    assert_eq!(launches(LONG).unwrap(), wanted);
    let wide = [(launch(FA1), Traffic { read: 2500, written: 17 }), (launch(FA2), Traffic { read: 3000, written: 0 })];
    assert_eq!(launches(WIDE).unwrap(), wide);
    // As Windows writes it, or behind a line that is none of ncu's.
    assert_eq!(launches(&format!("\u{feff}{WIDE}")).unwrap(), wide);
    assert_eq!(launches(&format!("Kernel Name{}\n{WIDE}", ",".repeat(2 << 20))).unwrap(), wide);
}

#[test]
fn a_call_is_the_sum_of_its_launches_and_other_kernels_are_none() {
    let launches = launches(LONG).unwrap();
    let sums = |launches: &[Measured], calls: &[&[(&str, u32, [u32; 3])]]| {
        let calls: Vec<Vec<Launch>> = calls.iter().map(|call| call.iter().map(|&one| launch(one)).collect()).collect();
        sums(launches, &calls)
    };
    let first = Traffic { read: 33_550_000 + (1 << 30), written: 1_070_000_000 + 1_000_500 };
    assert_eq!(sums(&launches, &[&[SCORES, SOFTMAX], &[FA1]]).unwrap(), [first, Traffic { read: 7, written: 0 }]);
    let scores = "naive_scores of (16384, 1, 1) blocks of (32, 8, 1) threads";
    let fa1 = "fa1 of (64, 1, 1) blocks of (512, 1, 1) threads";
    for (calls, why) in [
        (&[&[FA1][..], &[SCORES, SOFTMAX]][..], format!("launch 1: found {scores}, wanted {fa1}")),
        (&[&[SCORES, SOFTMAX], &[FA1], &[FA1]], format!("found no more launches, wanted {fa1}")),
        (&[&[SCORES, SOFTMAX], &[FA1, ANOTHER]], "launch 3: found another of".into()),
        (&[&[SCORES], &[SOFTMAX], &[FA1], &[FA2]], "found no more launches, wanted fa2_simt of".into()),
        // The same kernels on another shape.
        (
            &[&[("naive_scores", 65536, [32, 8, 1])]],
            format!("launch 1: found {scores}, wanted naive_scores of (65536, 1, 1)"),
        ),
        (
            &[&[("naive_scores", 16384, [32, 4, 1])]],
            format!("launch 1: found {scores}, wanted naive_scores of (16384, 1, 1) blocks of (32, 4, 1)"),
        ),
    ] {
        let found = sums(&launches, calls).unwrap_err();
        assert!(found.starts_with(&why), "{found}, wanted {why}");
    }
    let twice = [&launches[..], &launches[..]].concat();
    let why = format!("launch 4: found {scores}, wanted none: all calls are done");
    assert_eq!(sums(&twice, &[&[SCORES, SOFTMAX], &[FA1]]), Err(why));
}

/// Wherever a file ends within a line, it is an error, or all that counts is there.
#[test]
fn a_file_that_is_cut_off_is_refused() {
    let whole = launches(LONG).unwrap();
    let last = LONG.trim_end().rfind('\n').unwrap() + 1;
    for end in last..LONG.len() {
        if let Ok(found) = launches(&LONG[..end]) {
            assert_eq!((found, &LONG[end..]), (whole.clone(), "\n"));
        }
    }
    let cut = LONG.trim_end().strip_suffix("\"0\"").unwrap();
    assert_eq!(launches(&format!("{cut}\"0")).unwrap_err(), "line 14: a quote is not closed");
}

#[test]
fn what_is_no_small_regular_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large.csv");
    File::create(&large).unwrap().set_len(LARGEST + 1).unwrap();
    for (path, why) in [
        (large.as_path(), "large.csv: found more than 67108864 bytes"),
        (folder.path(), ": it is no regular file"),
        #[cfg(unix)]
        (Path::new("/dev/zero"), "/dev/zero: it is no regular file"),
    ] {
        let found = read(path, &[]).unwrap_err().to_string();
        assert!(found.contains(why), "{found}, wanted {why}");
    }
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
        (changed("\"33.55\"", "\"1,2e3\""), "found \"1,2e3\", wanted a number of bytes"),
        (changed("\"33.55\"", "\"1e5\""), "found \"1e5\", wanted a number of bytes"),
        (changed("\"33.55\"", "\"+5\""), "found \"+5\", wanted a number of bytes"),
        (changed("\"33.55\"", "\"1234,567\""), "found \"1234,567\", wanted a number of bytes"),
        (changed("\"33.55\"", "\"\""), "found \"\", wanted a number of bytes"),
        (
            changed("\"1\",\"4321\"", "\"0\",\"4321\""),
            "ID 0: found naive_softmax of (16384, 1, 1) blocks of (32, 8, 1) threads after naive_scores",
        ),
        (
            changed("gpu__time_duration.sum\",\"msecond", "dram__bytes_read.sum\",\"byte"),
            "ID 0: found dram__bytes_read.sum twice",
        ),
        (
            WIDE.replace("gpu__time_duration.sum", "dram__bytes_read.sum"),
            "found the column \"dram__bytes_read.sum\" twice",
        ),
        (
            WIDE.replace(
                "\"1\",\"fa2_simt(Problem)\",\"(128, 1, 1)\",\"(2048, 1, 1)\"",
                "\"0\",\"fa1\",\"(512, 1, 1)\",\"(64, 1, 1)\"",
            ),
            "ID 0: found dram__bytes_read.sum twice",
        ),
        (changed("\"Grid Size\"", "\"Grid\""), "found no column \"Grid Size\""),
        (changed("\"(64, 1, 1)\"", "\"(64, 1)\""), "ID 10: found \"(64, 1)\", wanted a size"),
        (changed("\"Mbyte\"", "\"%\""), "found the unit \"%\""),
        (changed("\"10\",", "\"ten\","), "found \"ten\" as ID"),
        (WIDE.lines().next().unwrap().into(), "found no launches"),
        (WIDE.replace("dram__bytes_read.sum", "dram__bytes.sum"), "found no column \"dram__bytes_read.sum\""),
    ] {
        let found = launches(&text).unwrap_err();
        assert!(found.contains(why), "{found}, wanted {why}");
    }
}
