//! Plots as SVG: lines or bars, linear or logarithmic, with units on the axes, a legend, and the
//! spread of every point.
//!
//! Drawn without a plotting crate: the page's style sheet colours axes and text (light and dark),
//! points have tooltips, and the layout takes only a few dozen lines.

use std::fmt::Write as _;

use crate::html::{PLOT_STYLE, THEME, escape};
use crate::scale::{Scale, figures, tick_label};

const LEFT: f64 = 70.0;
const LEGEND_ROW: f64 = 20.0;
/// Least distance of two names at the ends of lines.
const LABEL_ROW: f64 = 14.0;
/// Width of a character of a name, roughly.
const LABEL_CHAR: f64 = 6.6;
/// Colour of lines that are there for comparison in a panel.
const GREY: &str = "#9aa4ad";
/// A line with more points is drawn without dots.
const DOTS_MAX: usize = 60;
/// Okabe and Ito's colours, which are distinguishable with any colour vision.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f"];

/// How the points of a plot are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    #[default]
    Lines,
    Bars,
    /// Lines with their names at their ends instead of a legend.
    Labelled,
    /// The same, half as wide: several stand side by side. References are grey and behind.
    Panel,
}

/// The size of a plot, and the margins around its axes.
#[derive(Clone, Copy, Debug)]
struct Size {
    width: f64,
    height: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Size {
    fn of(plot: &Plot) -> Size {
        let named = plot.series.iter().filter(|series| plot.is_named(series));
        let longest = named.map(|series| series.name.chars().count()).max().unwrap_or(0);
        let label = if longest > 0 { 16.0 + LABEL_CHAR * longest as f64 } else { 0.0 };
        match plot.kind {
            Kind::Lines | Kind::Bars => {
                Size { width: 760.0, height: 400.0, right: 20.0, top: 40.0, bottom: 60.0 }
            }
            Kind::Labelled => {
                Size { width: 760.0, height: 400.0, right: 20.0 + label, top: 40.0, bottom: 60.0 }
            }
            Kind::Panel => {
                Size { width: 376.0, height: 230.0, right: 16.0 + label, top: 36.0, bottom: 52.0 }
            }
        }
    }
}

/// One axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// What it shows.
    pub label: String,
    /// Its unit; empty for names and ratios.
    pub unit: String,
    /// Whether the axis is logarithmic.
    pub log: bool,
    /// Names of the positions 0, 1, 2, …; empty for a numeric axis.
    pub categories: Vec<String>,
}

/// One point, with the spread of its repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub min: f64,
    pub max: f64,
}

/// Points that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    pub name: String,
    pub points: Vec<Point>,
    /// A reference rather than a measurement of this report: drawn as a dashed line, or grey in a
    /// panel.
    pub reference: bool,
}

/// A plot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    pub title: String,
    pub kind: Kind,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
}

impl Axis {
    /// A linear numeric axis.
    pub fn linear(label: impl Into<String>, unit: impl Into<String>) -> Axis {
        Axis { label: label.into(), unit: unit.into(), ..Axis::default() }
    }

    /// A logarithmic numeric axis.
    pub fn log(label: impl Into<String>, unit: impl Into<String>) -> Axis {
        Axis { log: true, ..Axis::linear(label, unit) }
    }

    /// An axis with names.
    pub fn names<T: Into<String>>(
        label: impl Into<String>,
        names: impl IntoIterator<Item = T>,
    ) -> Axis {
        Axis { categories: names.into_iter().map(Into::into).collect(), ..Axis::linear(label, "") }
    }

    fn title(&self) -> String {
        if self.unit.is_empty() {
            self.label.clone()
        } else {
            format!("{} ({})", self.label, self.unit)
        }
    }

    fn scale(&self, values: impl Iterator<Item = f64>) -> Scale {
        if self.log { Scale::log(values) } else { Scale::linear(values) }
    }
}

impl Point {
    /// A point without a spread.
    pub fn at(x: f64, y: f64) -> Point {
        Point { x, y, min: y, max: y }
    }

    /// A point of repeated measurements.
    pub fn of(x: f64, spread: crate::Spread) -> Point {
        Point { x, y: spread.median, min: spread.min, max: spread.max }
    }
}

impl Series {
    /// Points with a name.
    pub fn new(name: impl Into<String>, points: Vec<Point>) -> Series {
        Series { name: name.into(), points, reference: false }
    }

    /// A horizontal line at `y` over positions 0 to `places` - 1.
    pub fn level(name: impl Into<String>, y: f64, places: usize) -> Series {
        let points = vec![Point::at(-0.5, y), Point::at(places as f64 - 0.5, y)];
        Series { name: name.into(), points, reference: true }
    }
}

/// Layout of the plot.
struct Canvas<'a> {
    plot: &'a Plot,
    size: Size,
    y: Scale,
    x: Option<Scale>,
    height: f64,
    legend: Vec<(f64, f64)>,
}

impl Plot {
    /// The plot as an SVG element.
    pub fn to_svg(&self) -> String {
        let canvas = Canvas::of(self);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{}\">\n",
            escape(&self.title),
            w = canvas.size.width,
            h = canvas.height
        );
        let _ =
            writeln!(svg, "<text class=\"t\" x=\"{LEFT}\" y=\"22\">{}</text>", escape(&self.title));
        canvas.draw_axes(&mut svg);
        let behind = |series: &Series| self.kind == Kind::Panel && series.reference;
        let ordered = self.series.iter().enumerate();
        for (_, series) in ordered.clone().filter(|(_, series)| behind(series)) {
            canvas.draw_grey(&mut svg, series);
        }
        for (index, series) in ordered.filter(|(_, series)| !behind(series)) {
            match self.kind {
                Kind::Bars if !series.reference => canvas.draw_bars(&mut svg, index, series),
                _ => canvas.draw_line(&mut svg, index, series),
            }
        }
        match self.kind {
            Kind::Lines | Kind::Bars => canvas.draw_legend(&mut svg),
            Kind::Labelled | Kind::Panel => canvas.draw_labels(&mut svg),
        }
        svg + "</svg>"
    }

    /// The plot as a file of its own, with a background.
    pub fn to_svg_file(&self) -> String {
        let svg = self.to_svg();
        let (head, rest) = svg.split_once('\n').unwrap_or_default();
        let style = format!("<style>\n{THEME}{PLOT_STYLE}\n</style>");
        format!(
            "{head}\n{style}\n<rect width=\"100%\" height=\"100%\" style=\"fill:var(--page)\"/>\n{rest}\n"
        )
    }

    /// One panel for each series that is no reference: it is coloured, the others are grey, and all
    /// have the same axes. Lines that lie close to each other stay readable.
    pub fn panels(&self) -> Vec<Plot> {
        let shown = self.series.iter().enumerate().filter(|(_, series)| !series.reference);
        let panel = |(index, shown): (usize, &Series)| {
            let others = self.series.iter().enumerate().filter(|(other, _)| *other != index);
            let grey = others.map(|(_, series)| Series { reference: true, ..series.clone() });
            Plot {
                title: shown.name.clone(),
                kind: Kind::Panel,
                // The first has the first colour.
                series: [Series { name: String::new(), ..shown.clone() }]
                    .into_iter()
                    .chain(grey)
                    .collect(),
                ..self.clone()
            }
        };
        shown.map(panel).collect()
    }

    /// Whether a series has its name at its end.
    fn is_named(&self, series: &Series) -> bool {
        let direct = matches!(self.kind, Kind::Labelled | Kind::Panel);
        direct && !(self.kind == Kind::Panel && series.reference) && !series.name.is_empty()
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points)
    }

    /// Number of series that are drawn as bars, which share the space at a position.
    fn bars(&self) -> usize {
        self.series.iter().filter(|series| !series.reference).count().max(1)
    }
}

impl Canvas<'_> {
    fn of(plot: &Plot) -> Canvas<'_> {
        let y = plot.y.scale(plot.points().flat_map(|point| [point.y, point.min, point.max]));
        let x =
            plot.x.categories.is_empty().then(|| plot.x.scale(plot.points().map(|point| point.x)));
        let (size, mut legend) = (Size::of(plot), Vec::new());
        if matches!(plot.kind, Kind::Labelled | Kind::Panel) {
            return Canvas { plot, size, y, x, height: size.height, legend };
        }
        let (mut at, mut row) = (LEFT, 0.0);
        for series in &plot.series {
            let width = 34.0 + 7.0 * series.name.chars().count() as f64;
            if at + width > size.width - size.right && at > LEFT {
                (at, row) = (LEFT, row + 1.0);
            }
            legend.push((at, size.height + row * LEGEND_ROW));
            at += width;
        }
        Canvas { plot, size, y, x, height: size.height + (row + 1.0) * LEGEND_ROW, legend }
    }

    fn px(&self, x: f64) -> f64 {
        let room = self.size.width - LEFT - self.size.right;
        let share = match &self.x {
            Some(scale) => scale.position(x),
            None => (x + 0.5) / self.plot.x.categories.len() as f64,
        };
        LEFT + share * room
    }

    fn py(&self, y: f64) -> f64 {
        let Size { height, top, bottom, .. } = self.size;
        height - bottom - self.y.position(y) * (height - top - bottom)
    }

    fn draw_axes(&self, svg: &mut String) {
        let (top, foot) = (self.size.top, self.size.height - self.size.bottom);
        for &tick in &self.y.ticks {
            let y = self.py(tick);
            let _ = writeln!(
                svg,
                "<line class=\"g\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>",
                self.size.width - self.size.right
            );
            let _ = writeln!(
                svg,
                "<text text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                tick_label(tick)
            );
        }
        let places: Vec<(f64, String)> = match &self.x {
            Some(scale) => scale.ticks.iter().map(|&tick| (tick, tick_label(tick))).collect(),
            None => self
                .plot
                .x
                .categories
                .iter()
                .enumerate()
                .map(|(place, name)| (place as f64, name.clone()))
                .collect(),
        };
        // Names that would overlap are in two rows.
        let longest = places.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
        let apart = (self.px(1.0) - self.px(0.0)).abs();
        let is_crowded = self.x.is_none() && 7.0 * longest as f64 > apart;
        for (number, (x, label)) in places.into_iter().enumerate() {
            let x = self.px(x);
            let row = if is_crowded { (number % 2) as f64 } else { 0.0 };
            let _ = writeln!(
                svg,
                "<line class=\"a\" x1=\"{x:.1}\" y1=\"{foot}\" x2=\"{x:.1}\" y2=\"{}\"/>",
                foot + 5.0
            );
            let _ = writeln!(
                svg,
                "<text text-anchor=\"middle\" x=\"{x:.1}\" y=\"{}\">{}</text>",
                foot + 19.0 + 14.0 * row,
                escape(&label)
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"a\" fill=\"none\" d=\"M{LEFT} {top}V{foot}H{}\"/>",
            self.size.width - self.size.right
        );
        let middle = LEFT + (self.size.width - LEFT - self.size.right) / 2.0;
        let _ = writeln!(
            svg,
            "<text class=\"s\" text-anchor=\"middle\" x=\"{middle}\" y=\"{}\">{}</text>",
            foot + 40.0,
            escape(&self.plot.x.title())
        );
        let middle = top + (foot - top) / 2.0;
        let _ = writeln!(
            svg,
            "<text class=\"s\" text-anchor=\"middle\" transform=\"translate(16 {middle}) rotate(-90)\">{}</text>",
            escape(&self.plot.y.title())
        );
    }

    fn draw_spread(&self, svg: &mut String, x: f64, point: &Point, colour: &str) {
        if point.max > point.min {
            let (top, foot) = (self.py(point.max), self.py(point.min));
            let (left, right) = (x - 4.0, x + 4.0);
            let _ = writeln!(
                svg,
                "<path stroke=\"{colour}\" fill=\"none\" d=\"M{left:.1} {top:.1}H{right:.1}M{x:.1} {top:.1}V{foot:.1}M{left:.1} {foot:.1}H{right:.1}\"/>"
            );
        }
    }

    fn draw_line(&self, svg: &mut String, index: usize, series: &Series) {
        let colour = COLOURS[index % COLOURS.len()];
        let dash = if series.reference { " stroke-dasharray=\"6 4\"" } else { "" };
        let shown: Vec<&Point> = series.points.iter().filter(|point| point.y.is_finite()).collect();
        let path: Vec<String> = shown
            .iter()
            .map(|point| format!("{:.1},{:.1}", self.px(point.x), self.py(point.y)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash} points=\"{}\"/>",
            path.join(" ")
        );
        // This many dots would hide the line.
        if series.reference || shown.len() > DOTS_MAX {
            return;
        }
        for point in shown {
            let x = self.px(point.x);
            self.draw_spread(svg, x, point, colour);
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\">{}</circle>",
                self.py(point.y),
                self.tooltip(series, point)
            );
        }
    }

    /// A line for comparison, without points.
    fn draw_grey(&self, svg: &mut String, series: &Series) {
        let shown = series.points.iter().filter(|point| point.y.is_finite());
        let path: Vec<String> =
            shown.map(|point| format!("{:.1},{:.1}", self.px(point.x), self.py(point.y))).collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{GREY}\" stroke-opacity=\"0.6\" points=\"{}\"/>",
            path.join(" ")
        );
    }

    /// The names at the ends of the lines, moved apart where lines end close to each other.
    fn draw_labels(&self, svg: &mut String) {
        let named = self.plot.series.iter().enumerate().filter(|(_, one)| self.plot.is_named(one));
        let mut ends: Vec<(f64, usize, (f64, f64))> = named
            .filter_map(|(index, series)| {
                let last = series.points.iter().rfind(|point| point.y.is_finite())?;
                let (x, y) = (self.px(last.x), self.py(last.y));
                Some((y, index, (x, y)))
            })
            .collect();
        ends.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
        let foot = self.size.height - self.size.bottom;
        let mut least = self.size.top;
        for (y, ..) in &mut ends {
            *y = y.max(least);
            least = *y + LABEL_ROW;
        }
        let mut most = foot;
        for (y, ..) in ends.iter_mut().rev() {
            *y = y.min(most);
            most = *y - LABEL_ROW;
        }
        let left = self.size.width - self.size.right;
        for (y, index, (end_x, end_y)) in ends {
            let colour = COLOURS[index % COLOURS.len()];
            let _ = writeln!(
                svg,
                "<path stroke=\"{colour}\" stroke-opacity=\"0.5\" fill=\"none\" d=\"M{end_x:.1} {end_y:.1}L{:.1} {y:.1}\"/>",
                left + 8.0
            );
            let _ = writeln!(
                svg,
                "<text style=\"fill:{colour};font-weight:600\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                left + 11.0,
                y + 4.0,
                escape(&self.plot.series[index].name)
            );
        }
    }

    fn draw_bars(&self, svg: &mut String, index: usize, series: &Series) {
        let colour = COLOURS[index % COLOURS.len()];
        let room = (self.size.width - LEFT - self.size.right)
            / self.plot.x.categories.len().max(1) as f64
            * 0.8;
        let width = room / self.plot.bars() as f64;
        let turn = self.plot.series[..index].iter().filter(|series| !series.reference).count();
        for point in series.points.iter().filter(|point| point.y.is_finite()) {
            let left = self.px(point.x) - room / 2.0 + turn as f64 * width;
            let (top, foot) = (self.py(point.y), self.py(self.y.base()));
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\">{}</rect>",
                left + 1.0,
                (width - 2.0).max(1.0),
                (foot - top).max(0.0),
                self.tooltip(series, point)
            );
            self.draw_spread(svg, left + width / 2.0, point, "currentColor");
        }
    }

    fn tooltip(&self, series: &Series, point: &Point) -> String {
        let place = match &self.x {
            None => {
                self.plot.x.categories.get(point.x.max(0.0) as usize).cloned().unwrap_or_default()
            }
            Some(_) => format!("{} {}", figures(point.x), self.plot.x.unit),
        };
        let spread = if point.max > point.min {
            format!(" ({}–{})", figures(point.min), figures(point.max))
        } else {
            String::new()
        };
        format!(
            "<title>{}</title>",
            escape(&format!(
                "{}, {}: {}{spread} {}",
                series.name,
                place.trim(),
                figures(point.y),
                self.plot.y.unit
            ))
        )
    }

    fn draw_legend(&self, svg: &mut String) {
        for (index, (series, &(x, y))) in self.plot.series.iter().zip(&self.legend).enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let dash = if series.reference { " stroke-dasharray=\"6 4\"" } else { "" };
            let thick = if self.plot.kind == Kind::Bars && !series.reference { 10 } else { 2 };
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"{thick}\"{dash}/>",
                x + 22.0
            );
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 28.0,
                y + 4.0,
                escape(&series.name)
            );
        }
    }
}
