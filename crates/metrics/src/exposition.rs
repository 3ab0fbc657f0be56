use crate::{Distribution, Unit};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The content type of an HTTP response with [`Exposition::finish`] in it.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric's name and what it means. Names follow Prometheus: `flotilla_`, the part, the thing, the base
/// unit (seconds, bytes), and `_total` for what only grows.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub help: &'static str,
}

type Labels<'a> = &'a [(&'a str, &'a str)];

/// Metrics in Prometheus's text format 0.0.4. Samples come in any order, from several owners; all of a metric
/// stand together in the text, as the format demands.
#[derive(Debug, Default)]
pub struct Exposition {
    families: BTreeMap<&'static str, Family>,
    scope: Vec<(&'static str, String)>,
}

#[derive(Debug)]
struct Family {
    help: &'static str,
    kind: &'static str,
    samples: String,
}

impl Exposition {
    /// Sets labels for all that comes next, in front of its own. Empty values are left out: to Prometheus
    /// they are the same as none.
    pub fn scope(&mut self, labels: &[(&'static str, String)]) {
        self.scope = labels.iter().filter(|(_, value)| !value.is_empty()).cloned().collect();
    }

    pub fn counter(&mut self, metric: Metric, labels: Labels<'_>, value: u64) {
        self.sample(metric, "counter", labels, value);
    }

    /// Adds a sample of a counter of seconds.
    pub fn counter_seconds(&mut self, metric: Metric, labels: Labels<'_>, seconds: f64) {
        self.sample(metric, "counter", labels, seconds);
    }

    pub fn gauge(&mut self, metric: Metric, labels: Labels<'_>, value: u64) {
        self.sample(metric, "gauge", labels, value);
    }

    /// Adds buckets, sum and count: [`crate::BOUNDS`] + 3 lines.
    pub fn histogram(&mut self, metric: Metric, labels: Labels<'_>, distribution: &Distribution) {
        let mut cumulative = 0;
        let bounds = distribution.bounds().map(|bound| in_base_unit(distribution.unit, bound).to_string());
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(distribution.buckets) {
            cumulative += count;
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.line(metric, "histogram", "_bucket", &labels, cumulative);
        }
        self.sum_and_count(metric, "histogram", labels, distribution);
    }

    /// Adds the sum and the count only, in two lines: enough for a rate and a mean.
    pub fn summary(&mut self, metric: Metric, labels: Labels<'_>, distribution: &Distribution) {
        self.sum_and_count(metric, "summary", labels, distribution);
    }

    fn sum_and_count(
        &mut self,
        metric: Metric,
        kind: &'static str,
        labels: Labels<'_>,
        distribution: &Distribution,
    ) {
        self.line(metric, kind, "_sum", labels, in_base_unit(distribution.unit, distribution.sum));
        self.line(metric, kind, "_count", labels, distribution.count());
    }

    fn sample(
        &mut self,
        metric: Metric,
        kind: &'static str,
        labels: Labels<'_>,
        value: impl std::fmt::Display,
    ) {
        self.line(metric, kind, "", labels, value);
    }

    fn line(
        &mut self,
        metric: Metric,
        kind: &'static str,
        suffix: &str,
        labels: Labels<'_>,
        value: impl std::fmt::Display,
    ) {
        let Metric { name, help } = metric;
        let family =
            self.families.entry(name).or_insert_with(|| Family { help, kind, samples: String::new() });
        assert!(family.kind == kind, "{name} is a {} and cannot be a {kind}", family.kind);
        let text = &mut family.samples;
        text.push_str(name);
        text.push_str(suffix);
        let scope = self.scope.iter().map(|(label, value)| (*label, value.as_str()));
        let mut separator = '{';
        for (label, value) in scope.chain(labels.iter().copied()) {
            text.push(separator);
            text.push_str(label);
            text.push_str("=\"");
            escape_into(text, value, true);
            text.push('"');
            separator = ',';
        }
        if separator == ',' {
            text.push('}');
        }
        writeln!(text, " {value}").expect("a string takes everything");
    }

    /// The text: families by name, samples as they came.
    pub fn finish(self) -> String {
        let mut text = String::new();
        for (name, Family { help, kind, samples }) in self.families {
            text.push_str("# HELP ");
            text.push_str(name);
            text.push(' ');
            escape_into(&mut text, help, false);
            writeln!(text, "\n# TYPE {name} {kind}").expect("a string takes everything");
            text.push_str(&samples);
        }
        text
    }
}

fn in_base_unit(unit: Unit, value: u64) -> f64 {
    match unit {
        Unit::Nanoseconds => value as f64 / 1e9,
        Unit::Count => value as f64,
    }
}

/// Escapes a text: in a help backslash and line feed, in a label's value the double quote too.
fn escape_into(text: &mut String, raw: &str, with_quotes: bool) {
    for c in raw.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if with_quotes => text.push_str("\\\""),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Histogram;
    use std::time::Duration;

    const THINGS: Metric = Metric { name: "flotilla_things_total", help: "Things\\made\nhere." };
    const WAIT: Metric = Metric { name: "flotilla_wait_seconds", help: "Waiting." };

    #[test]
    fn labels_and_help_are_escaped_and_samples_of_a_metric_stand_together() {
        let mut exposition = Exposition::default();
        exposition.scope(&[("cluster", "a\"b\\c\nd".to_owned()), ("node", String::new())]);
        exposition.counter(THINGS, &[("group", "one")], 1);
        exposition.gauge(Metric { name: "flotilla_other", help: "Other." }, &[], 7);
        exposition.scope(&[]);
        exposition.counter(THINGS, &[("group", "two")], 2);
        let expected = "# HELP flotilla_other Other.\n\
            # TYPE flotilla_other gauge\n\
            flotilla_other{cluster=\"a\\\"b\\\\c\\nd\"} 7\n\
            # HELP flotilla_things_total Things\\\\made\\nhere.\n\
            # TYPE flotilla_things_total counter\n\
            flotilla_things_total{cluster=\"a\\\"b\\\\c\\nd\",group=\"one\"} 1\n\
            flotilla_things_total{group=\"two\"} 2\n";
        assert_eq!(exposition.finish(), expected);
    }

    #[test]
    fn buckets_are_cumulative_and_in_seconds() {
        let histogram = Histogram::new(Unit::Nanoseconds);
        for micros in [10, 20, 20, 20_000_000] {
            histogram.record_duration(Duration::from_micros(micros));
        }
        let mut exposition = Exposition::default();
        exposition.histogram(WAIT, &[("disk", "d")], &histogram.take());
        let text = exposition.finish();
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(lines.len(), crate::BOUNDS + 3);
        assert_eq!(lines[0], "flotilla_wait_seconds_bucket{disk=\"d\",le=\"0.000016384\"} 1");
        assert_eq!(lines[1], "flotilla_wait_seconds_bucket{disk=\"d\",le=\"0.000032768\"} 3");
        assert_eq!(lines[crate::BOUNDS - 1], "flotilla_wait_seconds_bucket{disk=\"d\",le=\"8.589934592\"} 3");
        assert_eq!(lines[crate::BOUNDS], "flotilla_wait_seconds_bucket{disk=\"d\",le=\"+Inf\"} 4");
        assert_eq!(lines[crate::BOUNDS + 1], "flotilla_wait_seconds_sum{disk=\"d\"} 20.00005");
        assert_eq!(lines[crate::BOUNDS + 2], "flotilla_wait_seconds_count{disk=\"d\"} 4");
    }
}
