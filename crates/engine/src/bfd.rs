//! BFD packets of tunnels' remotes, on their way from the workers to the thread with the sessions. Anybody on the
//! underlay can forge a remote's address, but only the remote knows the number of its session. So each number has a
//! share of its own, and packets without a known number can't use it up.

use crate::asked::{Questions, asker};
use model::{DropReason, Seconds, Service, VifId};
use packet::{Headers, proto};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Places for the numbers of sessions: some times as many as there are sessions.
const PLACES: usize = 4096;
/// Bytes of a packet before the receiver's number (RFC 5880, 4.1).
const NUMBER: usize = 8;

/// The workers' end of the way to sessions.
#[derive(Clone, Debug)]
pub(crate) struct Bfd {
    known: Questions,
    others: Questions,
    /// The numbers of all sessions, each at its place or right behind others; 0: free.
    numbers: Arc<[AtomicU32]>,
}

impl Bfd {
    /// Returns the way that ends as this one does.
    pub fn over(known: Questions) -> Self {
        let numbers = (0..PLACES).map(|_| AtomicU32::new(0)).collect();
        Self { others: known.few(), known, numbers }
    }

    /// Knows the numbers of these sessions, and no others.
    pub fn know(&self, sessions: &[u32]) {
        let mut places = vec![0; PLACES];
        for number in sessions.iter().take(PLACES / 2) {
            if let Some(place) = order(*number).find(|place| places[*place] == 0) {
                places[place] = *number;
            }
        }
        self.numbers.iter().zip(places).for_each(|(at, number)| at.store(number, Ordering::Relaxed));
    }

    /// Returns the place of a number that is known.
    fn place(&self, number: u32) -> Option<usize> {
        let found = order(number).map(|place| (place, self.numbers[place].load(Ordering::Relaxed)));
        found.take_while(|(_, found)| *found != 0).find(|(_, found)| *found == number).map(|(place, _)| place)
    }

    /// Puts a packet of a remote, which came by this wire, where its session takes it from.
    ///
    /// # Errors
    /// The reason to drop the packet.
    pub fn put(
        &self,
        wire: VifId,
        headers: &Headers,
        frame: &[u8],
        complete: impl FnOnce(&mut [u8]),
        now: Seconds,
    ) -> Result<(), DropReason> {
        let from = headers.ip().ok_or(DropReason::NotForUs)?.src;
        let at = usize::from(headers.l4_at) + proto::UDP_LEN + NUMBER;
        let number =
            frame.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u32::from_be_bytes(*it));
        // Who forges another remote's address, and knows a number of its own, uses up the share of that number.
        let (to, asker) = match self.place(number) {
            Some(place) => (&self.known, VifId(u16::try_from(place).unwrap_or_default())),
            None => (&self.others, asker(from)),
        };
        to.put(asker, (wire, Service::Bfd), frame, complete, now)
    }
}

/// Returns the places at which a number is looked for, in this order.
fn order(number: u32) -> impl Iterator<Item = usize> {
    (0..PLACES).map(move |behind| (number as usize + behind) % PLACES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(bfd: &Bfd, number: u32, now: Seconds) -> Result<(), DropReason> {
        let text = "eth 02:00:00:00:00:02 > 02:00:00:00:00:01 / ip4 192.0.2.2 > 192.0.2.1 / udp 49152 > 4784 \
                    / payload 24";
        let mut frame = model::text::parse(text).unwrap();
        let at = frame.len() - 24 + NUMBER;
        frame[at..at + 4].copy_from_slice(&number.to_be_bytes());
        let headers = Headers::ethernet(&frame, 0, frame.len()).unwrap();
        bfd.put(VifId(0), &headers, &frame, |_| {}, now)
    }

    #[test]
    fn who_does_not_know_the_number_takes_no_place_of_who_does() {
        let (questions, from) = Questions::of_sessions();
        let bfd = Bfd::over(questions);
        bfd.know(&[77]);
        assert!(
            (0..1000).filter(|number| *number != 77).filter(|number| put(&bfd, *number, 7).is_ok()).count()
                < 3
        );
        assert_eq!(put(&bfd, 77, 7), Ok(()));
        drop(from.try_iter().collect::<Vec<_>>());
        let few = (0..1000).filter(|_| put(&bfd, 0, 8).is_ok() && from.recv().is_ok()).count();
        assert_eq!(few, 10);
        let all = (0..400).filter(|_| put(&bfd, 77, 8).is_ok() && from.recv().is_ok()).count();
        assert_eq!(all, 400);
    }

    #[test]
    fn numbers_at_one_place_are_all_known() {
        let bfd = Bfd::over(Questions::new().0);
        let numbers: Vec<u32> = (1..600).map(|number| number << 12 | 4095).collect();
        bfd.know(&numbers);
        let knows = |number| bfd.place(number).is_some();
        assert!(numbers.iter().all(|number| knows(*number)));
        assert!(!knows(0) && !knows(600 << 12 | 4095) && !knows(5000));
        bfd.know(&[1]);
        assert!(knows(1) && !knows(numbers[0]));
    }
}
