//! Figures for people: panels of lines, one below the other, as one SVG or PNG, and [tables](Table) of text.
//!
//! Used by `softdpu bench` for what was measured, by `softdpu twin` for what was simulated, and by `softdpu status`.

#![forbid(unsafe_code)]

mod table;

use std::collections::BTreeMap;
use std::io::BufWriter;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::register_font;

pub use table::Table;

/// One panel, pixels.
const PANEL: (u32, u32) = (820, 430);
/// Colours that colour-blind readers can tell apart (Okabe and Ito's set).
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];

/// Lines by name, each with its points.
pub type Lines = BTreeMap<String, Vec<(f64, f64)>>;

/// How an axis is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from 0 or the least value that is below it.
    #[default]
    Linear,
    /// By powers of ten; nothing below 1 is shown.
    Log,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// What is along its lower edge.
    pub axis: String,
    /// What is in it.
    pub lines: Lines,
    /// How its values are written.
    pub label: fn(f64) -> String,
    x: Scale,
    y: Scale,
}

impl Panel {
    /// A chart with two linear axes.
    pub fn new(title: impl Into<String>, axis: impl Into<String>, lines: Lines, label: fn(f64) -> String) -> Panel {
        Panel { title: title.into(), axis: axis.into(), lines, label, x: Scale::Linear, y: Scale::Linear }
    }

    /// The same with other axes.
    pub fn scales(self, x: Scale, y: Scale) -> Panel {
        Panel { x, y, ..self }
    }

    fn range(&self, scale: Scale, of: impl Fn(&(f64, f64)) -> f64) -> Range<f64> {
        let values = self.lines.values().flatten().map(of);
        let (least, most) =
            values.fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
        match scale {
            // The margin is a factor.
            Scale::Log => least.min(most.max(1.0)).max(1.0) * 0.8..most.max(1.0) * 1.25,
            Scale::Linear => {
                let (least, most) = (least.min(0.0), most.max(0.0));
                least..if most > least { most + (most - least) * 0.08 } else { least + 1.0 }
            }
        }
    }
}

/// What text is drawn with: DejaVu Sans, a few glyphs of it (`font/LICENSE`), so that a plot looks alike on each
/// machine.
static FONT: &[u8] = include_bytes!("../font/dejavu-sans-ascii.ttf");

/// What a plot is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines and text.
    Svg,
    /// Pixels.
    Png,
}

impl Format {
    /// By the end of a file's name.
    ///
    /// # Errors
    /// A sentence: it ends in neither `.svg` nor `.png`.
    pub fn of(path: &Path) -> Result<Format, String> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Ok(Format::Svg),
            Some("png") => Ok(Format::Png),
            _ => Err("plots are drawn as SVG or PNG: give the file a name that ends in .svg or .png".to_owned()),
        }
    }
}

/// Draws panels to `path`, as SVG or PNG, by the end of its name.
///
/// # Errors
/// A sentence: the name ends in neither `.svg` nor `.png`, or the file cannot be written.
pub fn draw(panels: &[Panel], path: &Path) -> Result<(), String> {
    let (width, height) = (PANEL.0, panels.len().max(1) as u32 * PANEL.1);
    match Format::of(path)? {
        Format::Svg => {
            let mut svg = String::new();
            draw_on(panels, SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area())?;
            std::fs::write(path, svg).map_err(|error| error.to_string())
        }
        Format::Png => {
            let mut pixels = vec![0; 3 * width as usize * height as usize];
            draw_on(panels, BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area())?;
            write_png(path, width, height, &pixels).map_err(|error| error.to_string())
        }
    }
}

fn write_png(path: &Path, width: u32, height: u32, pixels: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    let mut encoder = png::Encoder::new(BufWriter::new(std::fs::File::create(path)?), width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(())
}

fn draw_on<B: DrawingBackend>(panels: &[Panel], area: DrawingArea<B, Shift>) -> Result<(), String> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    if !REGISTERED.get_or_init(|| register_font("sans-serif", FontStyle::Normal, FONT).is_ok()) {
        return Err("the font of plots cannot be read".to_owned());
    }
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    for (area, panel) in area.split_evenly((panels.len().max(1), 1)).iter().zip(panels) {
        let (x, y) = (panel.range(panel.x, |point| point.0), panel.range(panel.y, |point| point.1));
        match (panel.x, panel.y) {
            (Scale::Log, Scale::Log) => draw_panel(area, panel, x.log_scale(), y.log_scale()),
            (Scale::Linear, Scale::Log) => draw_panel(area, panel, x, y.log_scale()),
            (Scale::Log, Scale::Linear) => draw_panel(area, panel, x.log_scale(), y),
            (Scale::Linear, Scale::Linear) => draw_panel(area, panel, x, y),
        }?;
    }
    area.present().map_err(|error| error.to_string())
}

fn draw_panel<B, X, Y>(area: &DrawingArea<B, Shift>, panel: &Panel, x: X, y: Y) -> Result<(), String>
where
    B: DrawingBackend,
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let Panel { title, axis, lines, label, .. } = panel;
    let text = |error: DrawingAreaErrorKind<_>| error.to_string();
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(84)
        .build_cartesian_2d(x, y)
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc(axis)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| label(*value))
        .draw()
        .map_err(text)?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        // Beyond the colours, lines differ in width.
        let style = colour.stroke_width(2 + (index / COLOURS.len()) as u32 * 2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))
            .map_err(text)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.4)).draw().map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines {
        Lines::from([("one".to_owned(), vec![(0.0, 3.0), (2.0, 4.0)]), ("none".to_owned(), Vec::new())])
    }

    #[test]
    fn every_scale_draws_and_names_its_lines() {
        let folder = std::env::temp_dir().join(format!("softdpu-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("plot.svg");
        for (x, y) in [
            (Scale::Linear, Scale::Linear),
            (Scale::Log, Scale::Linear),
            (Scale::Linear, Scale::Log),
            (Scale::Log, Scale::Log),
        ] {
            let panel = Panel::new("a title", "an axis", lines(), |value| format!("{value:.1}")).scales(x, y);
            let empty = Panel::new("nothing", "an axis", Lines::new(), |value| format!("{value}")).scales(x, y);
            draw(&[panel, empty], &path).expect("drawn");
            let svg = std::fs::read_to_string(&path).expect("a file");
            assert!(svg.contains("a title") && svg.contains("one"), "{x:?} {y:?}");
        }
        let panel = Panel::new("a title", "an axis", lines(), |value| format!("{value:.1}"));
        let path = folder.join("plot.png");
        draw(&[panel], &path).expect("drawn");
        let decoder = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(&path).expect("a file")));
        let mut reader = decoder.read_info().expect("a PNG");
        let mut pixels = vec![0; reader.output_buffer_size().expect("its size")];
        let info = reader.next_frame(&mut pixels).expect("its pixels");
        assert_eq!((info.width, info.height), PANEL);
        // The first line's colour, and black text.
        for colour in [[0, 114, 178], [0, 0, 0]] {
            assert!(pixels.chunks(3).any(|pixel| pixel == colour), "{colour:?}");
        }
        assert!(draw(&[], &folder.join("plot.jpg")).expect_err("refused").contains(".png"));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
