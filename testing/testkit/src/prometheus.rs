//! A strict reader of Prometheus's text format 0.0.4, which refuses what a scrape might accept and mean
//! otherwise. It shares nothing with the writer it checks.

use std::collections::{BTreeMap, HashSet};

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// A page of metrics.
#[derive(Debug, Default)]
pub struct Scrape {
    pub samples: Vec<Sample>,
    /// The type of each metric.
    pub types: BTreeMap<String, String>,
}

impl Scrape {
    /// Reads a page; an error names the line.
    pub fn parse(text: &str) -> Result<Scrape, String> {
        if !text.ends_with('\n') {
            return Err("the last line does not end".to_owned());
        }
        let mut scrape = Scrape::default();
        let mut helped: Option<&str> = None;
        let mut current: Option<&str> = None;
        for line in text.lines() {
            let wrong = |why: &str| format!("{why}: `{line}`");
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').ok_or_else(|| wrong("help without text"))?;
                check_escapes(help, "\\n").map_err(|why| wrong(&why))?;
                helped = Some(name);
            } else if let Some(typed) = line.strip_prefix("# TYPE ") {
                let (name, kind) = typed.split_once(' ').ok_or_else(|| wrong("type without a name"))?;
                if helped != Some(name) || !is_name(name) {
                    return Err(wrong("a type without its help in front, or without a proper name"));
                }
                if !["counter", "gauge", "histogram", "summary"].contains(&kind) {
                    return Err(wrong("an unknown type"));
                }
                if (kind == "counter") != name.ends_with("_total") {
                    return Err(wrong("counters, and only they, end in _total"));
                }
                if scrape.types.insert(name.to_owned(), kind.to_owned()).is_some() {
                    return Err(wrong("samples of a metric do not stand together"));
                }
                current = Some(name);
            } else {
                let sample = Sample::parse(line).map_err(|why| wrong(&why))?;
                let family = current.ok_or_else(|| wrong("a sample before its type"))?;
                if !belongs(&sample.name, family, &scrape.types[family]) {
                    return Err(wrong("a sample of another metric"));
                }
                scrape.samples.push(sample);
            }
        }
        scrape.check_unique()?;
        scrape.check_histograms()?;
        Ok(scrape)
    }

    /// The one sample of that name with these labels (and maybe more).
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.with(name, labels);
        let first = found.next()?;
        assert!(found.next().is_none(), "several samples of {name} have {labels:?}");
        Some(first.value)
    }

    pub fn with<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            let has = |(label, value): &(&str, &str)| sample.labels.get(*label).is_some_and(|it| it == value);
            sample.name == name && labels.iter().all(has)
        })
    }

    fn check_unique(&self) -> Result<(), String> {
        let mut seen = HashSet::new();
        for sample in &self.samples {
            if !seen.insert((&sample.name, &sample.labels)) {
                return Err(format!("twice: {sample:?}"));
            }
        }
        Ok(())
    }

    /// Checks that bounds rise, counts never fall, and the last bucket counts what `_count` says.
    fn check_histograms(&self) -> Result<(), String> {
        for (name, _) in self.types.iter().filter(|(_, kind)| *kind == "histogram") {
            let mut series: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
            for sample in self.with(&format!("{name}_bucket"), &[]) {
                let mut labels = sample.labels.clone();
                let bound = labels.remove("le").ok_or_else(|| format!("no bound: {sample:?}"))?;
                let bound = number(&bound).ok_or_else(|| format!("no bound: {sample:?}"))?;
                series.entry(labels).or_default().push((bound, sample.value));
            }
            for (labels, buckets) in series {
                if !buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1) {
                    return Err(format!("{name} {labels:?} is not cumulative: {buckets:?}"));
                }
                let only = |suffix: &str| {
                    let name = format!("{name}{suffix}");
                    self.samples.iter().find(|sample| sample.name == name && sample.labels == labels)
                };
                let last = buckets.last().map(|(bound, count)| (*bound, Some(*count)));
                let count = only("_count").map(|sample| sample.value);
                if last != Some((f64::INFINITY, count)) || only("_sum").is_none() {
                    return Err(format!("{name} {labels:?}: {last:?} buckets, {count:?} in all"));
                }
            }
        }
        Ok(())
    }
}

fn belongs(sample: &str, family: &str, kind: &str) -> bool {
    let Some(suffix) = sample.strip_prefix(family) else { return false };
    match kind {
        "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
        "summary" => ["_sum", "_count"].contains(&suffix),
        _ => suffix.is_empty(),
    }
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        text if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => text.parse().ok(),
        _ => None,
    }
}

fn check_escapes(text: &str, allowed: &str) -> Result<(), String> {
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\\' && !chars.next().is_some_and(|c| allowed.contains(c) || c == '\\') {
            return Err("an unknown escape".to_owned());
        }
    }
    Ok(())
}

impl Sample {
    fn parse(line: &str) -> Result<Sample, String> {
        let end = line.find(['{', ' ']).ok_or("no value")?;
        let (name, mut rest) = line.split_at(end);
        if !is_name(name) {
            return Err(format!("`{name}` is no name"));
        }
        let mut labels = BTreeMap::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                let (label, after) = rest.split_once("=\"").ok_or("a label without a value")?;
                if !is_name(label) {
                    return Err(format!("`{label}` is no label"));
                }
                let (value, after) = quoted(after)?;
                if labels.insert(label.to_owned(), value).is_some() {
                    return Err(format!("the label {label} stands there twice"));
                }
                match (after.strip_prefix(','), after.strip_prefix('}')) {
                    (Some(more), _) => rest = more,
                    (None, Some(after)) => {
                        rest = after;
                        break;
                    }
                    (None, None) => return Err("labels do not end".to_owned()),
                }
            }
        }
        let value = rest.strip_prefix(' ').and_then(number).ok_or("no value")?;
        Ok(Sample { name: name.to_owned(), labels, value })
    }
}

/// A label's value up to its closing quote, and what follows.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('"' | '\\'))) => value.push(c),
                _ => return Err("an unknown escape".to_owned()),
            },
            c => value.push(c),
        }
    }
    Err("a label's value does not end".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a_seconds Help\\nhere.\n# TYPE a_seconds histogram\n\
        a_seconds_bucket{x=\"q\\\"\\\\\\n,}\",le=\"0.5\"} 1\na_seconds_bucket{x=\"q\\\"\\\\\\n,}\",le=\"+Inf\"} 3\n\
        a_seconds_sum{x=\"q\\\"\\\\\\n,}\"} 2.5\na_seconds_count{x=\"q\\\"\\\\\\n,}\"} 3\n\
        # HELP b_total B.\n# TYPE b_total counter\nb_total 7\n";

    #[test]
    fn a_good_page_is_read() {
        let scrape = Scrape::parse(GOOD).unwrap();
        assert_eq!(scrape.value("b_total", &[]), Some(7.0));
        assert_eq!(scrape.value("a_seconds_sum", &[("x", "q\"\\\n,}")]), Some(2.5));
        assert_eq!(scrape.types["a_seconds"], "histogram");
    }

    #[test]
    fn planted_faults_are_found() {
        let faults = [
            ("_count{x=\"q\\\"\\\\\\n,}\"} 3", "_count{x=\"q\\\"\\\\\\n,}\"} 4", "in all"),
            ("le=\"0.5\"} 1", "le=\"0.5\"} 4", "cumulative"),
            ("le=\"0.5\"", "le=\"nan\"", "no bound"),
            ("b_total 7\n", "b_total 7", "does not end"),
            ("b_total 7\n", "b_total 7\nb_total 7\n", "twice"),
            ("b_total 7", "c 7", "another metric"),
            ("b_total 7", "b_total seven", "no value"),
            ("\\\\\\n,}\"} 2.5", "\\\\\\t,}\"} 2.5", "escape"),
            ("# TYPE b_total counter", "# TYPE b_total gauge", "_total"),
            ("# HELP b_total B.\n", "", "without its help"),
        ];
        for (good, bad, why) in faults {
            let page = GOOD.replacen(good, bad, 1);
            assert_ne!(page, GOOD, "{good}");
            let error = Scrape::parse(&page).expect_err(bad);
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
