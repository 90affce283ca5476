//! What all starts measured, as figures, tables and plots.

use super::*;

/// Results of all turns of all starts.
#[derive(Default)]
pub struct MemcachedResults {
    pub turns: [Vec<Turn>; 3],
    /// Sums over the starts.
    pub memory: [server::Memory; 3],
    pub starts: usize,
    pub settled_s_max: f64,
    /// Number of items that ours moved.
    pub moved: u64,
    /// Number of requests that each had answered before the measurement.
    pub before: u64,
}

/// The compared quantity.
#[derive(Clone, Copy)]
pub enum By {
    Throughput,
    Cpu,
}

impl MemcachedResults {
    pub fn values(&self, arm: usize, by: By) -> Vec<f64> {
        let of = |turn: &Turn| match by {
            By::Throughput => turn.operations_per_s,
            By::Cpu => turn.cpu_ns_per_operation,
        };
        self.turns[arm].iter().map(of).collect()
    }

    /// The percentage by which `arm` is better than off, for each round.
    pub fn gains(&self, arm: usize, by: By) -> Vec<f64> {
        let better = |(one, off): (f64, f64)| match by {
            By::Throughput => one / off,
            By::Cpu => off / one,
        };
        self.values(arm, by)
            .into_iter()
            .zip(self.values(OFF, by))
            .map(|pair| 100.0 * (better(pair) - 1.0))
            .collect()
    }

    pub fn note(&self, setting: &Setting) -> String {
        let rounds = self.turns[OFF].len() / self.starts;
        let by_start = |arm| {
            let gains = self.gains(arm, By::Cpu);
            let medians = gains
                .chunks(rounds)
                .filter_map(Spread::of)
                .map(|gain| format!("{:.1}", gain.median));
            medians.collect::<Vec<String>>().join(", ")
        };
        let mut note = format!(
            "Ours settled {:.1} s at most after it was filled, and moved {} items; before it was measured each had answered {:.1} million requests. Gains \
             of processor time in {} starts: {} % {}, {} % {}.",
            self.settled_s_max,
            self.moved,
            self.before as f64 / 1e6,
            self.starts,
            by_start(ALWAYS),
            ARMS[ALWAYS],
            by_start(OURS),
            ARMS[OURS]
        );
        if setting.of_paper {
            note.push_str(" Paper (figures 19, 20): THP +2.55 %, HPS +1.94 % throughput; memory +96.2 % and +6.17 %.");
        }
        note
    }

    pub fn growth(&self, arm: usize) -> f64 {
        100.0
            * (self.memory[arm].resident_bytes as f64 / self.memory[OFF].resident_bytes as f64
                - 1.0)
    }

    /// The median gain, with its confidence interval.
    pub fn gain(&self, arm: usize, by: By) -> Option<Spread> {
        interval::of_median(&self.gains(arm, by))
    }

    /// Our gain as a percentage of that of THP always; none if that gains nothing, or if the gain
    /// is not significant.
    pub fn share(&self, by: By) -> Option<Spread> {
        let (ours, always) = (self.gains(OURS, by), self.gains(ALWAYS, by));
        self.gain(ALWAYS, by).filter(|gain| gain.min > 0.0)?;
        interval::interval(always.len(), |rounds| {
            let always = interval::median(&always, rounds).filter(|&gain| gain > 0.0)?;
            Some(100.0 * interval::median(&ours, rounds)? / always)
        })
    }

    pub fn section(&self, setting: &Setting, note: &str) -> Section {
        let Setting { title, store, depth, .. } = setting;
        let mut table = Table::new(format!(
            "memcached, {} items of {} bytes, read only, {title}",
            store.items, store.value_bytes
        ))
        .text("huge pages")
        .number("throughput", "1/s")
        .number("gain", "%")
        .number("processor time", "ns/op")
        .number("gain", "%")
        .number("resident", "MiB")
        .number("growth", "%")
        .number("on huge pages", "MiB");
        let text = |values: Vec<f64>| Spread::of(&values).map_or("–".to_owned(), Spread::to_text);
        let gain = |arm, by| self.gain(arm, by).map_or("–".to_owned(), Spread::to_text);
        let mib =
            |bytes: u64| format!("{:.1}", bytes as f64 / self.starts as f64 / f64::from(1 << 20));
        for (arm, name) in ARMS.iter().enumerate() {
            table.row([
                (*name).to_owned(),
                text(self.values(arm, By::Throughput)),
                gain(arm, By::Throughput),
                text(self.values(arm, By::Cpu)),
                gain(arm, By::Cpu),
                mib(self.memory[arm].resident_bytes),
                format!("{:.2}", self.growth(arm)),
                mib(self.memory[arm].huge_bytes),
            ]);
        }
        table.note(note);
        let text = format!(
            "One program three times, filled alike and asked in turns of {} ms over a Unix socket by one connection with {depth} requests on their \
             way; every value is verified. All are started anew now and then, since where memory lies makes a difference. The server is kept on one processor and the load on another, where there are two. Gains are round by \
             round, against off, with the interval in which their median lies in 95 of 100 cases; a share of a gain is only told where that \
             interval of THP always' gain is above zero.",
            TURN.as_millis()
        );
        let figures = if setting.of_paper { " (figures 19 and 20)" } else { "" };
        let plots = if setting.of_paper { self.plots() } else { vec![] };
        Section {
            title: format!("memcached, {title}{figures}"),
            text: vec![text],
            tables: vec![table],
            plots,
        }
    }

    /// The paper's figures 19 and 20: compared with small pages, beside the paper's values.
    pub fn plots(&self) -> Vec<Plot> {
        let plot = |title: &str, what: &str, kept: [Option<Spread>; 2], paper: [f64; 2]| {
            let points = |values: [Option<Spread>; 2]| {
                let at = |(place, value): (usize, Option<Spread>)| {
                    value.map(|spread| Point::of(place as f64, spread))
                };
                values.into_iter().enumerate().filter_map(at).collect::<Vec<Point>>()
            };
            Plot {
                title: title.to_owned(),
                kind: Kind::Bars,
                x: Axis::names("huge pages", [ARMS[ALWAYS], ARMS[OURS]]),
                y: Axis::linear(what, "%"),
                series: vec![
                    Series::new("here", points(kept)),
                    Series::new("paper", points(paper.map(|value| Spread::of(&[value])))),
                ],
            }
        };
        let gain = |arm| self.gain(arm, By::Throughput);
        let growth = |arm| Spread::of(&[self.growth(arm)]);
        vec![
            plot(
                "memcached: throughput over small pages (figure 19)",
                "gain",
                [gain(ALWAYS), gain(OURS)],
                [2.55, 1.94],
            ),
            plot(
                "memcached: memory over small pages (figure 20)",
                "growth",
                [growth(ALWAYS), growth(OURS)],
                [96.2, 6.17],
            ),
        ]
    }

    pub fn measure(&self, setting: &Setting, report: &mut Report) {
        let key = |name: &str| format!("{}_{name}", setting.key);
        let title = |what: &str| {
            format!(
                "{}: {what}",
                if setting.of_paper { "memcached" } else { "memcached, wide hot set" }
            )
        };
        let gain =
            |name: &str, what: &str| Measure::new(key(name), title(what), "%", Better::Higher);
        let paper = |measure: Measure, number: f64| {
            if setting.of_paper { measure.paper_number(number) } else { measure }
        };
        let cpu = "processor time per operation";
        let share = |name: &str, what: &str, by: By| {
            let measure = gain(name, &format!("gain against THP always's gain, {what}"))
                .must(90.0)
                .aim(100.0)
                .spread(self.share(by));
            match (measure.value, self.gain(ALWAYS, by)) {
                (None, Some(gain)) => measure
                    .note(format!("THP always' gain is not told from none: {} %", gain.to_text())),
                _ => measure,
            }
        };
        let by_cpu = share("gain_share_cpu_percent", cpu, By::Cpu);
        report.measures.push(if setting.of_paper {
            by_cpu.paper("76 (throughput)")
        } else {
            by_cpu
        });
        report
            .measures
            .push(paper(share("gain_share_percent", "throughput", By::Throughput), 76.0));
        report.measures.extend([
            gain("gain_cpu_percent", &format!("gain, {cpu}")).spread(self.gain(OURS, By::Cpu)),
            paper(gain("gain_percent", "gain, throughput"), 1.94)
                .spread(self.gain(OURS, By::Throughput)),
            gain("thp_gain_cpu_percent", &format!("gain of THP always, {cpu}"))
                .spread(self.gain(ALWAYS, By::Cpu)),
            paper(gain("thp_gain_percent", "gain of THP always, throughput"), 2.55)
                .spread(self.gain(ALWAYS, By::Throughput)),
        ]);
        let grows = |name: &str, what: &str, arm: usize, number: f64| {
            paper(Measure::new(key(name), title(what), "%", Better::Lower), number)
                .spread(Spread::of(&[self.growth(arm)]))
        };
        report.measures.push(
            grows("growth_percent", "memory growth over 4K pages", OURS, 6.17).must(6.0).aim(3.0),
        );
        report.measures.push(grows(
            "thp_growth_percent",
            "memory growth of THP always",
            ALWAYS,
            96.2,
        ));
    }
}
