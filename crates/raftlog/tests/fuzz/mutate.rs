use disk::sim::Random;

/// Damages bytes the way devices, cables and people do; answers what was done.
pub(crate) fn damage(random: &mut Random, bytes: &mut Vec<u8>, donor: &[u8]) -> String {
    if bytes.is_empty() {
        bytes.extend((0..random.below(100)).map(|_| random.next_u64() as u8));
        return format!("fill with {} bytes", bytes.len());
    }
    let at = random.below(bytes.len() as u64) as usize;
    let count = (1 + random.below(*random.clone().pick(&[8, 100, 600, 5000])) as usize).min(bytes.len() - at);
    match random.below(12) {
        0..=2 => {
            let flips = 1 + random.below(3);
            let mut told = String::from("flip");
            for _ in 0..flips {
                let bit = random.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                told += &format!(" bit {} of byte {}", bit % 8, bit / 8);
            }
            told
        }
        3 => {
            bytes[at..at + count].fill(0);
            format!("zero {at}+{count}")
        }
        4 => {
            let (from, to) = (at / 512 * 512, (at + count).next_multiple_of(512).min(bytes.len()));
            bytes[from..to].fill(0);
            format!("zero sectors {from}..{to}")
        }
        5 => {
            bytes[at..at + count].iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
            format!("randomize {at}+{count}")
        }
        6 => {
            bytes.truncate(at);
            format!("cut to {at}")
        }
        7 => {
            let zeros = random.one_in(2);
            bytes.extend((0..count).map(|_| if zeros { 0 } else { random.next_u64() as u8 }));
            format!("extend by {count} {} bytes", if zeros { "zero" } else { "random" })
        }
        8 => {
            bytes.drain(at..at + count);
            format!("take out {at}+{count}")
        }
        9 => {
            let (from, length) = (random.below(bytes.len() as u64) as usize, count);
            let piece: Vec<u8> = bytes[from..].iter().take(length).copied().collect();
            bytes.splice(at..at, piece);
            format!("insert {from}+{length} at {at}")
        }
        _ => {
            let from = random.below(donor.len() as u64) as usize / 8 * 8;
            let (at, piece) = (at / 8 * 8, &donor[from..]);
            let length = piece.len().min(count.next_multiple_of(8)).min(bytes.len() - at);
            bytes[at..at + length].copy_from_slice(&piece[..length]);
            format!("splice {from}+{length} of another file in at {at}")
        }
    }
}
