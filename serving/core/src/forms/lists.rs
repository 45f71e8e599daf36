//! Nested lists in JSON text.

use super::tensor::{MAX_RANK, Shape};

/// What a character is between values.
#[derive(Clone, Copy)]
enum Kind {
    Space,
    Open,
    Close,
    Comma,
    Value,
}

const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Value; 256];
    kinds[b' ' as usize] = Kind::Space;
    kinds[b'\n' as usize] = Kind::Space;
    kinds[b'\r' as usize] = Kind::Space;
    kinds[b'\t' as usize] = Kind::Space;
    kinds[b'[' as usize] = Kind::Open;
    kinds[b']' as usize] = Kind::Close;
    kinds[b',' as usize] = Kind::Comma;
    kinds
};

/// Lists of one depth.
#[derive(Clone, Copy, Default)]
struct Level {
    /// Items so far of the one that is open.
    items: usize,
    /// Items of those before it; 0 for none before it.
    size: usize,
}

/// Walks through nested lists of equal sizes; `value` reads what stands at a place, and says where it ends.
pub(super) fn nested(text: &[u8], mut value: impl FnMut(usize) -> Option<usize>) -> Option<Shape> {
    let mut levels = [Level::default(); MAX_RANK];
    // Lists that are open, the most that were, and how many there are around values.
    let (mut depth, mut deepest, mut rank) = (0, 0, None);
    let mut at = 0;
    loop {
        // A value comes.
        match KINDS[usize::from(*text.get(at)?)] {
            Kind::Space => {
                at += 1;
                continue;
            }
            Kind::Open => {
                if depth == deepest {
                    if rank.is_some() {
                        // There were values before.
                        return None;
                    }
                    deepest += 1;
                }
                levels.get_mut(depth)?.items = 0;
                depth += 1;
                at += 1;
                continue;
            }
            Kind::Value => {
                if *rank.get_or_insert(depth) != depth {
                    return None;
                }
                at = value(at)?;
            }
            Kind::Close | Kind::Comma => return None,
        }
        // A value, or a list, ended.
        loop {
            if let Some(level) = depth.checked_sub(1) {
                match KINDS[usize::from(*text.get(at)?)] {
                    Kind::Space => at += 1,
                    Kind::Comma => {
                        levels[level].items += 1;
                        at += 1;
                        break;
                    }
                    Kind::Close => {
                        let Level { items, size } = &mut levels[level];
                        let count = *items + 1;
                        if *size == 0 {
                            *size = count;
                        } else if *size != count {
                            return None;
                        }
                        depth = level;
                        at += 1;
                    }
                    Kind::Open | Kind::Value => return None,
                }
            } else {
                let rest = &text[at..];
                let over = rest.iter().all(|&byte| matches!(KINDS[usize::from(byte)], Kind::Space));
                return over.then(|| levels[..deepest].iter().map(|level| level.size).collect());
            }
        }
    }
}
