//! Bytes that a program gives in several parts.

#[derive(Debug)]
pub struct Parts<'a> {
    parts: &'a [&'a [u8]],
    /// Bytes of the first part that were taken.
    done: usize,
}

impl<'a> Parts<'a> {
    pub const fn new(parts: &'a [&'a [u8]]) -> Self {
        Self { parts, done: 0 }
    }

    /// Counts the bytes that are left.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum::<usize>() - self.done
    }

    /// Takes the next `len` bytes: calls `with` for each contiguous piece, with the piece's offset among these bytes.
    pub fn take(&mut self, len: usize, mut with: impl FnMut(usize, &[u8])) {
        let mut at = 0;
        while at < len
            && let Some((first, rest)) = self.parts.split_first()
        {
            let piece = &first[self.done..];
            let piece = &piece[..piece.len().min(len - at)];
            with(at, piece);
            at += piece.len();
            self.done += piece.len();
            if self.done == first.len() {
                (self.parts, self.done) = (rest, 0);
            }
        }
    }
}

/// Room for bytes to receive.
#[derive(Debug)]
pub struct PartsMut<'a> {
    parts: &'a mut [&'a mut [u8]],
    done: usize,
}

impl<'a> PartsMut<'a> {
    pub const fn new(parts: &'a mut [&'a mut [u8]]) -> Self {
        Self { parts, done: 0 }
    }

    /// Is true if no room is left.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().map(|part| part.len()).sum::<usize>() == self.done
    }

    /// Fills at most `len` bytes: calls `with` for each contiguous piece, with the piece's offset among these
    /// bytes. Returns the number of filled bytes.
    pub fn take(&mut self, len: usize, mut with: impl FnMut(usize, &mut [u8])) -> usize {
        let mut at = 0;
        let mut skipped = self.done;
        for part in self.parts.iter_mut() {
            let start = skipped.min(part.len());
            skipped -= start;
            let end = part.len().min(start + len - at);
            if start < end {
                with(at, &mut part[start..end]);
                at += end - start;
            }
        }
        self.done += at;
        at
    }
}
