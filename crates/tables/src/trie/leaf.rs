//! The leaves of the trie: up to some hundred prefixes, packed into two arrays.
//!
//! A prefix is a number: its bits below the leaf's, from the top, and their count in the lowest bits. In such numbers
//! a shorter prefix sorts before the longer ones within it. So the last one not above an address is its longest match,
//! or the bit at which it differs tells how long the next candidate can be. The numbers are as wide as the leaf's
//! longest prefix needs: two bytes for a full IPv4 table, four for an IPv6 one.

/// A left-aligned string of bits.
pub(super) type Tail = u128;

/// Returns the first `n` bits.
fn head(bits: Tail, n: u8) -> Tail {
    if n == 0 { 0 } else { bits & (Tail::MAX << (Tail::BITS - u32::from(n))) }
}

/// A prefix as a number.
trait Code: Copy + Ord {
    /// The longest prefix that fits.
    const ROOM: u8;
    /// Makes a prefix of the first `n` bits; any further bits must be zero.
    fn new(bits: Tail, n: u8) -> Self;
    /// Returns the number that sorts after all prefixes of these bits.
    fn last(bits: Tail) -> Self;
    fn bits(self) -> Tail;
    fn len(self) -> u8;
    /// Returns how many leading bits are common, of those that fit.
    fn common(self, other: Self) -> u8;
}

macro_rules! codes {
    ($($variant:ident($t:ty): $len_bits:literal,)*) => {
        $(impl Code for $t {
            const ROOM: u8 = <$t>::BITS as u8 - $len_bits;

            fn new(bits: Tail, n: u8) -> Self {
                (bits >> (Tail::BITS - <$t>::BITS)) as $t | <$t>::from(n)
            }

            #[inline]
            fn last(bits: Tail) -> Self {
                (bits >> (Tail::BITS - <$t>::BITS)) as $t | ((1 << $len_bits) - 1)
            }

            fn bits(self) -> Tail {
                ((self >> $len_bits << $len_bits) as Tail) << (Tail::BITS - <$t>::BITS)
            }

            #[inline]
            fn len(self) -> u8 {
                (self & ((1 << $len_bits) - 1)) as u8
            }

            #[inline]
            fn common(self, other: Self) -> u8 {
                ((self ^ other).leading_zeros() as u8).min(Self::ROOM)
            }
        })*

        #[derive(Clone)]
        enum Codes {
            $($variant(Box<[$t]>),)*
        }

        impl Codes {
            /// Creates an empty array, as wide as prefixes of this length need.
            fn for_len(n: u8) -> Option<Self> {
                $(if n <= <$t>::ROOM {
                    return Some(Self::$variant(Box::new([])));
                })*
                None
            }
        }

        /// Calls a generic function with the array, whatever its width.
        macro_rules! with {
            ($codes:expr, $array:ident => $result:expr) => {
                match $codes { $(Codes::$variant($array) => $result,)* }
            };
        }
    };
}

codes! {
    Two(u16): 4,
    Four(u32): 5,
    Eight(u64): 6,
    Sixteen(u128): 7,
}

/// The longest prefix, counted from the leaf's own bits, that a leaf can hold.
pub(super) const ROOM: u8 = <u128 as Code>::ROOM;

/// Prefixes of at least one bit, with their values.
#[derive(Clone)]
pub(super) struct Leaf<V> {
    codes: Codes,
    values: Box<[V]>,
}

impl<V> Leaf<V> {
    /// Creates an empty leaf for prefixes of up to `n` bits.
    ///
    /// # Panics
    /// If `n` is greater than [`ROOM`].
    #[allow(clippy::expect_used)]
    pub fn new(n: u8) -> Self {
        Self { codes: Codes::for_len(n).expect("no longer than fits a leaf"), values: Box::new([]) }
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    fn find(&self, bits: Tail, n: u8) -> Result<usize, usize> {
        fn find<C: Code>(codes: &[C], bits: Tail, n: u8) -> Result<usize, usize> {
            if n > C::ROOM { Err(codes.len()) } else { codes.binary_search(&C::new(head(bits, n), n)) }
        }
        with!(&self.codes, codes => find(codes, bits, n))
    }

    pub fn get(&self, bits: Tail, n: u8) -> Option<&V> {
        self.find(bits, n).ok().map(|at| &self.values[at])
    }

    pub fn get_mut(&mut self, bits: Tail, n: u8) -> Option<&mut V> {
        self.find(bits, n).ok().map(|at| &mut self.values[at])
    }

    /// Returns the longest prefix of these bits: its length and value.
    #[inline]
    pub fn longest(&self, bits: Tail) -> Option<(u8, &V)> {
        let mut found = None;
        with!(&self.codes, codes => walk(codes, bits, |at, n| {
            found = Some((n, &self.values[at]));
            false
        }));
        found
    }

    /// Calls `each` for the value of every prefix of these bits, longest first.
    pub fn matches<'a>(&'a self, bits: Tail, mut each: impl FnMut(&'a V)) {
        with!(&self.codes, codes => walk(codes, bits, |at, _| {
            each(&self.values[at]);
            true
        }));
    }

    /// Sets the value of a prefix no longer than [`ROOM`]; returns the previous one.
    pub fn insert(&mut self, bits: Tail, n: u8, value: V) -> Option<V> {
        match self.find(bits, n) {
            Ok(at) => Some(std::mem::replace(&mut self.values[at], value)),
            Err(_) => {
                self.widen(n);
                let at = self.find(bits, n).unwrap_or_else(|at| at);
                with!(&mut self.codes, codes => insert_at(codes, at, Code::new(head(bits, n), n)));
                insert_at(&mut self.values, at, value);
                None
            }
        }
    }

    /// Makes room for prefixes of `n` bits.
    fn widen(&mut self, n: u8) {
        let room = |codes: &Codes| {
            fn room<C: Code>(_: &[C]) -> u8 {
                C::ROOM
            }
            with!(codes, codes => room(codes))
        };
        if n <= room(&self.codes) {
            return;
        }
        let Some(mut wider) = Codes::for_len(n) else { return };
        let prefixes = self.prefixes();
        with!(&mut wider, codes => *codes = prefixes.map(|(bits, n)| Code::new(bits, n)).collect());
        self.codes = wider;
    }

    pub fn remove(&mut self, bits: Tail, n: u8) -> Option<V> {
        let at = self.find(bits, n).ok()?;
        with!(&mut self.codes, codes => drop(remove_at(codes, at)));
        Some(remove_at(&mut self.values, at))
    }

    fn prefixes(&self) -> Box<dyn Iterator<Item = (Tail, u8)> + '_> {
        with!(&self.codes, codes => Box::new(codes.iter().map(|code| (code.bits(), code.len()))))
    }

    /// Returns all prefixes, as bits and length, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Tail, u8, &V)> {
        self.prefixes().zip(&self.values).map(|((bits, n), value)| (bits, n, value))
    }
}

/// Calls `each` with index and length of every prefix of `bits`, longest first, as long as it returns true.
#[inline]
fn walk<C: Code>(codes: &[C], bits: Tail, mut each: impl FnMut(usize, u8) -> bool) {
    let (mut before, mut wanted) = (codes, C::last(bits));
    loop {
        let below = before.partition_point(|code| *code <= wanted);
        let Some((&code, rest)) = before[..below].split_last() else { return };
        let common = code.common(wanted);
        // No prefix of the address is longer than what the address shares with the last prefix before it.
        let longest = if code.len() <= common {
            if !each(below - 1, code.len()) {
                return;
            }
            code.len() - 1
        } else {
            common
        };
        if longest == 0 {
            return;
        }
        (before, wanted) = (rest, C::new(head(bits, longest), longest));
    }
}

pub(super) fn insert_at<T>(array: &mut Box<[T]>, at: usize, item: T) {
    let mut vec = std::mem::take(array).into_vec();
    vec.reserve_exact(1);
    vec.insert(at, item);
    *array = vec.into_boxed_slice();
}

pub(super) fn remove_at<T>(array: &mut Box<[T]>, at: usize) -> T {
    let mut vec = std::mem::take(array).into_vec();
    let item = vec.remove(at);
    *array = vec.into_boxed_slice();
    item
}
