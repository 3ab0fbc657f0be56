//! A history of what writers did and were told, and whether what stands there in the end fits.

use std::collections::HashMap;

/// One writer's appends of ever larger numbers, by what it was told of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) acknowledged: Vec<u64>,
    pub(crate) unknown: Vec<u64>,
    /// The numbers of appends that were certainly not done.
    pub(crate) refused: Vec<u64>,
}

impl History {
    /// The faults of `found`, the numbers that were appended in the end.
    pub(crate) fn violations(&self, found: &[u64]) -> Vec<String> {
        let mut counts: HashMap<u64, usize> = HashMap::new();
        found.iter().for_each(|number| *counts.entry(*number).or_default() += 1);
        let count = |number: &u64| counts.get(number).copied().unwrap_or(0);
        let mut wrong = Vec::new();
        for number in &self.acknowledged {
            if count(number) != 1 {
                wrong.push(format!("acknowledged {number} stands there {} times", count(number)));
            }
        }
        for number in &self.unknown {
            if count(number) > 1 {
                wrong.push(format!("{number}, of unknown outcome, stands there {} times", count(number)));
            }
        }
        for number in &self.refused {
            if count(number) != 0 {
                wrong.push(format!("refused {number} stands there {} times", count(number)));
            }
        }
        let known = self.acknowledged.len() + self.unknown.len() + self.refused.len();
        if let Some(number) = found.iter().find(|number| **number >= known as u64) {
            wrong.push(format!("{number} stands there, which nobody wrote"));
        }
        // The writer waited for each: what is acknowledged stands in the order of asking.
        let is_acknowledged = |number: &&u64| self.acknowledged.binary_search(number).is_ok();
        let in_order: Vec<_> = found.iter().filter(is_acknowledged).collect();
        if !in_order.is_sorted() {
            wrong.push("acknowledged numbers stand in another order".to_owned());
        }
        wrong
    }
}

#[test]
fn planted_violations_are_found() {
    let history = History { acknowledged: vec![0, 1, 3, 5], unknown: vec![2], refused: vec![4] };
    assert_eq!(history.violations(&[0, 1, 3, 5]), Vec::<String>::new());
    assert_eq!(history.violations(&[0, 1, 3, 2, 5]), Vec::<String>::new());
    let found_by = |found: &[u64], part: &str| {
        let wrong = history.violations(found);
        assert!(wrong.iter().any(|it| it.contains(part)), "{found:?}: {wrong:?}");
    };
    found_by(&[0, 1, 5], "acknowledged 3 stands there 0 times");
    found_by(&[0, 1, 1, 3, 5], "acknowledged 1 stands there 2 times");
    found_by(&[0, 1, 2, 2, 3, 5], "2, of unknown outcome, stands there 2 times");
    found_by(&[0, 1, 3, 4, 5], "refused 4 stands there 1 times");
    found_by(&[0, 1, 3, 5, 9], "9 stands there, which nobody wrote");
    found_by(&[1, 0, 3, 5], "another order");
}
