//! A plot as SVG text: curves over a logarithmic axis.

use std::fmt::Write as _;

/// One curve.
pub(super) struct Curve {
    pub(super) name: String,
    /// x above 0, ascending.
    pub(super) points: Vec<(f64, f64)>,
}

/// One diagram of a picture.
pub(super) struct Panel {
    pub(super) title: String,
    /// Lowest and highest y; curves are cut off above.
    pub(super) y: (f64, f64),
    /// Distance of the horizontal lines.
    pub(super) step: f64,
    pub(super) curves: Vec<Curve>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 34.0;
const COLOURS: [&str; 8] = ["#1b6ca8", "#d1495b", "#3a7d44", "#8e5ea2", "#e08e0b", "#2a9d8f", "#6c757d", "#a0522d"];

/// The panels one below the other, all over the same x.
pub(super) fn svg(panels: &[Panel], x_ticks: &[u32], x_title: &str) -> String {
    let height = HEIGHT * panels.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (at, panel) in (0u32..).zip(panels) {
        draw(&mut text, panel, HEIGHT * f64::from(at), x_ticks, x_title);
    }
    text + "</svg>\n"
}

/// Writing to a String cannot fail, so what `writeln!` answers is let go.
fn draw(text: &mut String, panel: &Panel, top: f64, x_ticks: &[u32], x_title: &str) {
    let (first, last) = (x_ticks.first().copied().unwrap_or(1), x_ticks.last().copied().unwrap_or(10));
    let (from, to) = (f64::from(first).ln(), f64::from(last).ln());
    let x = |value: f64| LEFT + (value.ln() - from) / (to - from) * (WIDTH - LEFT - RIGHT);
    let (low, high) = panel.y;
    let floor = top + HEIGHT - BOTTOM;
    let y = |value: f64| floor - (value.clamp(low, high) - low) / (high - low) * (HEIGHT - TOP - BOTTOM);

    let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{}</text>", top + 18.0, panel.title);
    let mut line = low;
    while line <= high + 1e-9 {
        let _ = writeln!(text, "<path d=\"M{LEFT} {0:.1}H{1}\" stroke=\"#ddd\"/>", y(line), WIDTH - RIGHT);
        let _ = writeln!(text, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{line:.2}</text>", LEFT - 6.0, y(line) + 4.0);
        line += panel.step;
    }
    for tick in x_ticks {
        let _ = writeln!(text, "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>", x(f64::from(*tick)), floor + 16.0);
    }
    let _ = writeln!(text, "<text x=\"{}\" y=\"{}\">{x_title}</text>", WIDTH - RIGHT + 14.0, floor + 16.0);
    for ((at, curve), colour) in (0u32..).zip(&panel.curves).zip(COLOURS.iter().cycle()) {
        let points: Vec<_> = curve.points.iter().map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py))).collect();
        let _ = writeln!(text, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", points.join(" "));
        let beside = top + TOP + 10.0 + 18.0 * f64::from(at);
        let _ = writeln!(text, "<text x=\"{}\" y=\"{beside}\" fill=\"{colour}\">{}</text>", WIDTH - RIGHT + 14.0, curve.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_from_corner_to_corner() {
        let curve = Curve { name: "all".into(), points: vec![(1.0, 0.0), (10.0, 0.5), (100.0, 9.0)] };
        let panel = Panel { title: "t".into(), y: (0.0, 1.0), step: 0.5, curves: vec![curve] };
        let text = svg(&[panel], &[1, 10, 100], "x");
        assert!(text.contains("points=\"50.0,266.0 300.0,150.0 550.0,34.0\""), "{text}");
        assert_eq!(text.matches("<path ").count(), 3, "one line for each step: {text}");
    }
}
