use crate::scm::{DiscardProgress, DiscardState};

impl DiscardProgress {
    /// Whether the block at this place of the request is gone from every replica.
    pub fn is_gone(&self, at: usize) -> bool {
        match self.state() {
            DiscardState::DiscardGone => true,
            _ => self.gone.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_stands_for_each_block_and_gone_for_all() {
        let progress = |state: DiscardState, gone: &'static [u8]| DiscardProgress {
            state: state.into(),
            gone: gone.into(),
            ..DiscardProgress::default()
        };
        let some = progress(DiscardState::DiscardUnderWay, &[0b1000_0001, 0b10]);
        let gone = (0..20).filter(|at| some.is_gone(*at)).collect::<Vec<_>>();
        assert_eq!(gone, [0, 7, 9]);
        assert!(progress(DiscardState::DiscardGone, &[]).is_gone(19));
    }
}
