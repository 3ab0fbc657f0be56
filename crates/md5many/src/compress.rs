//! Blocks that change states, side by side as far as this processor can.

use crate::md5::State;

pub(crate) const BLOCK_BYTES: usize = 64;
/// The most bodies that are hashed side by side.
pub(crate) const SIDE_BY_SIDE_MAX: usize = 16;

/// A body's state, and bytes of it that it is to take in: whole blocks.
pub(crate) struct Work<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) bytes: &'a [u8],
}

/// Takes in blocks of one body.
pub(crate) fn one(state: &mut State, blocks: &[[u8; BLOCK_BYTES]]) {
    md5::block_api::compress(state, blocks);
}

/// Takes in what each of these bodies has: the same number of blocks.
pub(crate) fn side_by_side(mut work: Vec<Work<'_>>) {
    let blocks = work.first().map_or(0, |first| first.bytes.len() / BLOCK_BYTES);
    assert!(work.iter().all(|of| of.bytes.len() == blocks * BLOCK_BYTES), "as many blocks of each");
    let mut rest = &mut work[..];
    while rest.len() > 1 {
        let taken = vector(rest, blocks);
        if taken == 0 {
            break;
        }
        rest = &mut rest[taken..];
    }
    for of in rest {
        one(of.state, of.bytes.as_chunks().0);
    }
}

/// Takes in the blocks of the first bodies in vectors as wide as this processor has them and as there are
/// bodies for; answers how many bodies that were.
#[cfg(target_arch = "x86_64")]
fn vector(work: &mut [Work<'_>], blocks: usize) -> usize {
    use crate::simd;
    match (work.len(), simd::has_avx512(), simd::has_avx2()) {
        (9.., true, _) => padded(work, |states, bytes| simd::avx512_16(states, bytes, blocks)),
        (5.., true, _) => padded(work, |states, bytes| simd::avx512_8(states, bytes, blocks)),
        (_, true, _) => padded(work, |states, bytes| simd::avx512_4(states, bytes, blocks)),
        (5.., _, true) => padded(work, |states, bytes| simd::avx2_8(states, bytes, blocks)),
        _ => padded(work, |states, bytes| simd::sse2_4(states, bytes, blocks)),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vector(_work: &mut [Work<'_>], _blocks: usize) -> usize {
    0
}

/// Hands over exactly `N` bodies: where there are fewer, the first one stands in for those that are missing.
#[cfg(target_arch = "x86_64")]
fn padded<const N: usize>(work: &mut [Work<'_>], compress: impl Fn(&mut [State; N], &[&[u8]; N])) -> usize {
    let count = work.len().min(N);
    let of = |at: usize| if at < count { at } else { 0 };
    let mut states: [State; N] = std::array::from_fn(|at| *work[of(at)].state);
    let bytes: [&[u8]; N] = std::array::from_fn(|at| work[of(at)].bytes);
    compress(&mut states, &bytes);
    for (of, state) in work.iter_mut().zip(states) {
        *of.state = state;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Md5;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bodies_side_by_side_get_the_states_that_each_gets_alone(
            count in 1usize..40,
            blocks in 0usize..5,
            seed in any::<u32>(),
        ) {
            let byte = |of: usize, at: usize| (seed as usize ^ (of * 131 + at * 7 + (at >> 6))) as u8;
            let bodies: Vec<Vec<u8>> =
                (0..count).map(|of| (0..blocks * BLOCK_BYTES).map(|at| byte(of, at)).collect()).collect();
            let mut states: Vec<State> = (0..count as u32).map(|of| {
                let mut state = Md5::default().state;
                state[0] ^= of;
                state
            }).collect();
            let alone: Vec<State> = states.iter().zip(&bodies).map(|(state, body)| {
                let mut state = *state;
                one(&mut state, body.as_chunks().0);
                state
            }).collect();
            side_by_side(
                states.iter_mut().zip(&bodies).map(|(state, bytes)| Work { state, bytes }).collect(),
            );
            prop_assert_eq!(states, alone);
        }
    }

    /// The narrower vectors are tried too on a processor that has wider ones.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn each_width_of_vectors_gives_what_one_body_alone_gives() {
        fn check<const N: usize>(compress: impl Fn(&mut [State; N], &[&[u8]; N], usize)) {
            let bodies: [Vec<u8>; N] =
                std::array::from_fn(|of| (0..640).map(|at| (of * 37 + at * 11 + at / 64) as u8).collect());
            let mut states = [Md5::default().state; N];
            compress(&mut states, &std::array::from_fn(|of| &bodies[of][..]), 10);
            for (state, body) in states.iter().zip(&bodies) {
                let mut alone = Md5::default().state;
                one(&mut alone, body.as_chunks().0);
                assert_eq!(*state, alone);
            }
        }
        use crate::simd;
        check(simd::sse2_4);
        if simd::has_avx2() {
            check(simd::avx2_8);
        }
        if simd::has_avx512() {
            check(simd::avx512_4);
            check(simd::avx512_8);
            check(simd::avx512_16);
        }
    }
}
