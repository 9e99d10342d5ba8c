//! A look-up unit between a requester and a memory that answers at any time and in any order.
use super::random::Random;
use card::step::{LINE, Line, Step};
use std::collections::{HashMap, VecDeque};

pub const TAGS: u16 = 1024;

/// The ports of a look-up unit, the same for each unit.
pub trait Unit {
    type Key: Copy;
    const REQUESTERS: usize;
    fn ask(&mut self, ask: Option<(u16, &Self::Key)>);
    fn ready(&self) -> bool;
    /// Returns the tag and the result.
    fn result(&self) -> Option<(u16, u64)>;
    /// Returns the line and the context of a request.
    fn request(&self, requester: usize) -> Option<(u32, u16)>;
    fn set_request_ready(&mut self, ready: u8);
    fn set_response(&mut self, requester: usize, response: Option<&(u16, Line)>);
    fn response_ready(&self, requester: usize) -> bool;
    fn eval(&mut self);
    fn clock(&mut self);
}

/// The behaviour of the memory.
#[derive(Clone, Copy)]
pub enum Manner {
    /// Accepts a request per clock and requester, and answers it this many clocks later.
    Steady(u64),
    /// Lets requests wait, and answers them after up to this many clocks, in any order.
    Random(u64),
}

struct Read {
    due: u64,
    context: u16,
    line: u32,
    /// The data, if the memory has been read already.
    data: Option<Line>,
}

/// A look-up under way.
struct Pending<K> {
    key: K,
    since: u64,
    version: usize,
}

pub struct Answer<K> {
    pub key: K,
    pub result: u64,
    /// Clocks from the start of the look-up to its answer.
    pub latency: u64,
    /// The caller's version of the tables when the look-up began.
    pub version: usize,
}

pub struct Bench<U: Unit> {
    pub unit: U,
    pub random: Random,
    manner: Manner,
    lines: HashMap<u32, Line>,
    reads: Vec<Vec<Read>>,
    responses: Vec<Option<(u16, Line)>>,
    waiting: Vec<Option<(u32, u16)>>,
    pending: Vec<Option<Pending<U::Key>>>,
    free: VecDeque<u16>,
    asked: Option<(u16, Pending<U::Key>)>,
    pub now: u64,
}

impl<U: Unit> Bench<U> {
    pub fn new(unit: U, manner: Manner) -> Self {
        Self {
            unit,
            random: Random(0x1234_5678_9abc_def1),
            manner,
            lines: HashMap::new(),
            reads: (0..U::REQUESTERS).map(|_| Vec::new()).collect(),
            responses: vec![None; U::REQUESTERS],
            waiting: vec![None; U::REQUESTERS],
            pending: (0..TAGS).map(|_| None).collect(),
            free: (0..TAGS).collect(),
            asked: None,
            now: 0,
        }
    }

    /// Writes to the memory. Reads made earlier keep their data.
    pub fn write(&mut self, step: &Step) {
        if let Step::Write { address, data, .. } = *step {
            self.lines.insert(address, data);
        }
    }

    /// Returns the clock at which the oldest look-up in flight began.
    pub fn oldest(&self) -> u64 {
        let asked = self.asked.iter().map(|(_, asked)| asked);
        self.pending.iter().flatten().chain(asked).map(|pending| pending.since).min().unwrap_or(self.now)
    }

    pub fn in_flight(&self) -> usize {
        usize::from(TAGS) - self.free.len()
    }

    /// Returns whether the next look-up can be passed to `clock`.
    pub fn wants(&self) -> bool {
        self.asked.is_none() && !self.free.is_empty()
    }

    /// Advances by a clock. `next` is a look-up to start, with the version of the tables; it is kept until the unit
    /// takes it.
    pub fn clock(&mut self, next: Option<(U::Key, usize)>) -> Option<Answer<U::Key>> {
        if let Some((key, version)) = next {
            assert!(self.asked.is_none());
            let tag = self.free.pop_front().expect("a free tag");
            self.asked = Some((tag, Pending { key, since: self.now, version }));
        }
        self.unit.ask(self.asked.as_ref().map(|(tag, asked)| (*tag, &asked.key)));
        let ready = match self.manner {
            Manner::Steady(_) => u8::MAX,
            Manner::Random(_) => (self.random.next() >> 40) as u8,
        };
        let ready = ready & ((1 << U::REQUESTERS) - 1);
        self.unit.set_request_ready(ready);
        for requester in 0..U::REQUESTERS {
            self.respond(requester);
        }
        self.unit.eval();
        self.take_asked();
        for requester in 0..U::REQUESTERS {
            self.take_request(requester, ready >> requester & 1 != 0);
            if self.unit.response_ready(requester) {
                self.responses[requester] = None;
            }
        }
        let answer = self.unit.result().map(|(tag, result)| self.answered(tag, result));
        self.unit.clock();
        self.now += 1;
        answer
    }

    fn take_asked(&mut self) {
        if self.unit.ready()
            && let Some((tag, asked)) = self.asked.take()
        {
            self.pending[usize::from(tag)] = Some(asked);
        }
    }

    fn answered(&mut self, tag: u16, result: u64) -> Answer<U::Key> {
        let pending = self.pending[usize::from(tag)].take().expect("answered once, and only what was asked");
        self.free.push_back(tag);
        let latency = self.now - pending.since;
        Answer { key: pending.key, result, latency, version: pending.version }
    }

    fn take_request(&mut self, requester: usize, ready: bool) {
        let request = self.unit.request(requester);
        if let Some(before) = self.waiting[requester] {
            assert_eq!(request, Some(before), "a request stays until it is taken");
        }
        self.waiting[requester] = request.filter(|_| !ready);
        if let Some((line, context)) = request.filter(|_| ready) {
            let (due, at_once) = match self.manner {
                Manner::Steady(latency) => (self.now + latency, true),
                Manner::Random(most) => (self.now + 1 + self.random.next() % most, self.random.chance(50)),
            };
            let data = at_once.then(|| self.line(line));
            self.reads[requester].push(Read { due, context, line, data });
        }
    }

    /// Offers an answer that is due, unless the previous one still waits.
    fn respond(&mut self, requester: usize) {
        if self.responses[requester].is_none() {
            let due: Vec<_> = (0..self.reads[requester].len())
                .filter(|&read| self.reads[requester][read].due <= self.now)
                .take(64)
                .collect();
            let chosen = match self.manner {
                Manner::Steady(_) => due.first().copied(),
                Manner::Random(_) if due.is_empty() => None,
                Manner::Random(_) => Some(self.random.pick(&due)),
            };
            self.responses[requester] = chosen.map(|read| {
                let read = self.reads[requester].remove(read);
                (read.context, read.data.unwrap_or_else(|| self.line(read.line)))
            });
        }
        self.unit.set_response(requester, self.responses[requester].as_ref());
    }

    fn line(&self, line: u32) -> Line {
        self.lines.get(&line).copied().unwrap_or([0; LINE])
    }
}

pub struct Figures {
    latencies: Vec<u64>,
    clocks: u64,
}

impl Figures {
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.clocks as f64
    }

    pub fn print(&mut self, name: &str) {
        self.latencies.sort_unstable();
        let part = |part: usize| self.latencies[(self.latencies.len() - 1) * part / 1000];
        println!(
            "{name}: {:.3} look-ups per clock; latency {} least, {} median, {} of 99.9 %, {} most, in clocks",
            self.rate(),
            part(0),
            part(500),
            part(999),
            part(1000)
        );
    }
}

/// Runs this many look-ups of `key`, offers one in `percent` of the clocks, and checks each answer.
pub fn run<U: Unit>(
    bench: &mut Bench<U>,
    count: usize,
    percent: u32,
    mut key: impl FnMut(&mut Random) -> U::Key,
    check: impl Fn(&Answer<U::Key>),
) -> Figures {
    let (began, mut asked, mut latencies) = (bench.now, 0, Vec::new());
    while latencies.len() < count {
        assert!(bench.now - began < 1000 * count as u64 + 100_000, "{} of {asked} answered", latencies.len());
        let next = (asked < count && bench.wants() && bench.random.chance(percent))
            .then(|| (key(&mut bench.random), 0));
        asked += usize::from(next.is_some());
        if let Some(answer) = bench.clock(next) {
            check(&answer);
            latencies.push(answer.latency);
        }
    }
    assert_eq!((bench.in_flight(), asked), (0, count));
    Figures { latencies, clocks: bench.now - began }
}

/// Makes the changes one after the other while look-ups go on. Each answer must be right for the number of changes made
/// at some moment between the look-up's start and its end. Returns the number of answers, and how many of them were
/// from before the last change. `key` gets the version of the tables to which the network's line belongs.
pub fn update<U: Unit>(
    bench: &mut Bench<U>,
    changes: &[Vec<Step>],
    mut key: impl FnMut(&mut Random, usize) -> U::Key,
    right: impl Fn(&Answer<U::Key>, usize) -> bool,
) -> [usize; 2] {
    let (mut steps, mut version, mut waits) = (VecDeque::new(), 0, None);
    let (mut answers, mut old) = (0, 0);
    while version < changes.len() || !steps.is_empty() || bench.in_flight() > 0 {
        if steps.is_empty() && version < changes.len() {
            steps.extend(&changes[version]);
            version += 1;
        }
        match steps.front() {
            Some(Step::Barrier) if bench.oldest() >= *waits.get_or_insert(bench.now) => {
                waits = None;
                steps.pop_front();
            }
            // The many writes of a large change follow each other at once: with pauses they would take too long.
            Some(step @ Step::Write { .. }) if steps.len() > 50 || bench.random.chance(20) => {
                bench.write(step);
                steps.pop_front();
            }
            _ => {}
        }
        let going = version < changes.len() || !steps.is_empty();
        // Few at a time, because a barrier waits for all of them.
        let next = (going && bench.wants() && bench.in_flight() < 48 && bench.random.chance(60)).then(|| {
            // A look-up that starts now may or may not see the change in progress.
            let done = version - usize::from(!steps.is_empty());
            let known = if bench.random.chance(50) { done } else { version };
            (key(&mut bench.random, known), done)
        });
        if let Some(answer) = bench.clock(next) {
            let mut versions = answer.version..=version;
            assert!(versions.any(|version| right(&answer, version)), "{:#x} was never right", answer.result);
            answers += 1;
            old += usize::from(!right(&answer, version));
        }
    }
    [answers, old]
}
