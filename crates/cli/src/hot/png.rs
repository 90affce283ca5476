//! Heat as a picture: one pixel for each page, one row for each 2 MiB, and a stripe that marks huge
//! pages.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result, bail};
use hiroma_hot::Heat;
use hiroma_hot::heat::RangeHeat;
use hiroma_units::PAGES_PER_EXTENT;

/// Width of the stripe at the left, in pixels. It is blue where a huge page maps the row.
const STRIPE: usize = 8;
const WIDTH: usize = STRIPE + PAGES_PER_EXTENT;
/// Maximum number of rows: 64 GiB.
const ROWS_MAX: usize = 32 << 10;

const ABSENT: [u8; 3] = [40, 44, 52];
const HUGE: [u8; 3] = [0, 114, 178];
/// Colours from cold to hot, interpolated between these points.
const SCALE: [[u8; 3]; 5] =
    [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];

fn colour(share: f64) -> [u8; 3] {
    let at = share.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let low = (at as usize).min(SCALE.len() - 2);
    let part = at - low as f64;
    std::array::from_fn(|channel| {
        let (from, to) = (f64::from(SCALE[low][channel]), f64::from(SCALE[low + 1][channel]));
        (from + (to - from) * part).round() as u8
    })
}

fn row(heat: &RangeHeat, out: &mut Vec<u8>) {
    let stripe = if heat.huge { HUGE } else { [255; 3] };
    (0..STRIPE).for_each(|_| out.extend(stripe));
    for page in 0..PAGES_PER_EXTENT {
        let present = heat.present[page / 64] >> (page % 64) & 1 == 1;
        out.extend(if present {
            colour(f64::from(heat.counts.get(page)) / f64::from(heat.windows.max(1)))
        } else {
            ABSENT
        });
    }
}

/// Writes the picture to `path`.
pub fn write(heat: &Heat, path: &Path) -> Result<()> {
    let rows = heat.ranges().count().min(ROWS_MAX);
    if rows == 0 {
        bail!("nothing of the process was seen, so there is no picture to write");
    }
    let mut pixels = Vec::with_capacity(rows * WIDTH * 3);
    heat.ranges().take(rows).for_each(|(_, heat)| row(heat, &mut pixels));
    let file = File::create(path)
        .with_context(|| format!("cannot write the picture to {}", path.display()))?;
    let mut encoder = png::Encoder::new(BufWriter::new(file), WIDTH as u32, rows as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish().with_context(|| format!("cannot write the picture to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiroma_hot::RangeView;

    #[test]
    fn png_is_readable_and_shows_hot_pages() {
        let mut heat = Heat::new();
        heat.add(&[RangeView {
            range: 5,
            present: [0b11, 0, 0, 0, 0, 0, 0, 0],
            touched: [0b01, 0, 0, 0, 0, 0, 0, 0],
            huge: false,
        }]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("heat.png");
        write(&heat, &path).unwrap();
        let mut reader = png::Decoder::new(std::io::BufReader::new(File::open(&path).unwrap()))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width as usize, info.height), (WIDTH, 1));
        let pixel = |at: usize| [pixels[at * 3], pixels[at * 3 + 1], pixels[at * 3 + 2]];
        assert_eq!(
            (pixel(STRIPE), pixel(STRIPE + 1), pixel(STRIPE + 2)),
            (SCALE[4], SCALE[0], ABSENT)
        );
        assert!(write(&Heat::new(), &path).is_err());
    }
}
