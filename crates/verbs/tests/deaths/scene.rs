//! A scene: a daemon, a program that receives, and two that send to it. One of the four may be killed or stopped at a
//! point of the protocol; the others continue.

use crate::program::name_of;
use crate::sender::RECEIVES;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uverbs::Point;

const PATIENCE: Duration = Duration::from_secs(25);
/// Time for which a receiver or a daemon is stopped: the others work meanwhile, or wait for it.
const STOP: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Messages go through shared memory; the receiver's regions are not in files.
    Shared,
    /// Messages go through shared memory; the receiver's regions are in files.
    Files,
    Copied,
    /// Messages go as packets.
    Roce,
    /// The daemon copies messages between programs of virtual machines with a window each.
    Own,
    /// Messages go through a window that the programs' virtual machines have in common.
    Common,
}

impl Way {
    pub const fn shares(self) -> bool {
        matches!(self, Self::Shared | Self::Files | Self::Common)
    }

    fn name_of(self, device: &Path) -> String {
        match self {
            Self::Own => name_of(device, None),
            Self::Common => name_of(device, Some(&device.with_file_name("common"))),
            _ => device.display().to_string(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub way: Way,
    pub shares_receives: bool,
    /// Whether programs sleep until they are notified of completions; otherwise they poll.
    pub sleeps: bool,
}

impl Kind {
    pub fn all() -> impl Iterator<Item = Self> {
        let ways = [Way::Shared, Way::Files, Way::Copied, Way::Roce, Way::Own, Way::Common];
        let flags = [(false, false), (false, true), (true, false), (true, true)];
        let of = move |way| flags.map(|(shares_receives, sleeps)| Self { way, shares_receives, sleeps });
        ways.into_iter().flat_map(of)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Daemon,
    Receiver,
    /// The sender that dies.
    Sender,
    Third,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Killed,
    StoppedAndKilled,
    /// The victim is stopped, and continues later.
    Stopped,
}

/// The point and the occurrence at which a process meets its fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub role: Role,
    pub point: Point,
    /// The occurrence of the point, counted from 1.
    pub time: u32,
    pub fate: Fate,
}

/// Events that the scene receives from a process.
#[derive(Debug)]
enum Event {
    Line(String),
    Stopped,
    /// The process ended by itself with this status, or by a signal (`None`).
    Ended(Option<i32>),
}

/// A process of the scene, seen from the scene.
struct Party {
    role: Role,
    pid: Pid,
    to: Option<ChildStdin>,
    events: Receiver<Event>,
    /// The process's fate, if it is the victim.
    fate: Arc<Mutex<Option<Fate>>>,
    is_hit: bool,
    is_gone: bool,
    /// Whether the process is stopped until the scene lets it continue.
    is_held: bool,
}

/// Sends a line to the scene.
pub fn answer(line: &str) {
    // The line break is necessary: with one CPU, the test harness has begun a line before the first answer.
    println!("\n> {line}");
}

/// Returns the scene's commands, until there are no more. Executes those that are the same for all processes.
pub fn commands() -> impl Iterator<Item = Line> {
    std::io::stdin().lines().map(|line| Line(line.unwrap())).filter(|line| match line.words()[..] {
        ["arm", point, time, signal] => {
            let point = *Point::ALL.iter().find(|one| one.name() == point).unwrap();
            uverbs::point::arm(point, time.parse().unwrap(), signal.parse().unwrap());
            false
        }
        ["reached"] => {
            let counts = uverbs::point::reached().into_iter().filter(|(_, count)| *count > 0);
            let words: Vec<_> = counts.map(|(point, count)| format!("{} {count}", point.name())).collect();
            answer(&words.join(" "));
            false
        }
        _ => true,
    })
}

pub struct Line(String);

impl Line {
    pub fn words(&self) -> Vec<&str> {
        self.0.split_whitespace().collect()
    }
}

fn watch(role: Role, pid: Pid, fate: &Mutex<Option<Fate>>, events: &Sender<Event>) {
    while let Ok(Some((_, status))) = waitpid(Some(pid), WaitOptions::UNTRACED) {
        if !status.stopped() {
            let _ = events.send(Event::Ended(status.exit_status()));
            return;
        }
        let _ = events.send(Event::Stopped);
        if role != Role::Sender {
            std::thread::sleep(STOP);
            let_go(pid, *fate.lock().unwrap());
        }
    }
}

/// Lets a stopped process continue, or kills it.
fn let_go(pid: Pid, fate: Option<Fate>) {
    let signal = if fate == Some(Fate::Stopped) { Signal::CONT } else { Signal::KILL };
    let _ = kill_process(pid, signal);
}

impl Party {
    #[allow(clippy::zombie_processes, reason = "`watch` waits for it")]
    fn start(role: Role, kind: Kind, directory: &Path) -> Self {
        let socket = directory.join(if role == Role::Receiver { "b" } else { "a" });
        let share = if kind.way == Way::Files { "1" } else { "0" };
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "party"])
            .env("DEATHS", format!("{role:?} {}", Kind::all().position(|one| one == kind).unwrap()))
            .env("DEATHS_IN", directory)
            .env("VIADUCT_RDMA", kind.way.name_of(&socket))
            .env("VIADUCT_RDMA_SHARE", share)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let pid = Pid::from_child(&child);
        let (sender, events) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let tells = sender.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(line) = line.strip_prefix("> ") {
                    let _ = tells.send(Event::Line(line.into()));
                }
            }
        });
        let fate = Arc::new(Mutex::new(None));
        let known = fate.clone();
        std::thread::spawn(move || watch(role, pid, &known, &sender));
        let to = child.stdin.take();
        Self { role, pid, to, events, fate, is_hit: false, is_gone: false, is_held: false }
    }

    fn say(&mut self, command: &str) {
        // A process that has ended reads nothing.
        let _ = self.to.as_mut().map(|to| writeln!(to, "{command}"));
    }

    /// Waits for the process's answer; returns `None` if it has ended, or is stopped and held.
    fn hear(&mut self) -> Option<String> {
        while !self.is_gone && !self.is_held {
            match self.events.recv_timeout(PATIENCE) {
                Ok(Event::Line(line)) => return Some(line),
                Ok(Event::Stopped) => (self.is_hit, self.is_held) = (true, self.role == Role::Sender),
                Ok(Event::Ended(Some(0))) => self.is_gone = true,
                Ok(Event::Ended(None)) if self.fate.lock().unwrap().is_some() => {
                    (self.is_gone, self.is_hit) = (true, true)
                }
                Ok(Event::Ended(status)) => panic!("{:?} failed: {status:?}", self.role),
                Err(_) => panic!("{:?} does not answer", self.role),
            }
        }
        None
    }

    /// Waits like [`Self::hear`], but lets a held process continue.
    fn hear_in_the_end(&mut self) -> Option<String> {
        loop {
            let heard = self.hear();
            if !self.is_held {
                return heard;
            }
            self.let_go();
        }
    }

    fn let_go(&mut self) {
        self.is_held = false;
        let_go(self.pid, *self.fate.lock().unwrap());
    }

    fn ask(&mut self, command: &str) -> Option<String> {
        self.say(command);
        self.hear()
    }

    fn reached(&mut self) -> Reached {
        self.say("reached");
        let counts = self.hear_in_the_end().unwrap_or_default();
        let words: Vec<_> = counts.split_whitespace().collect();
        let point = |name| *Point::ALL.iter().find(|one| one.name() == name).unwrap();
        words.chunks(2).map(|two| (self.role, point(two[0]), two[1].parse().unwrap())).collect()
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        if !self.is_gone {
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

/// Counts a process's descriptors, mappings of shared memory, and threads.
fn possessions(pid: Pid) -> (usize, usize, usize) {
    let at = |name| format!("/proc/{}/{name}", pid.as_raw_nonzero());
    let count = |name| std::fs::read_dir(at(name)).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string(at("maps")).unwrap_or_default();
    (count("fd"), maps.lines().filter(|line| line.contains("/memfd:")).count(), count("task"))
}

/// Counts how often each role reached each point.
pub type Reached = Vec<(Role, Point, u32)>;

struct Scene {
    kind: Kind,
    daemon: Party,
    receiver: Party,
    /// Both senders. The first is the victim, if a sender is.
    senders: [Party; 2],
    /// The daemon's resources before there were programs.
    before: (usize, usize, usize),
    _directory: tempfile::TempDir,
}

impl Scene {
    fn start(kind: Kind) -> Self {
        // The files of windows must be memory.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut daemon = Party::start(Role::Daemon, kind, directory.path());
        assert_eq!(daemon.hear().as_deref(), Some("ready"));
        let before = possessions(daemon.pid);
        let [receiver, one, other] = [Role::Receiver, Role::Sender, Role::Third]
            .map(|role| Party::start(role, kind, directory.path()));
        Self { kind, daemon, receiver, senders: [one, other], before, _directory: directory }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Party> {
        let Self { daemon, receiver, senders, .. } = self;
        [daemon, receiver].into_iter().chain(senders)
    }

    fn party(&mut self, role: Role) -> &mut Party {
        self.all().find(|party| party.role == role).unwrap()
    }

    fn connect(&mut self) {
        let there = self.receiver.hear().unwrap();
        let there: Vec<_> = there.split_whitespace().collect();
        let numbers: Vec<_> = self.senders.iter_mut().map(|sender| sender.hear().unwrap()).collect();
        for (sender, there) in self.senders.iter_mut().zip(there.chunks(3)) {
            sender.say(&format!("connect {}", there.join(" ")));
        }
        assert_eq!(
            self.receiver.ask(&format!("connect {}", numbers.join(" "))).as_deref(),
            Some("connected")
        );
        self.senders.iter_mut().for_each(|sender| assert_eq!(sender.hear().as_deref(), Some("connected")));
        // From here on points are counted.
        self.all().for_each(|party| _ = party.ask("reached"));
    }

    fn arm(&mut self, Victim { role, point, time, fate }: Victim) {
        let signal = if fate == Fate::Killed { Signal::KILL } else { Signal::STOP };
        let party = self.party(role);
        *party.fate.lock().unwrap() = Some(fate);
        party.say(&format!("arm {} {time} {}", point.name(), signal.as_raw()));
    }

    /// Is true if everything except the first sender behaves as if nothing had happened.
    fn goes_on(&self) -> bool {
        let is_sound = |party: &Party| party.fate.lock().unwrap().is_none();
        is_sound(&self.daemon) && is_sound(&self.receiver)
    }

    fn play(&mut self) {
        let [one, other] = &mut self.senders;
        one.say("go 2");
        other.say("go 1");
        let mut done = vec![other.hear()];
        let own = one.hear();
        if self.goes_on() {
            done.push(self.senders[1].ask("go 1"));
        }
        self.receiver.say("dereg");
        if self.senders[0].is_held {
            self.senders[0].hear_in_the_end();
        }
        let taken = self.receiver.hear();
        if self.goes_on() {
            assert_eq!((taken.as_deref(), done), (Some("deregistered"), vec![Some("1".into()); 2]));
            self.all_came(own);
        }
        if self.kind.shares_receives {
            self.none_is_lost();
        }
    }

    /// Checks that a program that sleeps for completions gets all of them without any further event.
    fn all_came(&mut self, own: Option<String>) {
        let rounds = own.map_or(0, |rounds| rounds.parse().unwrap());
        let mut awaited = [rounds * RECEIVES, 2 * RECEIVES];
        if self.kind.shares_receives {
            awaited = [awaited[0] + awaited[1]; 2];
        }
        for (of, count) in awaited.into_iter().enumerate() {
            let came = self.receiver.ask(&format!("await {of} {count}"));
            assert!(came.is_some() || !self.goes_on(), "not all came");
        }
    }

    /// Checks that each receive of the shared queue is completed, or takes a message of the other sender.
    fn none_is_lost(&mut self) {
        let Some(count) = self.receiver.ask("more") else { return };
        let sent = self.senders[1].ask(&format!("send {count}"));
        if self.goes_on() {
            assert_eq!((sent, self.receiver.ask("drained").as_deref()), (Some(count), Some("drained")));
        }
    }

    /// Ends all processes, each before those that it needs.
    fn end(&mut self) -> Reached {
        let mut reached = Reached::new();
        if let Some(judgement) = self.receiver.ask("flush") {
            assert_eq!(judgement, "right");
        }
        let [one, other] = &mut self.senders;
        for party in [one, other, &mut self.receiver] {
            reached.extend(party.reached());
            party.say("close");
            while let Some(line) = party.hear_in_the_end() {
                assert_eq!(line, "closed");
            }
        }
        reached.extend(self.daemon.reached());
        reached
    }

    /// Waits until the daemon's resources are the same as without programs, and windows are empty.
    fn is_given_back(&mut self) {
        let start = Instant::now();
        loop {
            let used = self.daemon.ask("look");
            let has = possessions(self.daemon.pid);
            if used.is_none() || used.as_deref() == Some("0") && has == self.before {
                break;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "descriptors, mappings, threads: {:?}, now {has:?}; bytes of windows: {used:?}",
                self.before
            );
        }
    }
}

/// Plays a scene; returns how often points were reached, or `None` if a victim did not reach its point. Panics if
/// anything else is not as it should be.
pub fn play(kind: Kind, victims: &[Victim]) -> Option<Reached> {
    let mut scene = Scene::start(kind);
    scene.connect();
    victims.iter().for_each(|victim| scene.arm(*victim));
    scene.play();
    let reached = scene.end();
    scene.is_given_back();
    victims.iter().all(|victim| scene.party(victim.role).is_hit).then_some(reached)
}
