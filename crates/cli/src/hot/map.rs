//! Heat as text: runs of pages with equal counts, and a map for the terminal.

use hiroma_hot::Heat;
use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};
use serde::Serialize;

/// Adjacent pages with the same count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Run {
    pub start: u64,
    /// First address after the run.
    pub end: u64,
    /// Number of windows in which the pages were touched, as far as windows are remembered.
    pub count: u32,
    /// Whether huge pages map the run.
    pub huge: bool,
}

/// All present pages in address order; adjacent pages with the same count are joined.
pub fn runs(heat: &Heat) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (range, heat) in heat.ranges() {
        let base = range * EXTENT as u64;
        let mut add = |start: u64, len: u64, count: u32| match runs.last_mut() {
            Some(last) if last.end == start && last.count == count && last.huge == heat.huge => {
                last.end += len
            }
            _ => runs.push(Run { start, end: start + len, count, huge: heat.huge }),
        };
        if heat.huge {
            add(base, EXTENT as u64, heat.huge_touched);
            continue;
        }
        for page in 0..PAGES_PER_EXTENT {
            if heat.present[page / 64] >> (page % 64) & 1 == 1 {
                add(base + (page * PAGE) as u64, PAGE as u64, u32::from(heat.counts.get(page)));
            }
        }
    }
    runs
}

/// Characters for increasing heat.
const SHADES: [char; 9] = ['.', ':', '-', '=', '+', '*', '#', '%', '@'];
/// Colours for the same levels (256-colour palette, from dark blue to white).
const COLOURS: [u8; 9] = [17, 18, 54, 90, 126, 196, 208, 226, 231];
const CELLS_PER_LINE: usize = 64;

/// Heat of a range: the mean share of windows in which its present pages were touched.
fn share(heat: &hiroma_hot::heat::RangeHeat) -> f64 {
    if heat.huge {
        return f64::from(heat.huge_touched) / f64::from(heat.huge_windows.max(1));
    }
    let present = hiroma_hot::bits::count(&heat.present).max(1);
    let sum = heat.counts.sum();
    sum as f64 / f64::from(present) / f64::from(heat.windows.max(1))
}

/// A map with one cell for each 2 MiB. Huge ranges are underlined with `colours`; without, they
/// show as `O` if they are in use.
pub fn map(heat: &Heat, colours: bool) -> String {
    let mut text = String::new();
    let mut last: Option<u64> = None;
    let mut column = 0;
    for (range, heat) in heat.ranges() {
        let goes_on = last.is_some_and(|last| last + 1 == range);
        if !goes_on || column == CELLS_PER_LINE {
            if last.is_some() {
                text.push('\n');
            }
            text.push_str(&format!("{:>14x}  ", range * EXTENT as u64));
            column = 0;
        }
        let heated = share(heat);
        let shade = if heated <= 0.0 { 0 } else { 1 + ((heated * 8.0) as usize).min(7) };
        let cell = if heat.huge && shade > 0 && !colours { 'O' } else { SHADES[shade] };
        if colours {
            let underline = if heat.huge { "\x1b[4m" } else { "" };
            text.push_str(&format!(
                "{underline}\x1b[38;5;{}m{cell}\x1b[0m",
                COLOURS[shade].max(60 * u8::from(shade == 0))
            ));
        } else {
            text.push(cell);
        }
        column += 1;
        last = Some(range);
    }
    if last.is_some() {
        text.push('\n');
    }
    text
}

/// Explains the signs of the map.
pub fn legend(colours: bool) -> String {
    let huge = if colours { "underlined: huge" } else { "O: huge and in use" };
    format!("one sign for 2 MiB; {} cold … {} always touched; {huge}", SHADES[0], SHADES[8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiroma_hot::RangeView;

    #[test]
    fn equal_counts_form_one_run_across_ranges() {
        let mut heat = Heat::new();
        let small = |range, touched: u64| RangeView {
            range,
            present: [0b111, 0, 0, 0, 0, 0, 0, 0],
            touched: [touched, 0, 0, 0, 0, 0, 0, 0],
            huge: false,
        };
        heat.add(&[small(1, 0b011)]);
        heat.add(&[small(1, 0b001)]);
        heat.add(&[RangeView {
            range: 2,
            present: [u64::MAX; 8],
            touched: [u64::MAX; 8],
            huge: true,
        }]);
        let base = EXTENT as u64;
        let expected = [(0, 1, 2), (1, 2, 1), (2, 3, 0)].map(|(from, to, count)| Run {
            start: base + from * 4096,
            end: base + to * 4096,
            count,
            huge: false,
        });
        let runs = runs(&heat);
        assert_eq!(runs[..3], expected);
        assert_eq!(runs[3], Run { start: 2 * base, end: 3 * base, count: 1, huge: true });
        let map = map(&heat, false);
        assert!(map.starts_with("        200000  ") && map.ends_with("O\n"), "{map}");
    }
}
