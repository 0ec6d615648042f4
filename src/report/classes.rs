//! The per-class table, worst first.

use super::html::{escape, escape_short, section as html_section};
use crate::evaluate::{ClassMetrics, Metrics};

/// Longer class names are cut.
const NAME_WIDTH: usize = 40;
/// Up to this many classes fit into the table without scrolling.
const UNSCROLLED: usize = 14;

/// The table of every class's scores; classes without a sample come last.
pub(super) fn section(metrics: &Metrics) -> String {
    let mut classes: Vec<&ClassMetrics> = metrics.per_class.iter().collect();
    classes.sort_by(|a, b| (a.support == 0).cmp(&(b.support == 0)).then(a.f1.total_cmp(&b.f1)));
    let rows: String = classes.into_iter().map(row).collect();
    let hint = if metrics.per_class.len() > UNSCROLLED { "; scroll for the others" } else { "" };
    let body = format!(
        r#"<p class="note">Lowest F1 first{hint}. Macro F1 is the mean over the classes that have samples or were predicted.</p>
<div class="scroll tall" tabindex="0">
<table>
<thead><tr><th scope="col">Class</th><th scope="col" class="wide">F1</th>
<th scope="col" class="n">Precision</th><th scope="col" class="n">Recall</th>
<th scope="col" class="n">Samples</th></tr></thead>
<tbody>
{rows}</tbody>
</table>
</div>
"#
    );
    html_section("Classes", &body)
}

/// One class, its F1 also as a bar.
fn row(class: &ClassMetrics) -> String {
    let ClassMetrics { label, precision, recall, f1, support } = class;
    let (full, short) = (escape(label), escape_short(label, NAME_WIDTH));
    let scores = if *support == 0 {
        r#"<td class="muted">no samples</td><td class="n">–</td><td class="n">–</td>"#.to_owned()
    } else {
        format!(
            r#"<td>{}</td><td class="n">{precision:.3}</td><td class="n">{recall:.3}</td>"#,
            bar(*f1, &format!("{f1:.3}"))
        )
    };
    format!(
        r#"<tr><th scope="row" title="{full}">{short}</th>{scores}<td class="n">{support}</td></tr>
"#
    )
}

/// A fraction as a bar with its text next to it.
pub(super) fn bar(fraction: f64, text: &str) -> String {
    let width = 100.0 * fraction.clamp(0.0, 1.0);
    format!(
        r#"<span class="bar"><span class="track"><span class="fill" style="width:{width:.1}%"></span></span>
<span class="value">{text}</span></span>"#
    )
}
