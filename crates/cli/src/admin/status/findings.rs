//! Findings of `flotilla admin status`, and the answer that they make.

use crate::admin::words;
use crate::answer::Answer;
use crate::table::{Cell, Tone, table};
use serde_json::{Value, json};

/// The most things of a kind that a finding names; the command behind it lists all.
const NAMED_MAX: usize = 8;
/// The characters of a finding's words in the table: what others report, such as the words of an error, may
/// be as long as it likes.
const SHOWN_CHARS_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    Ok,
    Warning,
    Critical,
}

impl Severity {
    fn word(self) -> words::Word {
        match self {
            Severity::Ok => ("ok", Tone::Good),
            Severity::Warning => ("warning", Tone::Warning),
            Severity::Critical => ("critical", Tone::Bad),
        }
    }

    fn exit_code(self) -> u8 {
        match self {
            Severity::Ok => 0,
            Severity::Warning => 1,
            Severity::Critical => 2,
        }
    }
}

/// One kind of trouble, with all that have it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) code: &'static str,
    pub(super) severity: Severity,
    pub(super) what: String,
    /// The command that tells more, without `flotilla admin`.
    more: &'static str,
}

#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn note(&mut self, severity: Severity, code: &'static str, what: String, more: &'static str) {
        self.0.push(Finding { code, severity, what, more });
    }

    /// Notes one finding for all that are named, or none where nothing is named.
    pub(super) fn note_each(
        &mut self,
        severity: Severity,
        code: &'static str,
        what: &str,
        names: Vec<String>,
        more: &'static str,
    ) {
        if names.is_empty() {
            return;
        }
        let mut said = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        if names.len() > NAMED_MAX {
            said += &format!(" and {} more", names.len() - NAMED_MAX);
        }
        self.note(severity, code, format!("{what}: {said}"), more);
    }

    pub(super) fn count(
        &mut self,
        severity: Severity,
        code: &'static str,
        what: &str,
        count: u64,
        more: &'static str,
    ) {
        if count > 0 {
            self.note(severity, code, format!("{count} {what}"), more);
        }
    }

    fn verdict(&self) -> Severity {
        self.0.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }
}

pub(super) fn answer(cluster: &str, mut findings: Findings) -> Answer {
    findings.0.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let verdict = findings.verdict();
    let rows: Vec<[Cell; 4]> = findings
        .0
        .iter()
        .map(|finding| {
            [
                words::cell(finding.severity.word()),
                finding.code.into(),
                shown(&finding.what).into(),
                format!("flotilla admin {}", finding.more).into(),
            ]
        })
        .collect();
    let mut text = match cluster {
        "" => format!("{}\n", verdict.word().0),
        _ => format!("cluster {cluster}: {}\n", verdict.word().0),
    };
    if !rows.is_empty() {
        text += "\n";
        text += &table(["SEVERITY", "CODE", "WHAT", "MORE"], &rows);
    }
    let findings: Vec<Value> = findings
        .0
        .iter()
        .map(|finding| {
            json!({
                "code": finding.code,
                "severity": finding.severity.word().0,
                "what": finding.what,
                "more": format!("flotilla admin {}", finding.more),
            })
        })
        .collect();
    let cluster = (!cluster.is_empty()).then_some(cluster);
    let json = json!({ "verdict": verdict.word().0, "cluster": cluster, "findings": findings });
    Answer { exit_code: verdict.exit_code(), ..Answer::new(text, json) }
}

/// As much of a finding's words as a table has room for; JSON has all.
fn shown(what: &str) -> String {
    match what.char_indices().nth(SHOWN_CHARS_MAX) {
        None => what.to_owned(),
        Some(_) => what.chars().take(SHOWN_CHARS_MAX - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_in_the_table_and_whole_in_json() {
        let long = "é".repeat(SHOWN_CHARS_MAX + 1);
        let mut findings = Findings::default();
        findings.note(Severity::Warning, "registry", long.clone(), "registry services");
        let answer = answer("c", findings);
        assert_eq!(answer.json["findings"][0]["what"], long);
        let cut = format!(" {}…  ", "é".repeat(SHOWN_CHARS_MAX - 1));
        assert!(answer.text.contains(&cut), "{}", answer.text);
        assert_eq!(shown(&"é".repeat(SHOWN_CHARS_MAX)), "é".repeat(SHOWN_CHARS_MAX));
    }

    #[test]
    fn many_of_a_kind_are_one_line() {
        let mut findings = Findings::default();
        let names = (0..20).map(|name| name.to_string()).collect();
        findings.note_each(Severity::Warning, "x", "things", names, "");
        assert_eq!(findings.0[0].what, "things: 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
    }
}
