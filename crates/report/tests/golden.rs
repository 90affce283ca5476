//! The report of a small, fixed experiment, compared with files byte for byte. `HIROMA_BLESS=1
//! cargo test` rewrites them.

use std::path::Path;

use hiroma_report::{
    Axis, Better, Bound, Kind, Machine, Measure, Plot, Point, Report, Section, Series, Spread,
    Table,
};

fn compare(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("HIROMA_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == actual,
        "{} differs; look at it and run with HIROMA_BLESS=1 if it is right. Now:\n{actual}",
        path.display()
    );
}

fn lines() -> Plot {
    let spread = |a: f64, b: f64, c: f64| Spread::of(&[a, b, c]).unwrap();
    Plot {
        title: "Sequential read & block size".into(),
        kind: Kind::Lines,
        x: Axis::names("block size", ["4K", "1M", "auto"]),
        y: Axis::log("bandwidth", "GB/s"),
        series: vec![
            Series::new(
                "over TCP",
                vec![
                    Point::of(0.0, spread(0.2, 0.25, 0.3)),
                    Point::of(1.0, spread(2.9, 3.0, 3.4)),
                    Point::at(2.0, 3.2),
                ],
            ),
            Series::level("raw TCP <stream>", 3.1, 3),
        ],
    }
}

fn bars() -> Plot {
    Plot {
        title: "Sort".into(),
        kind: Kind::Bars,
        x: Axis::names("local memory", ["60 %", "30 %"]),
        y: Axis::linear("time", "s"),
        series: vec![
            Series::new(
                "LRU",
                vec![Point::at(0.0, 7.1), Point::of(1.0, Spread::of(&[8.0, 8.4]).unwrap())],
            ),
            Series::new("FIFO", vec![Point::at(0.0, 7.4), Point::at(1.0, f64::NAN)]),
            Series::level("native", 6.7, 2),
        ],
    }
}

fn report() -> Report {
    let mut table =
        Table::new("Bandwidth").text("block").number("over TCP", "GB/s").number("paper", "MB/s");
    table.row(["1M", "3.00 (2.90–3.40)", "603"]);
    table.row(["auto", "3.20", ""]);
    table.note("1 GiB, everything far at the start.");
    let measures = vec![
        Measure::new("seq_vs_raw", "sequential read / raw TCP", "", Better::Higher)
            .must(0.9)
            .aim(1.0)
            .spread(Spread::of(&[0.95, 0.97, 0.93])),
        Measure::new("sort_15", "sort, 15 % local / swap file", "", Better::Lower)
            .must(1.0)
            .spread(Spread::of(&[0.2]))
            .bound(Some(Bound::AtMost)),
        Measure::new("random", "random reads / zram", "", Better::Lower)
            .must(1.0)
            .aim(0.6)
            .note("skipped: needs root"),
        Measure::new("seq", "sequential read", "GB/s", Better::Higher)
            .paper_number(0.603)
            .spread(Spread::of(&[3.2])),
        Measure::new("metadata", "metadata", "%", Better::Lower)
            .must(0.2)
            .paper("not reported")
            .spread(Spread::of(&[0.3, 0.3, 0.31])),
    ];
    Report {
        title: "Far memory".into(),
        command: "hiroma bench far --only seq".into(),
        made_at: "2026-01-02 03:04 UTC".into(),
        machine: Machine {
            cpu_model: "Example CPU".into(),
            cores: 2,
            memory_bytes: 24 << 30,
            kernel: "6.18.0".into(),
            distribution: "Debian 12".into(),
            remarks: vec![],
        },
        preamble: vec!["Medians of 3.".into()],
        measures,
        sections: vec![Section {
            title: "Sequential read".into(),
            text: vec!["All far.".into()],
            tables: vec![table],
            plots: vec![lines(), bars()],
        }],
    }
}

#[test]
fn text_matches_golden_file() {
    compare("report.txt", &report().to_text());
}

#[test]
fn json_matches_golden_file() {
    compare("report.json", &report().to_json());
}

#[test]
fn page_matches_golden_file() {
    compare("report.html", &report().to_html());
}

#[test]
fn the_page_refers_to_nothing_outside_itself() {
    let page = report().to_html().replace("http://www.w3.org/2000/svg", "");
    for reference in ["http://", "https://", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn page_contains_every_plot_with_balanced_tags() {
    let page = report().to_html();
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (2, 2));
    assert!(!page.contains("NaN"), "a value that is not a number has no place in a drawing");
}

fn crowded() -> Plot {
    let series = |number: u32| {
        let points = (0..4).map(|x| Point::at(f64::from(x), 1.0 + f64::from(number * x) / 100.0));
        Series::new(format!("policy {number}"), points.collect())
    };
    Plot {
        title: "Close to each other".into(),
        kind: Kind::Labelled,
        x: Axis::linear("rate", "1/s"),
        y: Axis::linear("response", "ms"),
        series: (0..6).map(series).collect(),
    }
}

/// Heights of texts that have a colour of their own: names of lines.
fn label_heights(svg: &str) -> Vec<f64> {
    let labels = svg.lines().filter(|line| line.starts_with("<text style="));
    let height = |line: &str| line.split(" y=\"").nth(1)?.split('"').next()?.parse().ok();
    labels.filter_map(height).collect()
}

#[test]
fn names_at_lines_do_not_overlap_and_stay_inside() {
    let svg = crowded().to_svg();
    let heights = label_heights(&svg);
    assert_eq!(heights.len(), 6);
    assert!(heights.windows(2).all(|pair| pair[1] - pair[0] >= 13.9), "{heights:?}");
    assert!(heights.iter().all(|&y| (40.0..345.0).contains(&y)), "{heights:?}");
    for number in 0..6 {
        assert!(svg.contains(&format!(">policy {number}</text>")));
    }
}

#[test]
fn panels_show_one_line_each_before_the_others() {
    let panels = crowded().panels();
    assert_eq!(panels.len(), 6);
    for (number, panel) in panels.iter().enumerate() {
        let svg = panel.to_svg();
        assert!(svg.contains(&format!(">policy {number}</text>")), "its title");
        assert_eq!(svg.matches("<polyline").count(), 6);
        assert_eq!(svg.matches("stroke-opacity=\"0.6\"").count(), 5);
        let coloured = svg.rfind("<polyline").unwrap();
        assert!(svg.rfind("stroke-opacity=\"0.6\"").unwrap() < coloured, "others are behind");
    }
    let heights: Vec<f64> =
        panels.iter().flat_map(|panel| label_heights(&panel.to_svg())).collect();
    assert!(heights.is_empty(), "the title is the name");
    let section = Section { plots: panels, ..Section::default() };
    let page = Report { sections: vec![section], ..Report::default() }.to_html();
    assert_eq!(page.matches("display:inline-block").count(), 6);
}
