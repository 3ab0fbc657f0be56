//! MD5 in vectors: each has one word of as many bodies as it is wide.

// Vectors are arrays of words to the language, and functions for processors with more instructions are called
// where those are known to be there.
#![allow(unsafe_code)]

use crate::compress::BLOCK_BYTES;
use crate::md5::State;
use std::arch::x86_64::*;

/// The whole part of 2^32 times the sine of 1, 2, ... (RFC 1321).
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee, 0xf57c_0faf, 0x4787_c62a, 0xa830_4613, 0xfd46_9501,
    0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be, 0x6b90_1122, 0xfd98_7193, 0xa679_438e, 0x49b4_0821,
    0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa, 0xd62f_105d, 0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8,
    0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed, 0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a,
    0xfffa_3942, 0x8771_f681, 0x6d9d_6122, 0xfde5_380c, 0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70,
    0x289b_7ec6, 0xeaa1_27fa, 0xd4ef_3085, 0x0488_1d05, 0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665,
    0xf429_2244, 0x432a_ff97, 0xab94_23a7, 0xfc93_a039, 0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1, 0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb, 0xeb86_d391,
];

pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

pub(crate) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")
}

/// Four words of a body.
#[inline(always)]
fn quarter(body: &[u8], at: usize) -> __m128i {
    let words: [u8; 16] = body[at..at + 16].try_into().expect("16 bytes");
    // SAFETY: a vector is any 16 bytes.
    unsafe { std::mem::transmute(words) }
}

#[inline(always)]
fn join_4(bodies: &[&[u8]; 4], nth: usize, at: usize) -> __m128i {
    quarter(bodies[nth], at)
}

/// Four words of the `nth` body and of each fourth one after it.
#[inline]
#[target_feature(enable = "avx2")]
fn join_8(bodies: &[&[u8]; 8], nth: usize, at: usize) -> __m256i {
    _mm256_set_m128i(quarter(bodies[nth + 4], at), quarter(bodies[nth], at))
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn join_16(bodies: &[&[u8]; 16], nth: usize, at: usize) -> __m512i {
    let low = _mm256_set_m128i(quarter(bodies[nth + 4], at), quarter(bodies[nth], at));
    let high = _mm256_set_m128i(quarter(bodies[nth + 12], at), quarter(bodies[nth + 8], at));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Four vectors of four words of a body each become four vectors of one word of each body.
macro_rules! transpose {
    ($rows:expr, $low_32:ident, $high_32:ident, $low_64:ident, $high_64:ident) => {{
        let rows = $rows;
        let (a, b) = ($low_32(rows[0], rows[1]), $low_32(rows[2], rows[3]));
        let (c, d) = ($high_32(rows[0], rows[1]), $high_32(rows[2], rows[3]));
        [$low_64(a, b), $high_64(a, b), $low_64(c, d), $high_64(c, d)]
    }};
}

macro_rules! compress {
    (
        $(#[$doc:meta])*
        $name:ident, $inner:ident, $features:literal, $width:literal, $vector:ty, $join:ident,
        $all:ident, $add:ident, $and:ident, $or:ident, $xor:ident, $left:ident, $right:ident,
        $low_32:ident, $high_32:ident, $low_64:ident, $high_64:ident
    ) => {
        $(#[$doc])*
        pub(crate) fn $name(states: &mut [State; $width], bodies: &[&[u8]; $width], blocks: usize) {
            // SAFETY: callers have looked whether the processor has it.
            unsafe { $inner(states, bodies, blocks) }
        }

        #[target_feature(enable = $features)]
        fn $inner(states: &mut [State; $width], bodies: &[&[u8]; $width], blocks: usize) {
            // SAFETY: a vector is any words, as many as it is wide.
            let vector = |words: [u32; $width]| -> $vector { unsafe { std::mem::transmute(words) } };
            // SAFETY: and these are its words.
            let words = |vector: $vector| -> [u32; $width] { unsafe { std::mem::transmute(vector) } };
            let mut state: [$vector; 4] =
                std::array::from_fn(|word| vector(std::array::from_fn(|of| states[of][word])));
            for block in 0..blocks {
                let mut message = [$all(0); 16];
                for (quarter, four) in message.chunks_exact_mut(4).enumerate() {
                    let at = block * BLOCK_BYTES + quarter * 16;
                    let rows: [$vector; 4] = std::array::from_fn(|nth| $join(bodies, nth, at));
                    four.copy_from_slice(&transpose!(rows, $low_32, $high_32, $low_64, $high_64));
                }
                let [mut a, mut b, mut c, mut d] = state;
                macro_rules! step {
                    ($mixed:expr, $to:ident, $from:ident, $word:expr, $step:expr, $turn:literal) => {
                        let sum = $add($add($to, $mixed), $add($word, $all(SINES[$step] as i32)));
                        $to = $add($from, $or($left::<$turn>(sum), $right::<{ 32 - $turn }>(sum)));
                    };
                }
                macro_rules! mix_1 {
                    ($x:ident, $y:ident, $z:ident) => { $xor($z, $and($x, $xor($y, $z))) };
                }
                macro_rules! mix_2 {
                    ($x:ident, $y:ident, $z:ident) => { $xor($y, $and($z, $xor($x, $y))) };
                }
                macro_rules! mix_3 {
                    ($x:ident, $y:ident, $z:ident) => { $xor($x, $xor($y, $z)) };
                }
                macro_rules! mix_4 {
                    ($x:ident, $y:ident, $z:ident) => { $xor($y, $or($x, $xor($z, $all(-1)))) };
                }
                macro_rules! four_steps {
                    ($mix:ident, $from:expr, $word:expr, [$t1:literal, $t2:literal, $t3:literal, $t4:literal]) => {
                        step!($mix!(b, c, d), a, b, message[$word($from) % 16], $from, $t1);
                        step!($mix!(a, b, c), d, a, message[$word($from + 1) % 16], $from + 1, $t2);
                        step!($mix!(d, a, b), c, d, message[$word($from + 2) % 16], $from + 2, $t3);
                        step!($mix!(c, d, a), b, c, message[$word($from + 3) % 16], $from + 3, $t4);
                    };
                }
                macro_rules! round {
                    ($mix:ident, $from:literal, $word:expr, $turns:tt) => {
                        four_steps!($mix, $from, $word, $turns);
                        four_steps!($mix, $from + 4, $word, $turns);
                        four_steps!($mix, $from + 8, $word, $turns);
                        four_steps!($mix, $from + 12, $word, $turns);
                    };
                }
                round!(mix_1, 0, |step: usize| step, [7, 12, 17, 22]);
                round!(mix_2, 16, |step: usize| 5 * step + 1, [5, 9, 14, 20]);
                round!(mix_3, 32, |step: usize| 3 * step + 5, [4, 11, 16, 23]);
                round!(mix_4, 48, |step: usize| 7 * step, [6, 10, 15, 21]);
                state = [$add(state[0], a), $add(state[1], b), $add(state[2], c), $add(state[3], d)];
            }
            for (word, of_all) in state.into_iter().enumerate() {
                for (of, value) in words(of_all).into_iter().enumerate() {
                    states[of][word] = value;
                }
            }
        }
    };
}

compress!(
    /// Four bodies: each processor of this architecture has it.
    sse2_4, on_sse2_4, "sse2", 4, __m128i, join_4,
    _mm_set1_epi32, _mm_add_epi32, _mm_and_si128, _mm_or_si128, _mm_xor_si128, _mm_slli_epi32, _mm_srli_epi32,
    _mm_unpacklo_epi32, _mm_unpackhi_epi32, _mm_unpacklo_epi64, _mm_unpackhi_epi64
);
compress!(
    /// Eight bodies, where there is AVX2.
    avx2_8, on_avx2_8, "avx2", 8, __m256i, join_8,
    _mm256_set1_epi32, _mm256_add_epi32, _mm256_and_si256, _mm256_or_si256, _mm256_xor_si256, _mm256_slli_epi32,
    _mm256_srli_epi32, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64
);
compress!(
    /// Four bodies, where there is AVX-512, which turns and mixes with one instruction each.
    avx512_4, on_avx512_4, "avx512f,avx512vl", 4, __m128i, join_4,
    _mm_set1_epi32, _mm_add_epi32, _mm_and_si128, _mm_or_si128, _mm_xor_si128, _mm_slli_epi32, _mm_srli_epi32,
    _mm_unpacklo_epi32, _mm_unpackhi_epi32, _mm_unpacklo_epi64, _mm_unpackhi_epi64
);
compress!(
    /// Eight bodies, where there is AVX-512.
    avx512_8, on_avx512_8, "avx512f,avx512vl", 8, __m256i, join_8,
    _mm256_set1_epi32, _mm256_add_epi32, _mm256_and_si256, _mm256_or_si256, _mm256_xor_si256, _mm256_slli_epi32,
    _mm256_srli_epi32, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64
);
compress!(
    /// Sixteen bodies, where there is AVX-512.
    avx512_16, on_avx512_16, "avx512f,avx512vl", 16, __m512i, join_16,
    _mm512_set1_epi32, _mm512_add_epi32, _mm512_and_si512, _mm512_or_si512, _mm512_xor_si512, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_unpacklo_epi32, _mm512_unpackhi_epi32, _mm512_unpacklo_epi64, _mm512_unpackhi_epi64
);
